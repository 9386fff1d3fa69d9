"""How a cost grows with a size: the power of the growth, and a chart of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from neural_em.report.plots import INK, LINES, new_figure

MARKERS = "osD^vP*"
LAST = 4  # growth is looked at over the last factor of four, where fixed costs are small


def scaling_plot(measured: Mapping[str, tuple[Sequence[float], Sequence[float]]], y: str) -> Figure:
    """Cost against size on log-log axes, with the power over the last factor of four of each series in the legend.

    ``measured``: by series, sizes and costs; ``y`` says what the costs are, with the unit.
    """
    figure, (axes,) = new_figure(5.2, 3.8)
    for index, (name, (sizes, costs)) in enumerate(measured.items()):
        colour = LINES[index % len(LINES)]
        power, constant = fitted_power(sizes, costs)
        ends = np.array([max(min(sizes), max(sizes) / LAST), max(sizes)])
        axes.plot(ends, constant * ends**power, color=colour, linewidth=1.2, linestyle="--", alpha=0.8)
        text = f"{name}  (∝ size$^{{{power:.2f}}}$)"
        axes.plot(sizes, costs, MARKERS[index % len(MARKERS)], color=colour, markersize=6, label=text)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = np.unique(np.concatenate([sizes for sizes, _ in measured.values()]))
    if len(ticks) <= 8:  # few sizes were measured: name them instead of powers of ten
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("size", fontsize=11, color=INK)
    axes.set_ylabel(y, fontsize=11, color=INK)
    axes.legend(frameon=False, fontsize=10, loc="upper left", bbox_to_anchor=(0, 1.02))
    return figure


def fitted_power(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """The power p and constant c of cost = c * size**p, by least squares on the logarithms.

    Over the last factor of four, or the two largest sizes where these are further apart.
    """
    x, y = np.asarray(sizes, np.float64), np.asarray(costs, np.float64)
    last = x >= min(x.max() / LAST, np.unique(x)[-2])
    power, intercept = np.polyfit(np.log(x[last]), np.log(y[last]), 1)
    return float(power), float(np.exp(intercept))
