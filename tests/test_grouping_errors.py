"""``tools/grouping_errors.py``: what it counts by hand, and its scores against ``nem evaluate``."""

from __future__ import annotations

import sys

import pytest
import torch

from neural_em.experiments.evaluation import Evaluation, Evaluator
from neural_em.experiments.runs import find_runs
from tools import grouping_errors

SEQUENCES = 24


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


def test_every_sequence_is_in_one_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tool", "static-shapes", "--size", f"{SEQUENCES}", "--device", "cpu"])
    grouping_errors.main()
    first, titles, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith(f"static-shapes: {SEQUENCES} sequences, AMI 0.")
    assert len(rows) == len(grouping_errors.OVERLAPS)
    column = titles.index("sequences") + len("sequences")
    assert sum(int(row[:column].split()[-1]) for row in rows) == SEQUENCES
