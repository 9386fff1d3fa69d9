"""Matplotlib's charts inside a page: SVG that takes its colours from the page, so that it follows light and dark."""

import html
import io
import re
from collections.abc import Sequence

import matplotlib
import numpy as np

from neural_em.report.plots import DASHES, GRID, INK, LINES, SPINE, Line, draw_lines, new_figure

WIDTH, HEIGHT = 460, 260  # the page's units; a figure's are 72 to the inch
TEXT = 17  # the largest that the style sheet makes the text, on a phone: there is room for that
COLOURS = len(LINES)
DASHED = '<svg viewBox="0 0 26 8" aria-hidden="true"><path class="line dash-1" d="M1 4h24"/></svg>'
_FROM_PAGE = {"#ffffff": "none", INK: "var(--soft)", SPINE: "var(--soft)", GRID: "var(--grid)"} | {
    colour.lower(): f"var(--line-{index})" for index, colour in enumerate(LINES)
}
# what does not belong into a page, or is the style sheet's: names, clipping, fonts, sizes, rules for the whole page
_NOT_WANTED = re.compile(
    r"<\?xml.*?<svg[^>]*>|</svg>|<style.*?</style>|<metadata>.*?</metadata>"
    r'| id="[^"]*_\d+"| clip-path="[^"]*"|font-[^;"]*;',
    re.DOTALL,
)


def line_chart(title: str, lines: Sequence[Line], x_label: str, mark: int | None = None, whole: bool = False) -> str:
    """An HTML figure: the title, the chart, and a legend with each line's last value; empty without a number to show.

    ``mark`` is an x to mark as the training length, unless it is the last one; ``whole`` numbers are counted from 0.
    """
    shown = [(line, known[-1]) for line in lines if len(known := np.asarray(line.y)[np.isfinite(line.y)])]
    if not shown:
        return ""
    figure, (axes,) = new_figure(WIDTH / 72, HEIGHT / 72)
    draw_lines(axes, [line for line, _ in shown], x_label, mark=mark)
    entries = [_entry(line, last) for line, last in shown]
    entries += [f"<li>{DASHED}<span>{label}</span></li>" for label in axes.get_legend_handles_labels()[1][len(shown) :]]
    axes.margins(x=0)
    axes.locator_params(axis="y", nbins=6, integer=whole)
    if whole:
        axes.set_ylim(0, 1.2 * max(1, *(np.nanmax(line.y) for line, _ in shown)))
    axes.tick_params(bottom=False, left=False, labelsize=TEXT)
    axes.xaxis.label.set_fontsize(TEXT)
    axes.spines["left"].set_visible(False)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "nem"}):
        figure.savefig(text, format="svg")
    drawn = _NOT_WANTED.sub("", text.getvalue())
    drawn = re.sub(r"#[0-9a-f]{6}", lambda found: _FROM_PAGE[found[0]], drawn)
    described = html.escape(f"{title}: " + "; ".join(f"{line.name}, last {last:.3g}" for line, last in shown))
    return (
        f'<figure class="chart card"><figcaption>{html.escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{described}">{" ".join(drawn.split())}</svg>'
        f'<ul class="legend">{"".join(entries)}</ul></figure>'
    )


def _entry(line: Line, last: float) -> str:
    style = f"c{line.colour % COLOURS} dash-{line.dash % len(DASHES)}"
    swatch = f'<svg viewBox="0 0 26 8" aria-hidden="true"><path class="line {style}" d="M1 4h24"/></svg>'
    return f"<li>{swatch}<span>{html.escape(line.name)}</span> <b>{last:.4g}</b></li>"
