"""A picture of a few sequences, each with its groups in colour below it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from neural_em.errors import refuse
from neural_em.files import replacing
from neural_em.report.colours import LIMIT, palette

_GAP = 2  # pixels between frames, before enlarging
_EDGE = (64, 64, 64)
_OVERLAP = (255, 255, 255)  # lit but not scored: several objects, or the faint rim of one
_MAX_COLUMNS = 8


def draw_preview(frames: NDArray[Any], groups: NDArray[np.uint8] | None, zoom: int = 4) -> NDArray[np.uint8]:
    """Sequences below each other, time to the right; under each frame its groups.

    Groups are as bright as the frame, overlaps white; of frames in colour they are fully bright, and the rest is black.

    Args:
        frames: (T,N,C,H,W) in [0, 1].
        groups: (T,N,H,W), 0 = not scored, or ``None``.
        zoom: Enlargement.

    Returns:
        The picture (height, width, 3) uint8.
    """
    T, N, C, H, W = frames.shape
    if C not in (1, 3):
        refuse("frames", "1 or 3 channels", C)
    times = np.unique(np.linspace(0, T - 1, min(T, _MAX_COLUMNS)).round().astype(int))
    rows = []
    for n in range(N):
        rows.append([_grey(frames[t, n]) for t in times])
        if groups is not None:
            rows.append([_coloured(frames[t, n], groups[t, n]) for t in times])
    height, width = len(rows) * (H + _GAP) + _GAP, len(times) * (W + _GAP) + _GAP
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = _EDGE
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            top, left = _GAP + i * (H + _GAP), _GAP + j * (W + _GAP)
            picture[top : top + H, left : left + W] = image
    return picture.repeat(zoom, axis=0).repeat(zoom, axis=1)


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


def _grey(frame: NDArray[Any]) -> NDArray[np.uint8]:
    """A frame (C,H,W) in [0, 1] as (H,W,3)."""
    values = np.round(frame * 255).astype(np.uint8).transpose(1, 2, 0)
    return np.broadcast_to(values, (*values.shape[:2], 3))


def _coloured(frame: NDArray[Any], groups: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Groups (H,W) in their colours, darkened where a grey frame (C,H,W) is dark."""
    table = np.vstack([np.array([_OVERLAP], np.uint8), palette(LIMIT)])
    wrapped = np.where(groups == 0, 0, (groups.astype(int) - 1) % LIMIT + 1)  # there are only so many colours
    bright = groups > 0 if len(frame) > 1 else frame[0]
    return np.round(table[wrapped] * bright[..., None]).astype(np.uint8)
