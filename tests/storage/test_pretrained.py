"""Shipped models by name, and models of runs and files by path."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import neural_em
from neural_em import ModelConfig, NeuralEM, NeuralEMError, pretrained, save
from neural_em.runs.folder import BEST
from neural_em.storage import pretrained as store

SMALL = ModelConfig(height=5, width=6, theta_size=3, convolutions=(2,), hidden=4)
NOTES = {
    "about": "for tests", "command": "nem train tiny", "components": 3,
    "scores": {"ami_last": 0.9876, "ami_mean": 0.5, "ari_last": 0.25},
}  # fmt: skip


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the package's own."""
    folder = tmp_path / "pretrained"
    folder.mkdir()
    monkeypatch.setattr(store, "FOLDER", folder)
    return folder


def put(path: Path, seed: int = 1, **notes: object) -> NeuralEM:
    model = NeuralEM(SMALL, seed=seed)
    save(model, path, dtype=torch.float16, notes=notes)
    return model


def test_a_shipped_model_is_loaded_by_name(shelf: Path) -> None:
    model = put(shelf / "tiny.safetensors", **NOTES)
    found = pretrained("tiny")
    assert found.config == SMALL
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor.half().float())


def test_the_list_has_names_in_order_and_what_their_files_say(shelf: Path) -> None:
    put(shelf / "b.safetensors", **NOTES)
    put(shelf / "a.safetensors")
    first, second = store.models()
    assert (first.name, second.name) == ("a", "b")
    assert (first.components, first.scores) == (None, {})
    assert second.components == 3
    assert second.scores == {"AMI, last step": 0.9876, "AMI, mean over steps": 0.5, "ARI, last step": 0.25}


def test_scores_of_a_run_are_called_what_they_are(shelf: Path) -> None:
    put(shelf / "a.safetensors", validation={"ami_last": 0.5, "ami_mean": None})
    assert store.models()[0].scores == {"validation AMI, last step": 0.5}


@pytest.mark.parametrize("components", [0, -1, True, "3", 2.0, None])
def test_a_number_of_components_that_cannot_be_is_none(shelf: Path, components: object) -> None:
    put(shelf / "a.safetensors", components=components)
    assert store.models()[0].components is None


def test_unknown_names_are_refused_with_the_nearest(shelf: Path) -> None:
    with pytest.raises(NeuralEMError, match=r"^model 'tiny': this version of the package ships no models"):
        pretrained("tiny")
    put(shelf / "tiny.safetensors")
    with pytest.raises(NeuralEMError, match=r"^model: expected one of tiny, got 'tinny'; did you mean 'tiny'\?$"):
        pretrained("tinny")
    with pytest.raises(NeuralEMError, match=r"^model: expected one of tiny"):
        pretrained("../pretrained/tiny")


def test_a_model_is_found_by_name_run_or_file(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(shelf / "tiny.safetensors", components=1)
    (tmp_path / "tiny").mkdir()
    put(tmp_path / "tiny" / "best.safetensors", components=2)
    put(tmp_path / "weights", components=3)
    found = {name: store.find_model(name).components for name in ("tiny", "./tiny", "tiny/best.safetensors", "weights")}
    assert found == {"tiny": 1, "./tiny": 2, "tiny/best.safetensors": 2, "weights": 3}
    assert store.find_model(tmp_path / "tiny").components == 2


def test_a_runs_result_has_the_name_that_training_gives_it() -> None:
    assert store.BEST == BEST


def test_what_is_no_model_is_refused(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NeuralEMError, match=r"^model: expected a shipped model \(none in this version\), a run"):
        store.find_model("nothing")
    put(shelf / "tiny.safetensors")
    with pytest.raises(NeuralEMError, match=r"a shipped model \(tiny\), a run folder or a weight file, got 'nothing'$"):
        store.find_model("nothing")
    (tmp_path / "runs" / "seed-0").mkdir(parents=True)
    with pytest.raises(NeuralEMError, match=r"runs: expected a run folder .*, got a folder without best.safetensors$"):
        store.find_model("runs")
    put(tmp_path / "runs" / "seed-0" / "best.safetensors")
    with pytest.raises(NeuralEMError, match=r"got a folder of runs: seed-0$"):
        store.find_model("runs")
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(NeuralEMError, match=r"^text: "):
        store.find_model("text")
    with pytest.raises(NeuralEMError):
        store.find_model("a\0b")


@pytest.mark.parametrize("card", [pytest.param(card, id=card.name) for card in store.models()])
def test_every_shipped_model_says_how_it_was_made(card: store.Card) -> None:
    assert card.notes["command"].startswith("nem train ")
    assert card.notes["about"]
    assert set(card.scores) == {"AMI, last step", "AMI, mean over steps", "ARI, last step"}
    assert {tensor.dtype for tensor in store.read(card.path)[2].values()} == {torch.float16}


def test_the_function_is_on_the_face_of_the_package() -> None:
    assert neural_em.pretrained is store.pretrained
