"""Checkpoints: whole or not at all, harmless when they come from a stranger."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neural_em.errors import NeuralEMError
from neural_em.runs import checkpoint
from neural_em.training.loop import Run
from neural_em.training.state import Progress, Row, Snapshot

PROGRESS = Progress(epoch=1, step=2, best_loss=0.1 + 0.2, best_epoch=1, rows=(Row(1, 4, 1 / 3, 2 / 3, best=True),))


def _tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    large = torch.randn(700, 500, generator=generator, dtype=torch.float64)
    return {"model.a": large, "model.b": torch.randn(3, generator=generator), "step": torch.tensor(5.0)}


def _snapshot() -> Snapshot:
    return Snapshot(PROGRESS, _tensors())


def test_round_trip_is_exact(tmp_path: Path) -> None:
    """Every number comes back bit for bit, those in JSON too."""
    path = checkpoint.write(tmp_path, checkpoint.name_of(6, validated=False), _snapshot())
    assert path == tmp_path / "step-00000006"
    tensors = checkpoint.read(path).tensors
    assert checkpoint.read(path).progress == checkpoint.read_progress(path) == PROGRESS
    assert {file.name for file in path.iterdir()} == {"state.json", "shard-00001.safetensors"}
    assert tensors.keys() == _tensors().keys()
    for name, tensor in _tensors().items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_newest_is_found_and_older_ones_go(tmp_path: Path) -> None:
    """A closed epoch is newer than its last step; what was left half-written is no checkpoint."""
    for name in ("step-00000009", "step-00000010", "step-00000010-validated"):
        checkpoint.write(tmp_path, name, _snapshot())
    (tmp_path / ".step-00000011.123.partial").mkdir()
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found[0].name == "step-00000010-validated"
    checkpoint.keep_only(tmp_path, found[0])
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010-validated"]
    assert checkpoint.newest(tmp_path / "nowhere") is None


def test_a_broken_newest_one_is_passed_over(tmp_path: Path) -> None:
    """The one before is used, and can be replaced by a whole one of the same name."""
    checkpoint.write(tmp_path, "step-00000001", _snapshot())
    broken = checkpoint.write(tmp_path, "step-00000002", _snapshot())
    shard = broken / "shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:1000])
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found[0].name == "step-00000001"
    checkpoint.write(tmp_path, "step-00000002", _snapshot())
    assert checkpoint.read(broken).progress == PROGRESS


def test_only_broken_ones_are_an_error(tmp_path: Path) -> None:
    """A run whose checkpoints cannot be read does not begin anew behind the user's back."""
    path = checkpoint.write(tmp_path, "step-00000001", _snapshot())
    (path / "state.json").write_text("{")
    with pytest.raises(NeuralEMError, match="no checkpoint can be read"):
        checkpoint.newest(tmp_path)


@pytest.mark.parametrize("file", ["../../secret.safetensors", "/etc/passwd", "shard-00001.safetensors/../x", 7])
def test_files_outside_are_refused(tmp_path: Path, file: object) -> None:
    """A checkpoint can name only its own files."""
    path = checkpoint.write(tmp_path, "step-00000001", _snapshot())
    state = json.loads((path / "state.json").read_text())
    state["tensors"]["step"]["pieces"] = [file]
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(NeuralEMError, match="tensors: expected"):
        checkpoint.read(path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"shape": [10**9, 10**9], "pieces": ["shard-00001.safetensors"]}, "expected shape"),
        ({"shape": [-1], "pieces": ["shard-00001.safetensors"]}, "tensors: expected"),
        ({"shape": [], "pieces": []}, "expected all its pieces"),
        ({"shape": [], "pieces": ["shard-00009.safetensors"]}, "cannot be read"),
        ("x", "tensors: expected"),
    ],
)
def test_false_shapes_and_files_are_refused(tmp_path: Path, entry: object, message: str) -> None:
    """Nothing is allocated by a number that a file claims."""
    path = checkpoint.write(tmp_path, "step-00000001", _snapshot())
    state = json.loads((path / "state.json").read_text())
    state["tensors"]["step"] = entry
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(NeuralEMError, match=message):
        checkpoint.read(path)


def test_a_full_disk_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One clear error, and nothing half-written beside the last good checkpoint."""
    checkpoint.write(tmp_path, "step-00000001", _snapshot())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NeuralEMError, match="step-00000002: cannot be written: No space left on device"):
        checkpoint.write(tmp_path, "step-00000002", _snapshot())
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_snapshot_that_does_not_fit_changes_nothing(tiny: Any) -> None:
    """One tensor of a wrong shape, the last; or steps that no epoch has. The model stays as it was."""
    model = tiny.build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = {f"model.{name}": torch.zeros_like(tensor) for name, tensor in before.items()}
    wrong = {**tensors, list(tensors)[-1]: torch.zeros(9, 9, 9)}
    for progress, given, words in (
        (Progress(), wrong, "expected shape"),
        (Progress(step=-1), {**tensors, "losses": torch.zeros(3)}, "steps of an epoch"),
        (Progress(step=10**6), tensors, "steps of an epoch"),
    ):
        run = Run(model, tiny.training, tiny.validation, tiny.config, Snapshot(progress, given))
        with pytest.raises(NeuralEMError, match=words):
            next(run.train())
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
