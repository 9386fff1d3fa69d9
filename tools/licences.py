"""Writes docs/licences.md: the licence of every pinned dependency, as its own metadata tell it (``make licences``)."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
NAMES = {  # what packages without an expression write, and how it is written in one
    "Apache 2.0": "Apache-2.0", "Apache Software License": "Apache-2.0", "BSD License": "BSD", "MIT License": "MIT",
    "3-Clause BSD License": "BSD-3-Clause", "BSD 2-Clause License": "BSD-2-Clause", "ISC License": "ISC",
    "BSD 3-Clause License": "BSD-3-Clause", "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0", "GNU General Public License (GPL)": "GPL",
}  # fmt: skip
SHORT = re.compile(r"[A-Za-z0-9. ()+-]{2,24}")  # a licence's name, not its text
LEAD = """\
# Licences

`nem` itself is under the MIT licence. These are the licences of everything that `constraints.txt` pins, what only \
tests, lint and documentation need included, as the packages' own metadata tell them (`make licences` writes this \
page; a test holds it to what is installed).

None of them is part of the package: they are installed beside it. Some bring more than their own licence tells: the \
extra `video` installs an ffmpeg program (GPL or LGPL, depending on the build) with `imageio-ffmpeg`, which is run as \
a process of its own; PyTorch and NumPy bring libraries whose licences are in their own packages; parts of `docutils`, \
with which only the documentation is built, are under the GPL.

| package | version | licence |
| --- | --- | --- |
"""


def pins() -> dict[str, str]:
    """Version by name."""
    return dict(PIN.findall((ROOT / "constraints.txt").read_text(encoding="utf-8")))


def licence(name: str) -> str:
    """What an installed package says: its expression, else its short licence field, else its classifiers."""
    about = metadata.metadata(name)
    if about.get("License-Expression"):
        return str(about["License-Expression"])
    field = str(about.get("License") or "").strip()
    if SHORT.fullmatch(field):
        return NAMES.get(field, field)
    classifiers = [str(each) for each in about.get_all("Classifier") or [] if str(each).startswith("License")]
    named = [each.split(" :: ")[-1] for each in classifiers]
    return ", ".join(NAMES.get(each, each) for each in named) or "not told"


def page() -> str:
    """The whole page, from what is installed."""
    rows = [f"| {name} | {version} | {licence(name)} |" for name, version in sorted(pins().items(), key=_by_name)]
    return LEAD + "\n".join(rows) + "\n"


def _by_name(item: tuple[str, str]) -> str:
    return item[0].lower()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
