"""The paper's curves and bars, and those of a training run: numbers in, matplotlib figures out."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from neural_em.errors import refuse
from neural_em.evaluation import Curve

LOSS, SCORE = re.compile(r"loss"), re.compile(r"(^|[^a-z])(ami|ari)([^a-z]|$)")  # what logged columns are called
Metrics = Sequence[Mapping[str, Any]]
Values = NDArray[np.float64]
INK, SPINE, GRID = "#222222", "#888888", "#dddddd"
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")


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


class Line(NamedTuple):
    """One line of a chart: points x, y (n,), if given a band from lower to upper (n,), and how it is drawn."""

    name: str
    x: Any
    y: Any
    lower: Any = None
    upper: Any = None
    colour: int = 0
    dash: int = 0


def step_lines(curves: Mapping[str, AnyCurve | None]) -> list[Line]:
    """A line with its band for each run or model that has a curve, in the run's own colour."""
    lines = []
    for index, (name, curve) in enumerate(curves.items()):
        if curve is not None:
            parts = (curve.mean, curve.lower_quartile, curve.upper_quartile)
            mean, lower, upper = (np.array(part, np.float64) for part in parts)  # None becomes not-a-number
            lines.append(Line(name, np.arange(1, len(mean) + 1), mean, lower, upper, index, index // len(LINES)))
    return lines


def learning_lines(runs: Mapping[str, Metrics], names: re.Pattern[str]) -> list[Line]:
    """The columns whose names fit, over epochs; of several runs a colour each run and a dash each column."""
    keys = list(dict.fromkeys(key for rows in runs.values() for key in columns(rows, names)))
    return [
        Line(
            words(key) if len(runs) == 1 else f"{name}: {words(key)}",
            *series(rows, key),
            colour=run if len(runs) > 1 else column,
            dash=column,
        )
        for run, (name, rows) in enumerate(runs.items())
        for column, key in enumerate(keys)
    ]


def draw_lines(axes: Axes, lines: Sequence[Line], x_label: str, y_label: str = "", mark: int | None = None) -> None:
    """Draws lines over whole numbers; ``mark`` is the training length, named in the legend."""
    for line in lines:
        colour, dash = _colour(line.colour), DASHES[line.dash % len(DASHES)]
        if line.lower is not None:
            axes.fill_between(line.x, line.lower, line.upper, color=colour, alpha=0.2, linewidth=0)
        marker = "o" if len(line.x) == 1 else None
        axes.plot(line.x, line.y, color=colour, linestyle=dash, linewidth=2, marker=marker, label=line.name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _name(axes, x_label, y_label)
    if mark is not None and any(np.min(line.x) <= mark < np.max(line.x) for line in lines):
        axes.axvline(mark, color=INK, linewidth=1, linestyle=(0, (4, 3)), label=f"trained for {mark} steps")


def score_curve(curves: Mapping[str, AnyCurve], training_steps: int | None = None) -> Figure:
    """AMI per EM step, a curve for each run or model: mean and quartiles, with the training length marked."""
    figure, (axes,) = new_figure(5.4, 3.5)
    lines = step_lines(curves)
    draw_lines(axes, lines, "EM step", "AMI (max)", training_steps)
    axes.set_xlim(1, max(2, *(len(line.x) for line in lines)))
    lowest = min(float(np.nanmin(np.r_[line.lower, line.y, 0])) for line in lines)
    axes.set_ylim(lowest - 0.02 if lowest < 0 else 0, 1)
    axes.legend(
        frameon=False, fontsize=10, loc="lower right", title="mean, and lower to upper quartile", title_fontsize=9
    )
    return figure


def error_curves(curves: Mapping[str, Sequence[Sequence[float]]], x: str, y: str) -> Figure:
    """Errors by step: the mean over runs as a line, from the lowest to the highest run as a band.

    ``curves``: by model, each run's errors, all of one length; ``x`` and ``y`` say what steps and errors are.
    """
    figure, (axes,) = new_figure(5.4, 3.5)
    parts = {name: [part(runs, axis=0) for part in (np.mean, np.min, np.max)] for name, runs in curves.items()}
    draw_lines(axes, step_lines({name: StepCurve(*each) for name, each in parts.items()}), x, y)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=10, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return figure


def bce_figure(errors: Mapping[tuple[str, int], Sequence[float]]) -> Figure:
    """Next-step prediction error by number of objects: mean and deviation over runs as bars, each run as a dot.

    ``errors``: the runs' errors by model and number of objects; a pair that has none is marked 'no run'.
    """
    figure, (axes,) = new_figure(4.8, 3.5)
    models, objects = sorted({model for model, _ in errors}), sorted({count for _, count in errors})
    width = 0.8 / len(models)
    for index, name in enumerate(models):
        offset = (index - (len(models) - 1) / 2) * width
        for place, count in enumerate(objects):
            values = np.asarray(errors.get((name, count), ()), np.float64)
            x, text = place + offset, name if place == 0 else None
            if not len(values):
                axes.bar(x, 0, width * 0.92, color=_colour(index), label=text)
                axes.annotate(
                    "no run", (x, 0), (0, 3), textcoords="offset points", ha="center", rotation=90, fontsize=9
                )
                continue
            axes.bar(x, values.mean(), width * 0.92, color=_colour(index), alpha=0.85, label=text)
            if len(values) > 1:
                axes.errorbar(x, values.mean(), values.std(ddof=1), color=INK, capsize=4, linewidth=1.3)
                axes.plot(np.full(len(values), x), values, ".", color=INK, markersize=4, alpha=0.6)
    axes.set_xticks(range(len(objects)), [str(count) for count in objects])
    axes.set_ylim(bottom=0)
    _name(axes, "objects", "next-step BCE")
    axes.legend(frameon=False, fontsize=10, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return figure


def learning_curves(runs: Mapping[str, Metrics]) -> Figure:
    """Each run's losses and AMI or ARI scores over epochs, in two panels; one without any data says so."""
    figure, panels = new_figure(9.2, 3.6, 2)
    for axes, wanted, label in zip(panels, (LOSS, SCORE), ("loss", "score"), strict=True):
        lines = learning_lines(runs, wanted)
        draw_lines(axes, lines, "epoch", label)
        if not lines:
            axes.text(0.5, 0.5, f"no {label} was logged", transform=axes.transAxes, ha="center", color=INK)
        elif len(runs) == 1:
            axes.legend(frameon=False, fontsize=9, loc="best")
        else:  # a column's dash and a run's colour, not each of their pairs
            first = [line for line in lines if line.colour == 0]
            names = [line.name.removeprefix(f"{next(iter(runs))}: ") for line in first]
            dashes = [DASHES[line.dash % len(DASHES)] for line in first]
            handles = [Line2D([], [], color=INK, linestyle=d, label=n) for d, n in zip(dashes, names, strict=True)]
            handles += [Line2D([], [], color=_colour(run), linewidth=4, label=name) for run, name in enumerate(runs)]
            axes.legend(handles=handles, frameon=False, fontsize=9, loc="best")
    return figure


def new_figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches with panels side by side, in the style of all charts."""
    figure = Figure(figsize=(width, height), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.09)  # type: ignore[union-attr, call-arg]
    axes = [figure.add_subplot(1, panels, panel + 1) for panel in range(panels)]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.spines[["left", "bottom"]].set_color(SPINE)
        one.tick_params(colors=INK, labelsize=10)
        one.grid(axis="y", color=GRID, linewidth=0.8)
        one.set_axisbelow(True)
    return figure, axes


def _name(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=11, color=INK)
    axes.set_ylabel(y, fontsize=11, color=INK)


def _colour(index: int) -> str:
    return LINES[index % len(LINES)]
