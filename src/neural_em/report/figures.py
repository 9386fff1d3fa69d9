"""The paper's pictures of groupings, drawn pixel for pixel: static images step by step, and sequences over time."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from neural_em.errors import refuse, unknown
from neural_em.files import replacing
from neural_em.report.attention import attention_rgb, table_rgb
from neural_em.report.colours import WHITE, Pixels, as_components, colour_groups, palette
from neural_em.report.panels import SequenceReport, framed, magnification_for, magnify, to_rgb

DPI = 200
FORMATS = ("png", "pdf")
TARGET = 112  # screen pixels of a panel's longer side, unless a magnification is given
GAP = 8
EDGE, INK = (190, 190, 190), "#222222"


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes the figure as PNG or PDF, by the path's suffix; equal figures give equal bytes."""
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        unknown(f"{path}: format of a figure", kind, FORMATS)
    metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"CreationDate": None, "Producer": None}
    # type 42 keeps the text in a PDF selectable
    with replacing(path, make_folder=True) as temporary, matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(temporary, format=kind, dpi=figure.dpi, metadata=metadata)
    return path


def static_figure(
    images: Sequence[SequenceReport], names: Sequence[str], steps: Sequence[int] | None = None,
    magnification: int | None = None,
) -> Figure:  # fmt: skip
    """Groupings of static images, step by step: in a row the input, the assignment after each step, and the truth.

    All have as many steps; ``steps`` count from 1, and all are shown by default.
    """
    chosen = _chosen(steps, images[0].steps)
    titles = ["input", *(f"step {step}" if step == chosen[0] else str(step) for step in chosen)]
    apart = [0] if images[0].groups is None else [0, len(chosen)]
    titles += [] if images[0].groups is None else ["truth"]
    rows = []
    for image in images:
        shown = [to_rgb(image.frames[-1]), *image.assignment_rgb()[[step - 1 for step in chosen]]]
        if image.groups is not None:
            shown.append(colour_groups(as_components(image.groups[-1:], image.gamma[-1:]))[0])
        factor = magnification or magnification_for(max(image.frames.shape[2:]), TARGET)
        rows.append([framed(magnify(picture, factor), EDGE, 1) for picture in shown])
    return _lay_out(rows, titles, names, apart=apart)


def sequence_figure(
    sequence: SequenceReport, steps: Sequence[int] | None = None, magnification: int | None = None,
    kind: str = "sequence",
) -> Figure:  # fmt: skip
    """A sequence over time, left to right: the assignment, each component's prediction, and the input below.

    As a ``rollout``: what the model read, what really came, what it predicted, and its assignment; as ``attention``
    also who heeds whom, as lines between the objects and as a table of numbers. Every component keeps its colour.
    Steps without input are called +1, +2 and so on. ``steps`` count from 1; all are shown by default.
    """
    factor = magnification or magnification_for(max(sequence.frames.shape[2:]), TARGET)
    seen, components = sequence.frames_rgb(), sequence.component_rgb()
    assignment, colours = {"assignment": sequence.assignment_rgb()}, dict[str, Any]()
    if kind == "sequence":
        seen = {**assignment, **components, **seen}
        colours = dict(zip(components, palette(sequence.components), strict=True))
    else:
        seen |= assignment
    strips = {name: magnify(strip, factor) for name, strip in seen.items()}
    if kind == "attention":
        if sequence.attention is None:
            refuse("attention", "a sequence with how much components heed each other", "none")
        lines = attention_rgb(sequence, factor)
        strips |= {"attention": lines, "as a table": table_rgb(sequence, *lines.shape[1:3])}
    chosen = _chosen(steps, sequence.steps)
    rows = [[framed(strip[t - 1], colours.get(name, EDGE)) for t in chosen] for name, strip in strips.items()]
    with_input = sum(step <= sequence.steps - sequence.rollout for step in chosen)
    titles = [sequence.step_name(step) for step in chosen]
    return _lay_out(rows, titles, list(strips), corner="step", apart=[with_input - 1] if sequence.rollout else [])


def _chosen(steps: Sequence[int] | None, count: int) -> list[int]:
    chosen = list(range(1, count + 1)) if steps is None else [int(step) for step in steps]
    if not chosen or min(chosen) < 1 or max(chosen) > count:
        refuse("steps", f"numbers from 1 to {count}", chosen)
    return chosen


def _lay_out(
    rows: Sequence[Sequence[Pixels]],
    titles: Sequence[str],
    names: Sequence[str],
    corner: str = "",
    apart: Sequence[int] = (),
) -> Figure:
    """Panels of one size in rows, with titles above the columns and names left of the rows.

    All panels go into one picture the size of the whole figure, so that each of its pixels is one pixel of the file;
    only the text is drawn by matplotlib. ``apart`` lists the columns with a wider gap after them.
    """
    height, width, _ = rows[0][0].shape
    size = min(14.0, max(8.0, width * 72 / DPI * 0.27))  # points
    paths = (TextPath((0, 0), text, size=size) for text in (*names, corner) if text)
    left = max((round(path.get_extents().width * DPI / 72) for path in paths), default=0)
    left += 2 * GAP if left else GAP
    top = round(size * DPI / 72 * 1.5)
    gap = GAP
    strides = [width + (4 * gap if column in apart else gap) for column in range(len(titles) - 1)]
    across = list(itertools.accumulate(strides, initial=left))
    down = [top + row * (height + gap) for row in range(len(rows))]
    canvas: Pixels = np.full((down[-1] + height + gap, across[-1] + width + gap, 3), WHITE, np.uint8)
    for panels, y in zip(rows, down, strict=True):
        for panel, x in zip(panels, across, strict=True):
            canvas[y : y + height, x : x + width] = panel
    figure = pixel_figure(canvas)
    high, wide, _ = canvas.shape
    style: dict[str, Any] = {"fontsize": size, "color": INK}
    for title, x in zip(titles, across, strict=True):
        figure.text((x + width / 2) / wide, 1 - (top - gap) / high, title, ha="center", va="baseline", **style)
    for name, y in zip(names, down, strict=True):
        figure.text((left - gap) / wide, 1 - (y + height / 2) / high, name, ha="right", va="center", **style)
    figure.text((left - gap) / wide, 1 - (top - gap) / high, corner, ha="right", va="baseline", **style)
    return figure


def pixel_figure(canvas: Pixels) -> Figure:
    """A figure that is exactly the picture (H,W,3): one pixel of it is one pixel of the PNG."""
    height, width, _ = canvas.shape
    # a hair more than the quotient: its product with the resolution must not round down to a pixel less
    figure = Figure(figsize=((width + 1e-3) / DPI, (height + 1e-3) / DPI), dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.imshow(canvas, interpolation="none", aspect="auto")
    return figure
