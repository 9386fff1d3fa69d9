"""Tables in Markdown."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from neural_em.evaluation import MeanDeviation

MISSING = "–"
_NUMERIC = re.compile(rf"{MISSING}$|[-+]?[\d.]+(e[-+]?\d+)?\b")


def number(value: Any) -> str:
    """One value for a table: numbers rounded, None and NaN as a dash, text as it is."""
    if value is None or (isinstance(value, float | np.floating) and math.isnan(value)):
        return MISSING
    if isinstance(value, float | np.floating):
        size = abs(float(value))
        return f"{value:.3g}" if 0 < size < 0.001 or size >= 1e6 else f"{value:.3f}"
    return str(value)


def deviation(value: MeanDeviation) -> str:
    """Mean and deviation over runs."""
    if value.mean is None:
        return MISSING
    digits = 3 if abs(value.mean) < 10 else 2
    text = f"{value.mean:.{digits}f}"
    return text if value.deviation is None else f"{text} ± {value.deviation:.{digits}f}"


def over_runs(values: Iterable[float | None]) -> str:
    """The same of one value for each run."""
    return deviation(MeanDeviation.of(values))


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; the columns are padded so that the source reads as a table too.

    Columns that hold only numbers (or dashes) are aligned to the right. Bars and line breaks in a cell are escaped.
    """
    rows = [list(row) for row in rows]
    cells = [[_escape(number(cell)) for cell in row] for row in rows]
    lines = [[_escape(name) for name in header], *cells]
    columns = [[line[column] for line in lines] for column in range(len(header))]
    right = [bool(rows) and all(_NUMERIC.match(cell) for cell in column[1:]) for column in columns]
    widths = [max(3, *map(len, column)) for column in columns]
    rule = ["-" * (width - 1) + ":" if end else "-" * width for width, end in zip(widths, right, strict=True)]
    texts = (
        " | ".join(c.rjust(w) if end else c.ljust(w) for c, w, end in zip(line, widths, right, strict=True))
        for line in (lines[0], rule, *cells)
    )
    return "".join(f"| {text} |\n" for text in texts)


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def span(seconds: float | None) -> str:
    """A length of time, to about two digits."""
    if seconds is None:
        return MISSING
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def short_commit(commit: str | None) -> str | None:
    """Ten digits of a commit, and what follows it, such as that files were changed."""
    name, _, rest = (commit or "").partition(" ")
    return f"{name[:10]} {rest}".rstrip() or None
