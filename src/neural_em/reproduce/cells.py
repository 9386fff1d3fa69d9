"""Ours beside the paper's: for every number of the paper, what the runs that there are give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from neural_em.evaluation import MeanDeviation
from neural_em.reproduce.paper import COMPARISONS, NUMBERS, Number
from neural_em.reproduce.plan import TRAININGS
from neural_em.reproduce.records import Mean, Scores, SeedRecord, TrainingRecord

_OF_A_RUN = ("epochs", "stage_epochs", "best_epoch", "stopped", "seconds", "device", "commit")


@dataclass(frozen=True)
class Cell:
    """One number of the paper and ours; no run, no number.

    Attributes:
        paper: the paper's.
        seeds: the runs that were evaluated for it.
        unfinished: those of them whose training is not finished.
        last_step: mean and deviation over these runs at the last step, which is what is compared.
        mean_over_steps: the same for each sequence's mean over all steps.
        baselines: means of groupings without learning on the same data.
        sequences: evaluated in each run.
        command: the evaluation as a command, after the training's.
        runs: of each run its seed, epochs, why it stopped, time, device and commit.
    """

    paper: Number
    seeds: tuple[str, ...]
    unfinished: tuple[str, ...]
    last_step: MeanDeviation
    mean_over_steps: MeanDeviation
    baselines: Mapping[str, float | None]
    sequences: int | None = None
    command: str = ""
    runs: tuple[Mapping[str, Any], ...] = ()

    @property
    def missing(self) -> bool:
        """Whether no run gave a number."""
        return self.last_step.mean is None

    def to_dict(self) -> dict[str, Any]:
        """The cell as plain values."""
        return {**asdict(self), "missing": self.missing}


def cells(records: Mapping[str, TrainingRecord]) -> list[Cell]:
    """One for every number of the paper, in its order, then those beyond it that were run; records by training."""
    runs = {name: record.runs for name, record in records.items()}
    found = [_cell(number, runs.get(number.training, {})) for number in (*NUMBERS, *COMPARISONS)]
    return [cell for cell in found if cell.paper in NUMBERS or not cell.missing]


def _cell(number: Number, runs: Mapping[str, SeedRecord]) -> Cell:
    found: dict[str, Scores] = {}
    for seed, run in runs.items():
        scores = run.evaluations.get(number.evaluation)
        if scores is not None and _mean(scores.last_step, number.score) is not None:
            found[seed] = scores
    first = next(iter(found.values()), None)
    return Cell(
        number,
        tuple(found),
        tuple(seed for seed in found if not runs[seed].finished),
        MeanDeviation.of(_mean(each.last_step, number.score) for each in found.values()),
        MeanDeviation.of(_mean(each.mean_over_steps, number.score) for each in found.values()),
        {} if first is None else {name: _mean(scores, number.score) for name, scores in first.baselines.items()},
        None if first is None else first.sequences,
        f"nem evaluate RUN {TRAININGS[number.training].evaluations[number.evaluation].options()}".rstrip(),
        tuple({"seed": seed, **{name: getattr(runs[seed], name) for name in _OF_A_RUN}} for seed in found),
    )


def _mean(scores: Mapping[str, Mean], name: str) -> float | None:
    return scores[name].mean if name in scores else None
