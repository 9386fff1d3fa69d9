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

Metrics = Sequence[Mapping[str, Any]]
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepCurve:
    """A score per step: its mean over the data and the lower and upper quartile, each (T,)."""

    mean: Values
    lower: Values
    upper: Values

    def __post_init__(self) -> None:
        mean = np.asarray(self.mean, np.float64)
        if mean.ndim != 1 or len(mean) == 0:
            refuse("curve", "one value a step", f"the shape {mean.shape}")
        for name in ("mean", "lower", "upper"):
            values = np.asarray(getattr(self, name), np.float64)
            if values.shape != mean.shape:
                refuse(f"curve: {name}", f"the shape {mean.shape}", values.shape)
            object.__setattr__(self, name, values)

    @property
    def steps(self) -> NDArray[np.int64]:
        """The steps, counted from 1."""
        return np.arange(1, len(self.mean) + 1)


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


def loss_keys(rows: Metrics) -> list[str]:
    """The logged columns that are losses, in the order they first come."""
    return _keys(rows, r"loss")


def score_keys(rows: Metrics) -> list[str]:
    """The logged columns that are AMI or ARI scores, in the order they first come."""
    return _keys(rows, r"(^|[^a-z])(ami|ari)([^a-z]|$)")


def words(key: str) -> str:
    """A column's name for people: 'validation_ami_last' is 'validation AMI last'."""
    parts = re.split(r"[_/.\s]+", key)
    return " ".join(part.upper() if part.lower() in ("ami", "ari", "bce") else part for part in parts if part)


def _keys(rows: Metrics, pattern: str) -> list[str]:
    """The columns whose name fits the pattern and that hold a number somewhere."""
    cells = (cell for row in rows for cell in row.items())
    found = (key for key, value in cells if re.search(pattern, key.lower()) and math.isfinite(_number(value)))
    return list(dict.fromkeys(found))


def _number(value: Any) -> float:
    """The value as a number; anything else, such as an empty cell of a CSV file, is NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
