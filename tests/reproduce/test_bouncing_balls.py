"""The page about R-NEM from records made by hand: means over seeds, rollouts by step, and whether they compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neural_em.presets import build
from neural_em.reproduce.bouncing_balls import FOUR, TRAININGS, RelationalReproduction
from neural_em.reproduce.records import TrainingRecord
from tests.reproduce.made import record, row, trained


def evaluated(ari: float, error: float, relational: float, ahead: list[float]) -> dict[str, Any]:
    """One evaluation; the last step's values are the means' and a half."""

    def parts(more: float) -> dict[str, Any]:
        values = {"ari": ari, "upper_bound": error, "relational": relational, "relational_later": 2 * relational}
        return {name: {"mean": value + more, "quartiles": [0, 0, 0]} for name, value in values.items()}

    curve = dict.fromkeys(("mean", "lower_quartile", "upper_quartile"), ahead)
    repeated = {part: [100.0 * (n + 1) for n in range(len(ahead))] for part in curve}
    return {
        "mean_over_steps": parts(0), "last_step": parts(0.5), "sequences": 10_000, "steps": 30,
        "rollout": {"upper_bound": curve, "repeated": repeated},
    }  # fmt: skip


def run(number: float, **changes: Any) -> dict[str, Any]:
    ahead = [10 * number + step for step in range(20)]
    scores = {FOUR: evaluated(number / 10, 20 * number, 5 * number, ahead)}
    lengths = {"epochs": 20, "stage_epochs": (10, 20)}
    return trained(stopped="epochs", evaluations=scores, settings={"data.train_size": 20_000}, **lengths, **changes)


def page(tmp_path: Path, *records: TrainingRecord) -> str:
    work = RelationalReproduction(tmp_path / "runs", tmp_path / "out")
    return work.written({each.training: each for each in records})


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    text = page(tmp_path, record("bouncing-balls", run(1), run(2), run(3)), record("bouncing-balls-rnn-em", run(4)))
    cells = ["0.200 ± 0.100", "0.700 ± 0.100", "40.00 ± 20.00", "40.50 ± 20.00", "10.00 ± 5.00", "20.00 ± 10.00"]
    four = text.split("## 4 balls")[1].split("## 6 to 8 balls")[0]
    assert row(four, "| R-NEM ", "0.200")[1:] == [*cells, "10,000", "3"]
    assert row(four, "| RNN-EM ", "0.400")[1:] == ["0.400", "0.900", "80.00", "80.50", "20.00", "40.00", "10,000", "1"]
    assert "*missing*" in row(four, "| RNN (K = 1) ")
    # the first step's errors are 10, 20, 30; the mean of steps 1 to 10 is 4.5 more, of 1 to 20 9.5
    steps = [line for line in four.splitlines() if "400.00" in line or line.strip("| ").startswith("4 ")]
    assert [cell.strip() for cell in steps[0].strip("|").split("|")] == ["4", "23.00 ± 10.00", "43.00", "400.00"]
    assert row(four, "mean of 1 to 10")[1:] == ["24.50 ± 10.00", "44.50", "550.00"]
    assert row(four, "mean of 1 to 20")[1:] == ["29.50 ± 10.00", "49.50", "1050.00"]


def test_what_no_run_has_is_no_column(tmp_path: Path) -> None:
    """Runs that were scored before the error a frame later was measured."""
    old = run(1)
    for part in ("mean_over_steps", "last_step"):
        del old["evaluations"][FOUR][part]["relational_later"]
    titles = ["model", "ARI, mean over steps", "ARI, last step", "BCE, mean over steps", "BCE, last step",
              "relational BCE, mean over steps", "a frame later", "sequences", "runs"]  # fmt: skip
    for runs, wanted in (([old], titles[:6] + titles[7:]), ([old, run(2)], titles)):
        text = page(tmp_path, record("bouncing-balls", *runs))
        four = text.split("## 4 balls")[1].split("## 6 to 8 balls")[0]
        assert row(four, "| model ") == wanted
        assert len(row(four, "| R-NEM ", "10,000")) == len(wanted)


def test_it_says_how_long_all_were_trained(tmp_path: Path) -> None:
    text = page(tmp_path, record("bouncing-balls", run(1)), record("bouncing-balls-rnn-em", run(4)))
    assert "Training: bouncing-balls, bouncing-balls-rnn-em: 10 + 20 epochs of 20,000 sequences." in text
    assert "training.epochs=10], [training.epochs=20]]' --precision bf16 --set data.train_size=20000 --seeds 1" in text
    assert "not all trained alike" not in text


@pytest.mark.parametrize(
    "change", [{"stage_epochs": (10, 21)}, {"settings": {}}, {"settings": {"training.learning_rate": 0.001}}]
)
def test_it_says_when_they_do_not_compare(tmp_path: Path, change: dict[str, Any]) -> None:
    other = record("bouncing-balls-rnn-em", {**run(4), **change})
    text = page(tmp_path, record("bouncing-balls", run(1)), other)
    assert "**The models were not all trained alike; their numbers do not compare.**" in text
    assert "bouncing-balls: 10 + 20 epochs of 20,000 sequences;" in text


def test_nothing_was_trained(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "No model has been trained yet." in text
    assert text.count("*missing*") == 7  # three models twice, and the curtain


@pytest.mark.parametrize("name", TRAININGS)
def test_thirty_real_steps_and_twenty_more_fit_into_the_data(name: str) -> None:
    """51 frames, as in training."""
    training = TRAININGS[name]
    for evaluation in training.evaluations.values():
        assert (evaluation.steps, evaluation.rollout) == (30, 20)
        assert evaluation.steps + evaluation.rollout + 1 == build(training.preset).data.frames
