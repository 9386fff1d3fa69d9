"""The paper's curves and bars, and those of a training run: numbers in, matplotlib figures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from neural_em.errors import refuse
from neural_em.report.curves import Rows, StepCurve, loss_keys, score_keys, series, words

INK = "#222222"
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
MARKERS = "osD^vP*"
LAST = 4  # growth is looked at over the last factor of four, where fixed costs are small


def score_curve(curves: Mapping[str, StepCurve], training_steps: int | None = None, label: str = "AMI (max)") -> Figure:
    """A score per EM step: the mean as a line, the quartiles as a band; the training length marked.

    Args:
        curves: one curve a run or model, by name.
        training_steps: how many steps the model was trained for; or None.
        label: what the score is.
    """
    if not curves:
        refuse("curves", "at least one", "none")
    figure, (axes,) = _figure(5.4, 3.5)
    for index, (name, curve) in enumerate(curves.items()):
        axes.fill_between(curve.steps, curve.lower, curve.upper, color=_colour(index), alpha=0.2, linewidth=0)
        axes.plot(curve.steps, curve.mean, color=_colour(index), linestyle=_dash(index), linewidth=2, label=name)
    longest = max(len(curve.mean) for curve in curves.values())
    axes.set_xlim(1, max(2, longest))
    lowest = min(float(np.nanmin(np.r_[curve.lower, curve.mean, 0])) for curve in curves.values())
    axes.set_ylim(lowest - 0.02 if lowest < 0 else 0, 1)
    if training_steps is not None:
        axes.axvline(training_steps, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"trained for {training_steps} steps", (training_steps, 0.0), xytext=(4, 5), textcoords="offset points",
            fontsize=9, color=INK, rotation=90, va="bottom",
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _name(axes, "EM step", label)
    axes.legend(
        frameon=False, fontsize=10, loc="lower right", title="mean, and lower to upper quartile", title_fontsize=9
    )
    return figure


def error_curves(curves: Mapping[str, Sequence[Sequence[float]]], x: str, y: str) -> Figure:
    """Errors by step: the mean over runs as a line, from the lowest to the highest run as a band.

    Args:
        curves: by model, each run's errors, all of one length.
        x: what the steps are.
        y: what the error is.
    """
    figure, (axes,) = _figure(5.4, 3.5)
    for index, (name, runs) in enumerate(curves.items()):
        errors = np.asarray(runs, np.float64)  # (R,T)
        steps = np.arange(1, errors.shape[1] + 1)
        axes.fill_between(steps, errors.min(axis=0), errors.max(axis=0), color=_colour(index), alpha=0.2, linewidth=0)
        axes.plot(steps, errors.mean(axis=0), color=_colour(index), linewidth=2, label=name)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _name(axes, x, y)
    axes.legend(frameon=False, fontsize=10, loc="best")
    return figure


def bce_figure(objects: Sequence[int], errors: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """Next-step prediction error by number of objects: mean and deviation over runs as bars, each run as a dot.

    Args:
        objects: the numbers of objects, such as (3, 4, 5).
        errors: by model, one list of the runs' errors for each number of objects; an empty list is marked 'no run'.
    """
    if not errors or any(len(values) != len(objects) for values in errors.values()):
        refuse(
            "errors", f"one list of runs for each of {list(objects)} objects", {k: len(v) for k, v in errors.items()}
        )
    figure, (axes,) = _figure(4.8, 3.5)
    width = 0.8 / len(errors)
    for index, (name, cells) in enumerate(errors.items()):
        offset = (index - (len(errors) - 1) / 2) * width
        for place, cell in enumerate(cells):
            values = np.asarray(cell, np.float64)
            if not np.isfinite(values).all():
                refuse(f"errors of {name}", "finite numbers", values.tolist())
            x, text = place + offset, name if place == 0 else None
            if not len(values):
                axes.bar(x, 0, width * 0.92, color=_colour(index), label=text)
                axes.annotate(
                    "no run", (x, 0), (0, 3), textcoords="offset points", ha="center", rotation=90, fontsize=9
                )
                continue
            spread = values.std(ddof=1) if len(values) > 1 else None
            axes.bar(x, values.mean(), width * 0.92, color=_colour(index), alpha=0.85, label=text)
            if spread is not None:
                axes.errorbar(x, values.mean(), spread, color=INK, capsize=4, linewidth=1.3)
                axes.plot(np.full(len(values), x), values, ".", color=INK, markersize=4, alpha=0.6)
    axes.set_xticks(range(len(objects)), [str(count) for count in objects])
    axes.set_ylim(bottom=0)
    _name(axes, "objects", "next-step BCE")
    axes.legend(frameon=False, fontsize=10, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return figure


def learning_curves(runs: Mapping[str, Rows]) -> Figure:
    """Losses and AMI or ARI scores over epochs, one line a column and run; a panel without any data says so.

    Args:
        runs: by run, the logged rows; columns with 'loss', 'ami' or 'ari' in the name are drawn.
    """
    if not runs:
        refuse("runs", "at least one", "none")
    figure, panels = _figure(9.2, 3.6, 2)
    for axes, find, label in zip(panels, (loss_keys, score_keys), ("loss", "score"), strict=True):
        keys = list(dict.fromkeys(key for rows in runs.values() for key in find(rows)))
        for run, rows in enumerate(runs.values()):
            for column, key in enumerate(keys):
                x, y = series(rows, key)
                # several runs: a colour each, a dash each column; one run: both for each column
                style: dict[str, Any] = {
                    "color": _colour(run if len(runs) > 1 else column),
                    "linestyle": DASHES[column % 4],
                }
                axes.plot(x, y, linewidth=1.8, marker="o" if len(x) == 1 else None, **style)
        _name(axes, "epoch", label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if not keys:
            axes.text(0.5, 0.5, f"no {label} was logged", transform=axes.transAxes, ha="center", color=INK)
            continue
        handles = [
            Line2D(
                [], [], color=INK if len(runs) > 1 else _colour(column), linestyle=DASHES[column % 4], label=words(key)
            )
            for column, key in enumerate(keys)
        ]
        if len(runs) > 1:
            handles += [Line2D([], [], color=_colour(run), linewidth=4, label=name) for run, name in enumerate(runs)]
        axes.legend(handles=handles, frameon=False, fontsize=9, loc="best")
    return figure


def scaling_plot(measured: Mapping[str, tuple[Any, Any]], x: str = "size", y: str = "cost") -> Figure:
    """Cost against size on log-log axes, with the power over the last factor of four of each series in the legend.

    Args:
        measured: by series, sizes and costs, each (n,), all positive.
        x: what the size is, with its unit.
        y: what the cost is, with its unit.
    """
    if not measured:
        refuse("measured", "at least one series", "none")
    figure, (axes,) = _figure(5.2, 3.8)
    for index, (name, (sizes, costs)) in enumerate(measured.items()):
        sizes, costs = np.asarray(sizes, np.float64), np.asarray(costs, np.float64)
        if sizes.ndim != 1 or sizes.shape != costs.shape or len(sizes) == 0:
            refuse(name, "as many sizes as costs", f"the shapes {sizes.shape} and {costs.shape}")
        if not (np.isfinite(sizes) & np.isfinite(costs) & (sizes > 0) & (costs > 0)).all():
            refuse(name, "positive finite sizes and costs", "others")
        colour, text = _colour(index), name
        if len(np.unique(sizes)) > 1:
            power, constant = fitted_power(sizes, costs)
            ends = np.array([max(sizes.min(), sizes.max() / LAST), sizes.max()])
            axes.plot(ends, constant * ends**power, color=colour, linewidth=1.2, linestyle="--", alpha=0.8)
            text = f"{name}  (∝ size$^{{{power:.2f}}}$)"
        axes.plot(sizes, costs, MARKERS[index % len(MARKERS)], color=colour, markersize=6, label=text)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = np.unique(np.concatenate([np.asarray(sizes, np.float64) for sizes, _ in measured.values()]))
    if len(ticks) <= 8:  # few sizes were measured: name them instead of powers of ten
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    _name(axes, x, y)
    axes.legend(frameon=False, fontsize=10, loc="upper left", bbox_to_anchor=(0, 1.02))
    return figure


def fitted_power(sizes: Any, costs: Any) -> tuple[float, float]:
    """The power p and constant c of cost = c * size**p, by least squares on the logarithms.

    Over the last factor of four, or the two largest sizes where these are further apart.
    """
    sizes, costs = np.asarray(sizes, np.float64), np.asarray(costs, np.float64)
    last = sizes >= min(sizes.max() / LAST, np.unique(sizes)[-2])
    power, intercept = np.polyfit(np.log(sizes[last]), np.log(costs[last]), 1)
    return float(power), float(np.exp(intercept))


def _figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.09)  # type: ignore[union-attr, call-arg]
    axes = [figure.add_subplot(1, panels, panel + 1) for panel in range(panels)]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.spines[["left", "bottom"]].set_color("#888888")
        one.tick_params(colors=INK, labelsize=10)
        one.grid(axis="y", color="#dddddd", linewidth=0.8)
        one.set_axisbelow(True)
    return figure, axes


def _name(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=11, color=INK)
    axes.set_ylabel(y, fontsize=11, color=INK)


def _colour(index: int) -> str:
    return LINES[index % len(LINES)]


def _dash(index: int) -> str:
    return DASHES[index // len(LINES) % len(DASHES)]
