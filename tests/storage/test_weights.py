"""Weight files: exact round trips, and saving whole or not at all."""

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import neural_em
from neural_em import ModelConfig, NeuralEM, NeuralEMError, load, save
from neural_em.model import MODELS, PRESETS, NoiseConfig, build
from neural_em.model.fast import accelerate
from neural_em.storage.weights import read
from tests.tiny import NETWORKS

SMALL = ModelConfig(height=5, width=6, theta_size=3, convolutions=(2,), hidden=4)
SOURCE = Path(neural_em.__file__).parent


@pytest.fixture
def file(tmp_path):
    """A good weight file."""
    path = tmp_path / "model.safetensors"
    save(NeuralEM(SMALL, seed=1), path)
    return path


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("config", [
    SMALL,
    ModelConfig(
        m_step="gradient", channels=3, height=3, width=3, theta_size=2, convolutions=(), hidden=0, layer_norm=False
    ),
    ModelConfig(
        height=4, width=4, theta_size=2, convolutions=(1, 2), hidden=3, distribution="gaussian", prior=-0.5,
        e_step_deviation=0.1 + 0.2, channel_rule="sum", noise=NoiseConfig("masked-uniform", 1 / 3),
        normalize_input=True, gamma_gradient=True, inter_weight=1e-3, loss_steps=(0.0, 0.1, 1.0), steps=3,
    ),
], ids=["recurrent", "gradient", "every option"])  # fmt: skip
def test_a_round_trip_is_exact(tmp_path, config, dtype):
    model, path = NeuralEM(config, seed=5).to(dtype), tmp_path / "m.safetensors"
    save(model, path)
    again = load(path)
    assert again.config == config
    assert equal(again.state_dict(), model.state_dict())
    assert {p.dtype for p in again.parameters()} == {dtype}
    assert all(parameter.requires_grad for parameter in again.parameters())
    x = torch.rand(4, 2, config.channels, config.height, config.width, dtype=dtype)
    gamma = model.start(x[0], 3).gamma
    ours, theirs = (m.unroll(x, 3, x_noisy=x, gamma=gamma) for m in (model, again))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_presets_round_trip(tmp_path, name):
    model = NeuralEM(PRESETS[name], seed=2)
    save(model, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert again.config == PRESETS[name]
    assert equal(again.state_dict(), model.state_dict())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fast_model_is_saved_as_the_plain_one(tmp_path, name):
    model = NeuralEM(PRESETS[name], seed=2)
    for path, each in (("plain", model), ("fast", accelerate(model))):
        save(each, tmp_path / path)
    assert (tmp_path / "fast").read_bytes() == (tmp_path / "plain").read_bytes()
    assert equal(load(tmp_path / "fast").state_dict(), model.state_dict())


@dataclass(frozen=True)
class SoftConfig(ModelConfig):
    """A model with one more setting."""

    kind: str = "soft"
    softness: float = 2.0


class Soft(NeuralEM):
    """Assigns pixels as softly as its config says."""

    def assign(self, eta, x, losses=True):
        psi, gamma, info = super().assign(eta, x, losses)
        gamma = gamma ** (1 / self.config.softness)
        return psi, gamma / gamma.sum(dim=1, keepdim=True), info


def test_another_model_comes_back_as_what_it_was(tmp_path, monkeypatch):
    config = SoftConfig(height=5, width=6, theta_size=3, convolutions=(2,), hidden=4, softness=3.0)
    with pytest.raises(NeuralEMError, match=r"^config: expected one of ModelConfig.*, got a SoftConfig$"):
        build(config)
    monkeypatch.setitem(MODELS, SoftConfig, Soft)
    model = build(config, seed=3)
    save(model, tmp_path / "m")
    again = load(tmp_path / "m")
    assert type(again) is Soft
    assert again.config == config
    assert equal(again.state_dict(), model.state_dict())
    x = torch.rand(3, 2, 1, 5, 6, generator=torch.Generator().manual_seed(0))
    plain = NeuralEM(SMALL)
    plain.load_state_dict(again.state_dict())
    gamma = model.start(x[0], 3).gamma
    found = [each.unroll(x, 3, x_noisy=x[:2], gamma=gamma).gamma for each in (model, again, plain)]
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])
    monkeypatch.delitem(MODELS, SoftConfig)
    with pytest.raises(NeuralEMError, match=r"m: model\.kind: expected one of .*neural-em.*, got 'soft'$"):
        load(tmp_path / "m")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_notes(tmp_path, dtype):
    model, path = NeuralEM(SMALL, seed=5), tmp_path / "half.safetensors"
    notes = {"ami": 0.97, "command": "nem train", "seeds": [1, 2], "müde": None}
    save(model, path, dtype=dtype, notes=notes)
    config, kept, tensors = read(path)
    assert (config, kept) == (SMALL, notes)
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}
    again = load(path)
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.to(dtype).float())
    assert {p.dtype for p in model.parameters()} == {torch.float32}  # the model itself is as it was


def test_the_file_is_plain_safetensors(file):
    with safe_open(str(file), framework="np") as opened:
        assert opened.metadata()["format"] == "neural-em-1"
        assert set(opened.keys()) == set(NeuralEM(SMALL).state_dict())
        assert json.loads(opened.metadata()["config"])["theta_size"] == 3


def test_saving_twice_gives_the_same_bytes(file, tmp_path):
    save(load(file), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()


def test_a_loaded_model_does_not_change_with_its_file(file):
    """The weights are copies, not a window on the file."""
    model = load(file)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with open(file, "r+b") as opened:  # in place, the same inode
        opened.seek(8 + struct.unpack("<Q", opened.read(8))[0])
        opened.write(bytes(os.path.getsize(file) - opened.tell()))
    assert equal(model.state_dict(), before)


def test_a_loaded_model_trains_and_is_saved_over_its_own_file(file):
    model = load(file)
    model.unroll(torch.rand(3, 2, 1, 5, 6), 2).loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    save(model, file)
    assert equal(load(file).state_dict(), model.state_dict())


@pytest.mark.parametrize(("place", "reason"), [
    ("missing/model", "there is no folder"), ("file/model", "there is no folder"), ("folder", "got a folder"),
    ("x" * 300, "File name too long"), ("nul\0byte", "the name of a file"),
], ids=repr)  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path, place, reason):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    with pytest.raises(NeuralEMError, match=reason) as error:
        save(NeuralEM(SMALL), tmp_path / place)
    assert "\n" not in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert os.listdir(tmp_path / "folder") == []
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_without_write_permission_is_refused(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    if os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user may write anywhere")
    with pytest.raises(NeuralEMError, match="cannot be written: Permission denied"):
        save(NeuralEM(SMALL), tmp_path / "locked" / "model")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_save_that_fails_half_way_leaves_the_old_file_and_no_other(file, monkeypatch, error):
    before = file.read_bytes()

    def fail(descriptor):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(NeuralEMError if isinstance(error, OSError) else KeyboardInterrupt):
        save(NeuralEM(SMALL, seed=9), file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_a_save_leaves_one_file(file):
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize(("options", "message"), [
    ({"dtype": torch.int8}, r"^dtype: expected a floating point type, got torch\.int8$"),
    ({"notes": {"a": object()}}, r"^notes: cannot be written as JSON: "),
    ({"notes": [1]}, r"^notes: expected a mapping, got list$"),
])  # fmt: skip
def test_what_could_not_be_read_again_is_not_saved(tmp_path, options, message):
    with pytest.raises(NeuralEMError, match=message):
        save(NeuralEM(SMALL), tmp_path / "m", **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), None), (1e6, torch.float16)])
def test_weights_that_would_not_load_are_not_saved(tmp_path, value, dtype):
    model = NeuralEM(SMALL)
    with torch.no_grad():
        model.m_step.recurrence.weight[0, 0] = value
    with pytest.raises(NeuralEMError, match=r"^m_step\.recurrence\.weight: expected finite weights, got"):
        save(model, tmp_path / "m", dtype=dtype)
    assert os.listdir(tmp_path) == []


def test_a_model_with_other_layers_than_its_config_makes_is_not_saved(tmp_path):
    model = NeuralEM(SMALL)
    model.m_step.encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(30, 4))
    message = r"^model: weights m_step\.encoder\.1\.bias: expected none of that name, got shape \(4,\)$"
    with pytest.raises(NeuralEMError, match=message):
        save(model, tmp_path / "m")
    assert os.listdir(tmp_path) == []
