"""Training that begins with a trained model's weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import neural_em
from neural_em.errors import NeuralEMError
from neural_em.experiments import build, train
from neural_em.experiments.initial_weights import first_weights, rate_note
from tests.tiny import TINY, best_weights, same


def test_training_begins_with_the_given_weights(tmp_path: Path) -> None:
    """With a learning rate of almost nothing every seed ends with them; with stages the first one does."""
    train(build("flying-shapes", TINY), tmp_path / "first", device="cpu", quiet=True)
    still = [*TINY, "training.learning_rate=1.0e-30", "training.epochs=1", "model.inter_weight=0.5"]
    again = build("flying-shapes", still, weights=tmp_path / "first")
    train(again, tmp_path / "seeds", seeds=2, device="cpu", quiet=True)
    digest = hashlib.sha256((tmp_path / "first" / "best.safetensors").read_bytes()).hexdigest()
    for seed in (0, 1):
        assert same(best_weights(tmp_path / "seeds" / f"seed-{seed}"), best_weights(tmp_path / "first"))
        log = (tmp_path / "seeds" / f"seed-{seed}" / "log.txt").read_text()
        assert f"starts from the weights of {tmp_path}/first (sha256 {digest[:16]})" in log
        assert "which were trained with inter_weight 1.0 (here 0.5)" in log
        assert log.count("begins at a learning rate of 1e-30; Adam's averages start anew\n") == 1
    staged = build("flying-shapes", [*still, "stages=[[], []]"], weights=tmp_path / "first" / "best.safetensors")
    train(staged, tmp_path / "staged", device="cpu", quiet=True)
    assert same(best_weights(tmp_path / "staged"), best_weights(tmp_path / "first"))
    logs = [(tmp_path / name / "log.txt").read_text() for name in ("staged/stage-1", "staged/stage-2", "first")]
    assert ["learning rate" in log for log in logs] == [True, False, False]


def test_a_gentler_rate_is_named_as_long_as_nobody_has_set_one() -> None:
    shipped = {"weights": "flying-shapes"}
    assert rate_note(build("flying-shapes", **shipped)).endswith("(gentler: --set training.learning_rate=0.0001)")
    assert "gentler" not in rate_note(build("flying-shapes", ["training.learning_rate=0.0001"], **shipped))


def test_a_run_goes_on_without_the_weights_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are needed once, and the same words mean the same when they are gone; afterwards the run has its own."""
    monkeypatch.chdir(tmp_path)
    train(build("flying-shapes", TINY), "first", device="cpu", quiet=True)
    train(build("flying-shapes", [*TINY, "training.epochs=1"], weights="first"), "run", device="cpu", quiet=True)
    Path("first").rename("gone")
    (outcome,) = train(build("flying-shapes", [*TINY, "weights=first"]), "run", device="cpu", quiet=True)
    assert outcome.progress.epoch == 2
    Path("empty").mkdir()
    for folder in ("empty", "new"):
        with pytest.raises(NeuralEMError, match=r"model: expected .* a run folder or a weight file, got .*first"):
            train(build("flying-shapes", TINY, weights="first"), folder, device="cpu", quiet=True)
    assert not Path("new").exists()
    assert not any(Path("empty").iterdir())


def test_a_shipped_models_name_means_the_shipped_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a folder is called the same, which ``./`` names."""
    monkeypatch.chdir(tmp_path)
    Path("flying-shapes").mkdir()
    assert build("flying-shapes", weights="flying-shapes").weights == "flying-shapes"
    assert build("flying-shapes", weights="./flying-shapes").weights == f"{tmp_path}/flying-shapes"
    weights, note = first_weights(build("flying-shapes", weights="flying-shapes"))
    assert same(weights, neural_em.pretrained("flying-shapes").state_dict())
    assert note.startswith("starts from the weights of flying-shapes (sha256 ")
    assert note.endswith("which were trained with components 5 (here 3)")


def test_weights_that_cannot_be_begun_with(tmp_path: Path) -> None:
    """Several models, and another model's: said before there is a folder."""
    train(build("flying-shapes", TINY), tmp_path / "two", seeds=2, device="cpu", quiet=True)
    one, run = tmp_path / "two" / "seed-0", tmp_path / "run"
    sizes = "stages=[[model.theta_size=6], [model.theta_size=6]]"
    for overrides, weights, message in (
        ([], tmp_path / "two", "two: expected a run folder with its weights, got a folder of runs: seed-0"),
        (["model.theta_size=6", "model.inter_weight=0.5"], one, "with theta_size 6, got .*seed-0 with theta_size 5$"),
        ([sizes], one, "with theta_size 6, got .*seed-0 with theta_size 5$"),
        (["model.m_step=gradient"], one, "with m_step gradient, got .*seed-0 with m_step recurrent$"),
    ):
        with pytest.raises(NeuralEMError, match=message):
            train(build("flying-shapes", [*TINY, *overrides], weights=weights), run, device="cpu", quiet=True)
    assert not run.exists()


@pytest.mark.parametrize(
    ("overrides", "weights", "message"),
    [
        (["stages=[[weights=flying-shapes], []]"], None, "stages cannot set weights"),
        ([], "", "weights: expected a shipped model, a run folder or a weight file, got ''"),
        (
            ["weights=flying-mnist"],
            "flying-shapes",
            "weights are given twice, as flying-shapes",
        ),
        (["model.step_size=0.5"], "flying-shapes", "model.step_size=0.5 is for random weights"),
    ],
)
def test_weights_that_make_no_sense(overrides: list[str], weights: str | None, message: str) -> None:
    with pytest.raises(NeuralEMError, match=message):
        build("static-shapes-nem", overrides, weights=weights)
