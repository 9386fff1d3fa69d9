"""``tools/grouping_errors.py``: what it counts by hand, and its scores against ``nem evaluate``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

from neural_em import NeuralEM, pretrained, save
from neural_em.experiments.evaluation import Evaluation, Evaluator
from neural_em.model import NoiseConfig
from neural_em.runs.find import find_runs
from tools import grouping_errors

SEQUENCES = 24
MNIST = Path(__file__).parent / "data" / "mnist"


def test_the_faults_of_tables_made_by_hand() -> None:
    """Rows are objects, columns components, entries pixels."""
    tables = torch.tensor(
        [
            [[9, 0, 0], [0, 9, 0], [0, 0, 9]],  # each alone
            [[9, 0, 0], [8, 1, 0], [0, 0, 9]],  # two in one
            [[5, 4, 0], [0, 0, 9], [0, 9, 0]],  # the first torn, its largest part alone
            [[9, 0, 0], [0, 9, 0], [0, 0, 0]],  # the third is hidden
            [[5, 4, 0], [9, 0, 0], [0, 0, 0]],  # both faults
        ]
    )
    shared, torn = grouping_errors._faults(tables)
    assert shared.tolist() == [False, True, False, False, True]
    assert torn.tolist() == [False, False, True, False, True]


@pytest.mark.parametrize("steps", [None, 5])
def test_the_scores_are_those_of_an_evaluation(steps: int | None) -> None:
    (run,) = find_runs(["static-shapes"]).runs
    evaluation = Evaluation(split="validation", size=SEQUENCES, steps=steps)
    overlap, score, _, _ = grouping_errors._measured(run, evaluation, 0, "cpu")
    expected = Evaluator("cpu").result(run, evaluation).last_step["ami_max"].mean
    assert float(score.mean()) == pytest.approx(expected, abs=1e-6)
    assert 0 < int((overlap > 0).sum()) < SEQUENCES


def test_without_noise_the_scores_are_those_of_a_model_that_has_none(tmp_path: Path) -> None:
    known = pretrained("static-shapes")
    quiet = NeuralEM(dataclasses.replace(known.config, noise=NoiseConfig()))
    quiet.load_state_dict(known.state_dict())
    save(quiet, tmp_path / "quiet.safetensors")
    (run,) = find_runs(["static-shapes"]).runs
    (other,) = find_runs([str(tmp_path / "quiet.safetensors")], preset="static-shapes").runs
    evaluation = Evaluation(split="validation", size=SEQUENCES, components=4)
    expected = Evaluator("cpu").result(other, evaluation).last_step["ami_max"].mean
    scores = [grouping_errors._measured(run, evaluation, 0, "cpu", noise)[1].mean() for noise in (True, False)]
    assert float(scores[1]) == pytest.approx(expected, abs=1e-6)
    assert scores[0] != scores[1]


def test_every_sequence_is_in_one_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tool", "static-shapes", "--size", f"{SEQUENCES}", "--device", "cpu"])
    grouping_errors.main()
    first, titles, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith(f"static-shapes: {SEQUENCES} sequences, AMI 0.")
    assert len(rows) == len(grouping_errors.OVERLAPS)
    column = titles.index("sequences") + len("sequences")
    assert sum(int(row[:column].split()[-1]) for row in rows) == SEQUENCES


def test_the_options_of_an_evaluation_reach_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ("data.threshold=0.25", "data.overlap_above=0.1", f"data.mnist={MNIST}")
    (run,) = find_runs(["flying-mnist"]).runs
    evaluation = Evaluation(steps=8, split="validation", static=True, size=SEQUENCES, changes=changes)
    expected = Evaluator("cpu").result(run, evaluation).last_step["ami_max"].mean
    options = ["--static", "--steps", "8", *(word for change in changes for word in ("--set", change))]
    monkeypatch.setattr(sys, "argv", ["tool", run.name, "--size", f"{SEQUENCES}", "--device", "cpu", *options])
    grouping_errors.main()
    printed = float(capsys.readouterr().out.partition("AMI ")[2].partition(";")[0])
    assert printed == pytest.approx(expected, abs=6e-4)  # it prints three digits


def test_the_shared_pixels_are_those_painted_twice() -> None:
    """In frame 0 of still digits and in the last of flying ones, also where the digits are grey."""
    (run,) = find_runs(["flying-mnist"]).runs
    for static in (True, False):
        changes = ("data.threshold=0.25", f"data.mnist={MNIST}")
        evaluation = Evaluation(steps=2, split="validation", static=static, size=SEQUENCES, changes=changes)
        overlap, *_ = grouping_errors._measured(run, evaluation, 0, "cpu")
        scenes = evaluation.data_config(run).scenes("validation", run.experiment.data_seed)
        painted = [part.overlaps[:, -1] for _, part in scenes.sequences(torch.arange(SEQUENCES))]
        assert overlap.tolist() == torch.cat(painted).flatten(1).sum(dim=1).tolist()
        assert overlap.any()
