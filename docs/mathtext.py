"""Draws formulas with Matplotlib when the documentation is built, so that its pages need no network."""

from __future__ import annotations

import html
import io
import logging
import re
from typing import Any

import matplotlib
from docutils import nodes
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser, math_to_image

SIZE = {"math": 12.5, "math_block": 14.0}  # points
_PARSER = MathTextParser("path")
logging.getLogger("matplotlib.mathtext").setLevel(logging.ERROR)  # it tells of every letter from another font


def draw(tex: str, size: float) -> tuple[str, float]:
    """A formula as an SVG element in the colour of the text, and how far it reaches below the line, in points."""
    text = "$" + " ".join(tex.split()) + "$"
    font = FontProperties(size=size, math_fontfamily="cm")
    with matplotlib.rc_context({"svg.hashsalt": "nem", "svg.fonttype": "path"}):
        depth = _PARSER.parse(text, dpi=72, prop=font)[2]
        buffer = io.StringIO()
        math_to_image(text, buffer, prop=font, dpi=72, format="svg", color="#123456")
    svg = buffer.getvalue().strip()  # no space before the comma that follows
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'<g id="patch_1">.*?</g>', "", svg, flags=re.DOTALL)  # the white ground
    svg = svg.replace("#123456", "currentColor")
    label = html.escape(" ".join(tex.split()), quote=True)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1), float(depth)


def visit_math(self: Any, node: nodes.math) -> None:
    """A formula in a line of text."""
    svg, depth = draw(node.astext(), SIZE["math"])
    self.body.append(svg.replace("<svg ", f'<svg style="vertical-align: {-depth:.2f}pt" ', 1))
    raise nodes.SkipNode


def visit_math_block(self: Any, node: nodes.math_block) -> None:
    """A formula in a line of its own."""
    svg, _ = draw(node.astext(), SIZE["math_block"])
    svg = svg.replace("<svg ", '<svg style="max-width: 100%; height: auto" ', 1)
    self.body.append(f'<div class="math" style="text-align: center; margin: 1.2em 0">{svg}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Makes it Sphinx's renderer of formulas."""
    app.add_html_math_renderer("mathtext", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
