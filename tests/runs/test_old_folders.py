"""Run folders of an earlier form, in ``old``: written by version 0.1.0 as of commit 811280a, all stopped in an epoch.

That version's own numbers, of the same runs without the stop, say what has to come out. ``single`` has its checkpoint
cut into several files; all name the size of such files in their settings, which is no setting any more.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import neural_em
from neural_em.experiments import build, reopen, train
from neural_em.experiments.evaluation import Evaluation, Evaluator, stored
from neural_em.runs import checkpoint, find_runs
from neural_em.runs.record import Record

LOSSES = {  # validation loss of each epoch
    "single": [458.3851318, 448.6951, 440.4588],
    "seeds/seed-0": [458.3851318, 448.6951, 440.4588],
    "seeds/seed-1": [455.6306, 446.1367, 437.9865],
    "stages/stage-2": [453.0369, 448.4259, 444.1593],
}


@pytest.fixture
def old(tmp_path: Path) -> Callable[[str], Path]:
    """Copies one of them, to go on with."""
    torch.set_num_threads(1)
    return lambda name: Path(shutil.copytree(Path(__file__).parent / "old" / name, tmp_path / name))


@pytest.mark.parametrize("name", ["single", "seeds", "stages"])
def test_it_goes_on_to_its_end_and_is_evaluated(name: str, old: Callable[[str], Path]) -> None:
    folder = old(name)
    experiment, seeds = reopen(folder)
    outcomes = train(experiment, folder, seeds, "cpu", resume=True, quiet=True)
    assert [outcome.stopped for outcome in outcomes] == ["epochs"] * seeds
    for part, losses in LOSSES.items():
        if part.startswith(name):
            rows = list(csv.DictReader((folder.parent / part / "metrics.csv").open()))
            assert [float(row["validation_loss"]) for row in rows] == pytest.approx(losses, rel=1e-4)
            assert json.loads((folder.parent / part / "summary.json").read_text())["finished"] is True
            assert len(list((folder.parent / part / "checkpoints" / "step-00000009-validated").iterdir())) == 2
    runs = find_runs([folder]).runs
    assert len(runs) == seeds
    for run in runs:
        result = Evaluator("cpu").result(run, Evaluation())
        assert result.sequences == 10
        assert result.last_step["ami_max"].mean is not None
        assert result.note == ""


def test_what_it_says_of_itself_is_read(old: Callable[[str], Path]) -> None:
    record = Record.read(old("single"))
    assert (record.finished, record.stopped, record.epochs, record.best_epoch) == (False, "max-minutes", 1, 1)
    assert record.best is not None
    assert record.best.validation_loss == pytest.approx(458.3851318)
    assert "nearly uniform" in record.warnings[0]
    assert record.shortfall == "training is not finished: max-minutes after 1 epochs"
    seeds = Record.read(old("seeds"))
    assert (seeds.seeds, list(seeds.runs)) == (2, ["seed-0", "seed-1"])
    stages = Record.read(old("stages"))
    assert [(name, each.finished) for name, each in stages.stages.items()] == [("stage-1", True), ("stage-2", False)]


def test_what_is_read_is_written_as_it_was(old: Callable[[str], Path]) -> None:
    """Every field of the summary, under its name, comes back."""
    for path in (path for name in ("single", "seeds", "stages") for path in old(name).rglob("summary.json")):
        before = json.loads(path.read_text())
        Record.read(path.parent).write(path.parent)
        assert json.loads(path.read_text()) == before


def test_its_evaluation_is_found_again(old: Callable[[str], Path]) -> None:
    run = find_runs([old("seeds")]).runs[0]
    result = stored(run, Evaluation())
    assert result is not None
    assert result.last_step["ami_max"].mean == pytest.approx(0.00928961)
    assert run.start.packages["torch"].startswith("2.13.0")
    assert run.start.commit == "811280a7997f2a0a9203ce26111aa08ebb357ca3"


def test_a_checkpoint_in_several_files_is_read_whole(old: Callable[[str], Path]) -> None:
    """Its weights are those of the weight file that was written at the same moment."""
    folder = old("single")
    (path,) = (folder / "checkpoints").iterdir()
    assert len(list(path.glob("shard-*.safetensors"))) == 12
    snapshot = checkpoint.read(path)
    assert (snapshot.progress.epoch, snapshot.progress.step) == (1, 1)
    last = neural_em.load(folder / "last.safetensors").state_dict()
    assert snapshot.weights.keys() == last.keys()
    assert all(torch.equal(snapshot.weights[name], last[name]) for name in last)


def test_the_size_of_its_files_is_no_setting_any_more() -> None:
    with pytest.raises(neural_em.NeuralEMError, match=r"unknown field: .* got 'shard_megabytes'"):
        build("flying-shapes", ["training.shard_megabytes=5"])
