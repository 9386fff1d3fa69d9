"""A picture of a few sequences, each with its groups in colour below it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from neural_em.errors import refuse
from neural_em.files import replacing
from neural_em.report.colours import LIMIT, WHITE, Pixels, colour_groups
from neural_em.report.panels import grid, magnify, to_rgb

_GAP = 2  # pixels between frames, before enlarging
_EDGE = (64, 64, 64)
_MAX_COLUMNS = 8


def draw_preview(frames: NDArray[Any], groups: NDArray[np.uint8] | None, zoom: int = 4) -> Pixels:
    """Frames (T,N,C,H,W) in [0, 1]: sequences below each other, time to the right, as a picture (height,width,3).

    Under each frame its groups (T,N,H,W), if given; white is lit but not scored: several objects, or the rim of one.
    """
    times = np.unique(np.linspace(0, len(frames) - 1, min(len(frames), _MAX_COLUMNS)).round().astype(int))
    rows = []
    for n in range(frames.shape[1]):
        rows.append(to_rgb(frames[times, n]))
        if groups is not None:
            found = groups[times, n].astype(int)
            wrapped = np.where(found == 0, 0, (found - 1) % LIMIT + 1)  # there are only so many colours
            # groups are as bright as a grey frame; of frames in colour they are fully bright, and the rest is black
            light = frames[times, n] if frames.shape[2] == 1 else groups[times, n, None] > 0
            light = np.moveaxis(light, 1, -1)
            rows.append(np.rint(colour_groups(wrapped, WHITE) * light).astype(np.uint8))
    return magnify(grid(rows, _GAP, _EDGE), zoom)


def write_preview(
    path: str | os.PathLike[str], frames: NDArray[Any], groups: NDArray[np.uint8] | None, zoom: int = 4
) -> None:
    """Draws the preview into an image file; see :func:`draw_preview`."""
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in Image.registered_extensions():
        refuse(os.fspath(path), "the name of an image file, such as preview.png", repr(suffix))
    picture = Image.fromarray(draw_preview(frames, groups, zoom))
    with replacing(path, make_folder=True) as partial:
        picture.save(partial)
