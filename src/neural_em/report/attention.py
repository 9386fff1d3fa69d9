"""How much components heed each other, drawn: lines between what they hold, and the whole table of numbers."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from neural_em.report.colours import Pixels, palette
from neural_em.report.panels import SequenceReport, magnify

SHARE = 0.005  # of the picture's pixels; a component that holds fewer is not drawn
THICKEST = 0.08  # of the picture's shorter side, a line of attention 1
FINE = 4  # times finer than the picture, then made smaller: smooth lines
DIM = 0.6  # how bright the objects are behind the lines


def attention_rgb(sequence: SequenceReport, magnification: int) -> Pixels:
    """What each component holds, and between any two of them a line in two halves, (T,fH,fW,3).

    Each half is in the colour of the component at its end and the thicker, the more that one heeds the other.
    """
    held = sequence.gamma * sequence.psi.max(axis=2)  # (T,K,H,W)
    colours = palette(sequence.components)
    ground = np.tensordot(np.clip(held, 0, 1), DIM * colours.astype(np.float32), axes=(1, 0))  # (T,H,W,3)
    shown = magnify(np.rint(np.clip(ground, 0, 255)).astype(np.uint8), magnification)
    centres, there = _centres(held)
    return np.stack(
        [_lines(*parts, magnification) for parts in zip(shown, centres, there, _weights(sequence), strict=True)]
    )


def table_rgb(sequence: SequenceReport, height: int, width: int) -> Pixels:
    """The attention of component k, its row, to component j, its column, white for 1 and black for 0, (T,h,w,3).

    Rows, columns and the diagonal are marked in the components' colours.
    """
    K = sequence.components
    weights, colours = _weights(sequence), palette(K)
    cells: Pixels = np.empty((len(weights), K + 1, K + 1, 3), np.uint8)
    cells[:] = 96
    cells[:, 1:, 0] = cells[:, 0, 1:] = colours
    cells[:, 1:, 1:] = np.rint(255 * weights)[..., None]
    cells[:, range(1, K + 1), range(1, K + 1)] = colours  # nobody heeds itself
    rows, columns = (np.arange(size) * (K + 1) // size for size in (height, width))
    return cells[:, rows][:, :, columns]


def _weights(sequence: SequenceReport) -> NDArray[np.float32]:
    assert sequence.attention is not None
    return np.clip(sequence.attention, 0, 1)


def _centres(held: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The centres (T,K,2) as x and y of what components hold (T,K,H,W), and whether they hold anything (T,K)."""
    H, W = held.shape[2:]
    sure = np.where(held > 0.5, held, 0)
    mass = sure.sum(axis=(2, 3))
    x, y = (sure.sum(axis=axis) @ (np.arange(size) + 0.5) for axis, size in ((2, W), (3, H)))
    return np.stack([x, y], axis=-1) / np.maximum(mass, 1e-6)[..., None], mass >= max(1, SHARE * H * W)


def _lines(picture: Pixels, centres: NDArray[np.float32], there: NDArray[np.bool_], weights: NDArray[np.float32],
           magnification: int) -> Pixels:  # fmt: skip
    """One picture with its lines."""
    height, width, _ = picture.shape
    image = Image.fromarray(picture).resize((width * FINE, height * FINE), Image.Resampling.NEAREST)
    draw, places = ImageDraw.Draw(image), centres * magnification * FINE
    thickest, colours = THICKEST * min(image.size), palette(len(there))
    for k in np.flatnonzero(there):
        for j in np.flatnonzero(there):
            thickness = round(float(thickest * weights[k, j]))
            if j != k and thickness:
                middle = (places[k] + places[j]) / 2
                ends = [(float(x), float(y)) for x, y in (places[k], middle)]
                draw.line(ends, tuple(int(c) for c in colours[k]), thickness)
    return np.asarray(image.resize((width, height), Image.Resampling.BOX))
