"""Ours beside the paper's: for every number of the paper, what the runs that there are give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from neural_em.evaluation import MeanDeviation
from neural_em.report.tables import MISSING
from neural_em.reproduce.paper import COMPARISONS, NUMBERS, Number
from neural_em.reproduce.plan import TRAININGS
from neural_em.reproduce.records import Scores, SeedRecord, TrainingRecord, mean_of

_OF_A_RUN = ("epochs", "stage_epochs", "best_epoch", "stopped", "seconds", "device", "commit")


@dataclass(frozen=True)
class Cell:
    """One number of the paper and ours; no run, no number."""

    paper: Number
    seeds: tuple[str, ...]  # the runs that were evaluated for it
    unfinished: tuple[str, ...]  # those of them whose training is not finished
    last_step: MeanDeviation  # over these runs, at the last step, which is what is compared
    mean_over_steps: MeanDeviation  # the same for each sequence's mean over all steps
    baselines: Mapping[str, float | None]  # means of groupings without learning on the same data
    sequences: int | None = None  # evaluated in each run
    command: str = ""  # the evaluation as a command, after the training's
    runs: tuple[Mapping[str, Any], ...] = ()  # of each its seed, epochs, why it stopped, time, device and commit

    @property
    def missing(self) -> bool:
        return self.last_step.mean is None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missing": self.missing}


def cells(records: Mapping[str, TrainingRecord]) -> list[Cell]:
    """One for every number of the paper, in its order, then those beyond it that were run; records by training."""
    runs = {name: record.runs for name, record in records.items()}
    found = [_cell(number, runs.get(number.training, {})) for number in (*NUMBERS, *COMPARISONS)]
    return [cell for cell in found if cell.paper in NUMBERS or not cell.missing]


def _cell(paper: Number, runs: Mapping[str, SeedRecord]) -> Cell:
    found: dict[str, Scores] = {}
    for seed, run in runs.items():
        scores = run.evaluations.get(paper.evaluation)
        if scores is not None and mean_of(scores.last_step, paper.score) is not None:
            found[seed] = scores
    first = next(iter(found.values()), None)
    return Cell(
        paper,
        tuple(found),
        tuple(seed for seed in found if not runs[seed].finished),
        MeanDeviation.of(mean_of(each.last_step, paper.score) for each in found.values()),
        MeanDeviation.of(mean_of(each.mean_over_steps, paper.score) for each in found.values()),
        {} if first is None else {name: mean_of(scores, paper.score) for name, scores in first.baselines.items()},
        None if first is None else first.sequences,
        f"nem evaluate RUN {TRAININGS[paper.training].evaluations[paper.evaluation].options()}".rstrip(),
        tuple({"seed": seed, **{name: getattr(runs[seed], name) for name in _OF_A_RUN}} for seed in found),
    )


def number(value: MeanDeviation) -> str:
    """Mean and deviation over runs, as text."""
    if value.mean is None:
        return MISSING
    digits = 3 if abs(value.mean) < 10 else 2
    text = f"{value.mean:.{digits}f}"
    return text if value.deviation is None else f"{text} ± {value.deviation:.{digits}f}"


def over_runs(values: Iterable[float | None]) -> str:
    """The same of one value for each run."""
    return number(MeanDeviation.of(values))
