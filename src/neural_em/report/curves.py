"""What curves are drawn from: scores per step with their quartiles, and the rows a training run logs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_em.errors import refuse
from neural_em.evaluation import Curve

LOSS, SCORE = re.compile(r"loss"), re.compile(r"(^|[^a-z])(ami|ari)([^a-z]|$)")  # what logged columns are called
Metrics = Sequence[Mapping[str, Any]]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class StepCurve:
    """A score at each step: its mean over the data and the lower and upper quartile; a part of `Curve`."""

    mean: tuple[float | None, ...]
    lower_quartile: tuple[float | None, ...]
    upper_quartile: tuple[float | None, ...]

    def __post_init__(self) -> None:
        lengths = [len(part) for part in (self.mean, self.lower_quartile, self.upper_quartile)]
        if len(set(lengths)) > 1:
            refuse("curve", "as many quartiles as means", f"parts of {', '.join(map(str, lengths))} steps")


AnyCurve = Curve | StepCurve


def series(rows: Metrics, key: str) -> tuple[Values, Values]:
    """One logged number over epochs: the epochs and the values, leaving out rows without a finite number.

    Rows that do not say their epoch count from 1.
    """
    points = []
    for index, row in enumerate(rows, start=1):
        x, y = _number(row.get("epoch", index)), _number(row.get(key))
        if math.isfinite(x) and math.isfinite(y):
            points.append((x, y))
    array = np.array(sorted(points), np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def columns(rows: Metrics, names: re.Pattern[str]) -> list[str]:
    """The logged columns whose names fit and that hold a number somewhere, in the order they first come."""
    cells = (cell for row in rows for cell in row.items())
    return list(dict.fromkeys(key for key, value in cells if names.search(key.lower()) and np.isfinite(_number(value))))


def words(key: str) -> str:
    """A column's name for people: 'validation_ami_last' is 'validation AMI last'."""
    parts = re.split(r"[_/.\s]+", key)
    return " ".join(part.upper() if part.lower() in ("ami", "ari", "bce") else part for part in parts if part)


def _number(value: Any) -> float:
    """The value as a number; anything else, such as an empty cell of a CSV file, is NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
