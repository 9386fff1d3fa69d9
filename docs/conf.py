"""Sphinx settings; built with warnings as errors by ``make lint``."""

import re
import sys
from pathlib import Path
from typing import Any

import neural_em

sys.path.insert(0, str(Path(__file__).parent))  # for `mathtext`

project = "nem"
author = "The nem developers"
copyright = author
version = release = neural_em.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathtext"]
html_math_renderer = "mathtext"
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

autodoc_typehints = "signature"
napoleon_use_ivar = True  # a list of settings, not a heading for each
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"nem {release}"
html_show_sphinx = False


def setup(app: Any) -> None:
    """Shapes such as (*key.shape, count) stand in docstrings as in code; links may lead to files beside the pages.

    The pages are plain Markdown, to be read where the code is hosted too.
    """
    app.connect("autodoc-process-docstring", _escape_stars)
    app.connect("source-read", _as_downloads)
    app.connect("source-read", _with_contents)


def _escape_stars(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace("(*", r"(\*") for line in lines]


def _as_downloads(app: Any, name: str, source: list[str]) -> None:
    source[0] = source[0].replace("](../results/", "](path:../results/")


def _with_contents(app: Any, name: str, source: list[str]) -> None:
    """The lists of pages in index.md once more, as Sphinx wants them for its navigation."""
    for part in source[0].split("\n## ")[1:] if name == "index" else []:
        pages = "\n".join(re.findall(r"^- \[.*?\]\((.*?)\.md\)", part, re.MULTILINE))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {part.splitlines()[0]}\n\n{pages}\n```\n"
