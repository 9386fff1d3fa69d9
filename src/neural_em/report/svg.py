"""Line charts as small inline SVG that takes its colours from the page, so that it follows light and dark."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

WIDTH, HEIGHT = 460, 260
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 10, 38
COLOURS, DASHES = 7, 4  # as many as the style sheet has


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a chart: points x, y (n,), if given a band from lower to upper (n,), and how it is drawn."""

    name: str
    x: Any
    y: Any
    lower: Any = None
    upper: Any = None
    colour: int = 0
    dash: int = 0


def line_chart(title: str, lines: Sequence[Line], x_label: str, mark: int | None = None) -> str:
    """An HTML figure: the title, the chart, and a legend with each line's last value.

    Args:
        title: what the chart shows; also read out by screen readers.
        lines: what to draw; points that are not finite are left out.
        x_label: name of the horizontal axis.
        mark: an x to mark as the training length; or None.
    """
    lines = [_finite(line) for line in lines]
    xs = np.concatenate([line.x for line in lines])
    ys = np.concatenate([values for line in lines for values in (line.y, line.lower, line.upper) if values is not None])
    ys = ys[np.isfinite(ys)]
    if not len(xs) or not len(ys):
        return ""
    x_ticks, y_ticks = ticks(float(xs.min()), float(xs.max()), whole=True), ticks(float(ys.min()), float(ys.max()))
    x_low, x_high = _widened(float(xs.min()), float(xs.max()))
    y_low, y_high = min(y_ticks[0], float(ys.min())), max(y_ticks[-1], float(ys.max()))

    def place(x: Any, y: Any) -> list[str]:
        across = LEFT + (np.asarray(x) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (np.asarray(y) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return [f"{a:.1f},{d:.1f}" for a, d in zip(across, down, strict=True)]

    parts = _axes(x_ticks, y_ticks, x_label, place)
    if mark is not None and x_low <= mark <= x_high:
        (point,) = place([mark], [y_low])
        x = float(point.split(",")[0])
        anchor = ' text-anchor="end"' if x > WIDTH * 0.7 else ""
        parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(
            f'<text x="{x + (-5 if anchor else 5)}" y="{HEIGHT - BOTTOM - 7}"{anchor}>trained for {mark} steps</text>'
        )
    for line in lines:
        parts += _drawn(line, place)
    described = html.escape(
        f"{title}: " + "; ".join(f"{line.name}, last {line.y[-1]:.3g}" for line in lines if len(line.y))
    )
    return (
        f'<figure class="chart card"><figcaption>{html.escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{described}">{"".join(parts)}</svg>'
        f'<ul class="legend">{"".join(_entry(line) for line in lines if len(line.y))}</ul></figure>'
    )


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """About five round numbers that span low to high (for ``whole``: whole numbers inside them)."""
    low, high = _widened(low, high)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    if whole:
        step = max(1.0, float(round(step)))
        return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [step * index for index in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def _widened(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _finite(line: Line) -> Line:
    keep = np.isfinite(np.asarray(line.x, np.float64)) & np.isfinite(np.asarray(line.y, np.float64))

    def cut(values: Any) -> Any:
        return None if values is None else np.asarray(values, np.float64)[keep]

    return Line(line.name, cut(line.x), cut(line.y), cut(line.lower), cut(line.upper), line.colour, line.dash)


def _axes(x_ticks: list[float], y_ticks: list[float], x_label: str, place: Any) -> list[str]:
    parts = []
    for value in y_ticks:
        y = place([0], [value])[0].split(",")[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{float(y) + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    for value in x_ticks:
        x = place([value], [0])[0].split(",")[0]
        parts.append(f'<text x="{x}" y="{base + 16}" text-anchor="middle">{_short(value)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{html.escape(x_label)}</text>')
    return parts


def _drawn(line: Line, place: Any) -> list[str]:
    parts = []
    if line.lower is not None and line.upper is not None and np.isfinite(line.lower + line.upper).all():
        outline = place(line.x, line.lower) + place(line.x, line.upper)[::-1]
        parts.append(f'<polygon class="band c{line.colour % COLOURS}" points="{" ".join(outline)}"/>')
    style = f"c{line.colour % COLOURS} dash-{line.dash % DASHES}"
    points = place(line.x, line.y)
    if len(points) == 1:
        x, y = points[0].split(",")
        parts.append(f'<circle class="dot {style}" cx="{x}" cy="{y}" r="3.5"/>')
    elif points:
        parts.append(f'<polyline class="line {style}" points="{" ".join(points)}"/>')
    return parts


def _entry(line: Line) -> str:
    style = f"c{line.colour % COLOURS} dash-{line.dash % DASHES}"
    swatch = (
        f'<svg viewBox="0 0 26 8" aria-hidden="true"><line class="line {style}" x1="1" x2="25" y1="4" y2="4"/></svg>'
    )
    return f"<li>{swatch}<span>{html.escape(line.name)}</span> <b>{line.y[-1]:.4g}</b></li>"


def _short(value: float) -> str:
    return f"{value:.6g}"
