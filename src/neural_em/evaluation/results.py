"""What an evaluation found, as plain data: means, quartiles and curves, never just one number; as JSON and as CSV."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neural_em import config as configs
from neural_em import files
from neural_em.errors import NeuralEMError, refuse, show
from neural_em.model.inference import best_start

FORMAT = 1
MAX_BYTES = 1 << 28  # a result file larger than this is not one of ours
AT_COLLISIONS = ("relational", "relational_later")
LOSSES, SCORES = ("total", "intra", "inter", "upper_bound"), ("ami_max", "ami_arithmetic", "ari")
QUARTILES = (0.25, 0.5, 0.75)
COLUMNS = ("section", "score", "step", "mean", "lower_quartile", "median", "upper_quartile", "count")


@dataclass(frozen=True)
class Summary:
    """Mean and quartiles of the values that are numbers, and how many these are; ``None`` where there is none."""

    mean: float | None
    lower_quartile: float | None
    median: float | None
    upper_quartile: float | None
    count: int

    @classmethod
    def of(cls, values: np.ndarray) -> Summary:
        known = values[~np.isnan(values)]
        if known.size == 0:
            return cls(None, None, None, None, 0)
        with np.errstate(invalid="ignore"):  # between infinities there is no quartile
            lower, median, upper = (_finite(quartile) for quartile in np.quantile(known, QUARTILES))
        return cls(_finite(known.mean()), lower, median, upper, known.size)


@dataclass(frozen=True)
class Curve:
    """A summary for each step."""

    mean: tuple[float | None, ...]
    lower_quartile: tuple[float | None, ...]
    median: tuple[float | None, ...]
    upper_quartile: tuple[float | None, ...]
    count: tuple[int, ...]

    @classmethod
    def of(cls, values: np.ndarray) -> Curve:
        """Curve of values (S,T,N) over T."""
        steps = [dataclasses.astuple(Summary.of(values[:, t])) for t in range(values.shape[1])]
        return cls(*zip(*steps, strict=True))

    def at(self, step: int) -> Summary:
        return Summary(*(getattr(self, field.name)[step] for field in dataclasses.fields(self)))


@dataclass(frozen=True)
class StartSpread:
    """How much the last step's score depends on the random start."""

    means: tuple[float | None, ...]  # the mean over the sequences for each start
    deviation: float | None  # sample standard deviation between a sequence's starts, averaged over the sequences
    lowest_loss: Summary  # the score of each sequence's start with the lowest loss

    @classmethod
    def of(cls, values: np.ndarray, loss: np.ndarray) -> StartSpread:
        """Spread of values (S,N), S > 1, whose starts have these losses (S,N)."""
        known = values[:, ~np.isnan(values).any(axis=0)]
        deviation = _finite(known.std(axis=0, ddof=1).mean()) if known.size else None
        lowest = best_start(torch.from_numpy(loss)).numpy()
        chosen = np.take_along_axis(values, lowest[None], axis=0)[0]
        return cls(tuple(Summary.of(start).mean for start in values), deviation, Summary.of(chosen))


@dataclass(frozen=True)
class Readout:
    """How well a property of the objects can be read from theta."""

    score: str  # ``R²`` or ``accuracy``, which the next two are
    linear: float  # by a linear readout
    network: float  # by a small network
    objects: int  # how many were scored


@dataclass(frozen=True)
class Result:
    """Everything one evaluation found; sequences and starts are pooled unless a field says otherwise.

    Scores are ``ami_max``, ``ami_arithmetic``, ``ari``, ``iou`` (matched, mean over objects) and ``confidence``;
    losses are ``total``, ``intra``, ``inter`` and ``upper_bound`` (next-step prediction error), and of data with
    collisions its part in the pixels of objects that have just met (``relational``), and there in the next frame.
    """

    settings: Mapping[str, Any]  # the evaluation's config
    note: str  # what a reader has to know about the data
    sequences: int  # how many were evaluated
    steps: int  # EM steps on each
    has_groups: bool  # whether the true groups were known; without them there are losses and confidence only
    unscored_images: int  # frames, of sequences x steps, in which nothing is scored; they are in no mean
    unscored_sequences: int  # sequences in which nothing is scored in any frame
    curves: Mapping[str, Curve]  # each step
    last_step: Mapping[str, Summary]  # the last step
    mean_over_steps: Mapping[str, Summary]  # each sequence's mean over its steps, the first ones included
    whole_sequence: Mapping[str, Summary]  # all steps of a sequence as one image, where a swap of two components costs
    starts: Mapping[str, StartSpread]  # spread over the starts; empty for a single start
    baselines: Mapping[str, Mapping[str, Summary]]  # groupings without learning, on the last step's frames
    # last-step values of the first start, in the order of the data set's indices
    per_sequence: Mapping[str, tuple[float | None, ...]]
    # each step without input that follows, and as ``repeated`` the prediction error of the last real frame; grouping
    # scores are of the assignment to the model's own prediction. Empty where there was no rollout
    rollout: Mapping[str, Curve] = dataclasses.field(default_factory=dict)
    # scores of the last step that count the background as a group too; of data without overlaps
    with_background: Mapping[str, Summary] = dataclasses.field(default_factory=dict)
    # the last step of the sequences with so many objects, where the number varies
    by_objects: Mapping[str, Mapping[str, Summary]] = dataclasses.field(default_factory=dict)
    # what can be read from theta, by the property's name; empty where it was not asked for
    probe: Mapping[str, Readout] = dataclasses.field(default_factory=dict)

    @property
    def rollout_steps(self) -> int:
        """Steps without input; none where the settings are older than rollouts."""
        steps: int = self.settings.get("rollout", 0)
        return steps

    def examples(self) -> dict[str, int]:
        """Indices of the best, the typical (in the middle) and the worst sequence by the last step.

        They are chosen by AMI(max), or by the smallest loss where there are no groups.
        """
        score = "ami_max" if self.has_groups else "total"
        values = np.array([np.nan if value is None else value for value in self.per_sequence[score]])
        if np.isnan(values).all():
            raise NeuralEMError(f"{score}: no sequence has a value")
        values = values if self.has_groups else -values
        order = np.argsort(values, kind="stable")[: np.sum(~np.isnan(values))]  # NaN comes last
        return {"best": int(order[-1]), "typical": int(order[len(order) // 2]), "worst": int(order[0])}

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """All summaries in one long table; see COLUMNS. Steps count from 1."""
        for section, curves in (("step", self.curves), ("rollout", self.rollout)):
            for name, curve in curves.items():
                for step in range(len(curve.mean)):
                    yield (section, name, step + 1, *dataclasses.astuple(curve.at(step)))
        sections = {
            "last step": self.last_step,
            "mean over steps": self.mean_over_steps,
            "whole sequence": self.whole_sequence,
            "start with the lowest loss": {name: spread.lowest_loss for name, spread in self.starts.items()},
            "with background": self.with_background,
            **{f"objects: {number}": scores for number, scores in self.by_objects.items()},
            **{f"baseline: {name}": scores for name, scores in self.baselines.items()},
        }
        for section, summaries in sections.items():
            for name, summary in summaries.items():
                yield (section, name, None, *dataclasses.astuple(summary))


def to_dict(result: Result) -> dict[str, Any]:
    """The result as plain dictionaries and lists, ready for JSON."""
    return {"format": FORMAT, **dataclasses.asdict(result)}


def from_dict(values: Mapping[str, Any], where: str = "result") -> Result:
    """The result that `to_dict` wrote."""
    if not isinstance(values, Mapping) or values.get("format") != FORMAT:
        got = values.get("format") if isinstance(values, Mapping) else type(values).__name__
        refuse(where, f"an evaluation result of format {FORMAT}", f"{got!r}")
    try:
        result = configs.from_dict(Result, values, leave_out="unknown")
        _check(result)
        return result
    except NeuralEMError as error:
        raise NeuralEMError(f"{where}: not a whole evaluation result: {error}") from None


def write_json(result: Result, path: str | os.PathLike[str]) -> None:
    """Writes the whole result; the file is there whole or not at all."""
    # one field a line: ten thousand sequences' values are not ten thousand lines
    fields = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in to_dict(result).items())
    files.write_whole(path, ("{\n" + ",\n".join(fields) + "\n}\n").encode())


def read_json(path: str | os.PathLike[str]) -> Result:
    """Reads what `write_json` wrote."""
    return from_dict(files.read_json(Path(path), MAX_BYTES), str(path))


def _check(result: Result) -> None:
    """Refuses a result whose parts do not fit together: whoever draws it need not look again."""
    if not isinstance(result.settings.get("made", {}), Mapping):
        refuse("settings.made", "a mapping", show(result.settings["made"]))
    if type(result.rollout_steps) is not int:
        refuse("settings.rollout", "a number of steps", show(result.rollout_steps))
    lengths = {"curves": result.steps, "rollout": result.rollout_steps}
    for section, steps in lengths.items():
        for name, curve in getattr(result, section).items():
            lengths_found = {len(getattr(curve, field.name)) for field in dataclasses.fields(curve)}
            if lengths_found != {steps}:
                refuse(f"{section}.{name}", f"{steps} steps", " and ".join(map(str, sorted(lengths_found))))
    for name, column in result.per_sequence.items():
        if len(column) != result.sequences:
            refuse(f"per_sequence.{name}", f"{result.sequences} sequences", len(column))
    known = LOSSES if not result.has_groups else (*LOSSES, *SCORES)
    sections = ["curves", "last_step", "mean_over_steps", "per_sequence"]
    for section in sections + (["rollout"] if result.rollout_steps else []):
        if missing := [name for name in known if name not in getattr(result, section)]:
            raise NeuralEMError(f"{section}: {missing[0]} is missing")


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
