"""An object that is followed, and where it is in a patch that it shares with others.

Shapes: frames (C,H,W), an object's mask (h,w) and picture (C,h,w), pixels (P,).
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Cells = tuple[Array, ...]  # rows (P,) and columns (P,) of pixels
SEARCH = 4  # pixels around where an object should be
_CONTRAST = 0.3  # a difference of colours that makes pixels entirely different


@dataclass(eq=False)
class Thing:
    """An object as it was when it was last alone."""

    number: int
    centre: Array  # (2,): row, column
    mask: Array  # (h,w)
    picture: Array  # (C,h,w)
    offset: Array  # (2,): of the centre in the picture
    components: Array  # (K,): how many of its pixels each one owned, lately
    alone: int  # the frame
    area: int = 0  # of the mask
    velocity: Array = field(default_factory=lambda: np.zeros(2))
    torn: int = 0  # frames in a row in which it had two parts
    unseen: int = 0  # frames in a row

    def corner(self, centre: Array) -> Array:
        return np.rint(centre - self.offset).astype(int)

    def cells(self, centre: Array, size: tuple[int, ...]) -> Cells:
        """The pixels that it covers there."""
        rows, columns = (each + at for each, at in zip(np.nonzero(self.mask), self.corner(centre), strict=True))
        inside = (rows >= 0) & (rows < size[0]) & (columns >= 0) & (columns < size[1])
        return rows[inside], columns[inside]


def cost_of(thing: Thing, seen: Array, rows: Array, columns: Array) -> Array:
    """How badly (P,) an object explains pixels (C,P) from where it is: 0 to 1, more outside of it."""
    cost = 1 + 0.2 * np.hypot(rows - thing.centre[0], columns - thing.centre[1]) / np.sqrt(thing.area)
    top, left = thing.corner(thing.centre)
    rows, columns = rows - top, columns - left
    height, width = thing.mask.shape
    near = np.flatnonzero((rows >= 0) & (rows < height) & (columns >= 0) & (columns < width))
    own = near[thing.mask[rows[near], columns[near]]]
    cost[own] = _wrong(seen[:, own], thing.picture[:, rows[own], columns[own]])
    return np.asarray(cost)


@cache
def _distance(reach: int, step: int) -> Array:
    """How far every step-th place in reach is away."""
    return np.asarray(np.hypot(*np.mgrid[-reach : reach + 1 : step, -reach : reach + 1 : step]).ravel())


def fitted(things: list[Thing], frame: Array, inside: Cells) -> list[Array]:
    """Where objects that share a patch are: together they explain as much of it as they can, and nothing outside."""
    places = [np.clip(thing.centre + thing.velocity, 0, np.array(frame.shape[1:]) - 1) for thing in things]
    wide, low = _around(things, places, frame, inside)
    errors = np.ones((len(things), *wide.shape[1:]), np.float32)
    for error, thing, place in zip(errors, things, places, strict=True):
        part = _box(thing.corner(place) - low, thing.mask.shape)
        error[part] = np.where(thing.mask, _wrong(wide[:-2, *part], thing.picture), 1)
    masks = [thing.mask.astype(np.float32) for thing in things]
    for reach, step in ((SEARCH, 2), (1, 1)):
        for i, (thing, mask) in enumerate(zip(things, masks, strict=True)):
            corner = thing.corner(places[i]) - low - reach
            part = _box(corner, np.add(mask.shape, 2 * reach))
            layers = wide[:, *part].copy()
            for other in (*errors[:i], *errors[i + 1 :]):  # of the patch, what is not explained yet
                np.minimum(layers[-2], other[part], out=layers[-2])
            shown = _shown(layers, mask.shape, step)
            wrong = _wrong(shown[:-2], thing.picture[:, None])
            gain = (np.maximum(0, shown[-2] - wrong) * mask).sum(axis=(1, 2))
            lost = (shown[-1].reshape(len(gain), -1) @ mask.ravel()).astype(np.float64)
            best = int((gain - lost - 0.002 * thing.area * _distance(reach, step)).argmax())
            moved = step * np.array(divmod(best, 2 * reach // step + 1))
            errors[i] = 1
            errors[i][_box(corner + moved, mask.shape)] = np.where(thing.mask, wrong[best], 1)
            places[i] = places[i] + moved - reach
    return places


def _box(corner: Array, size: Any) -> tuple[slice, slice]:
    """The part of a frame from a corner on."""
    (top, left), (height, width) = corner.tolist(), size
    return slice(top, top + height), slice(left, left + width)


def _wrong(seen: Array, picture: Array) -> Array:
    """How far pixels (C,...) are from those of a picture: 0 to 1."""
    wrong = np.abs(seen - picture).max(axis=0) / _CONTRAST
    return np.minimum(wrong, 1, out=wrong)


def _around(things: list[Thing], places: list[Array], frame: Array, inside: Cells) -> tuple[Array, Array]:
    """Frame, patch and ground (C+2,h,w) as far as objects may be moved, both 0 beyond the frame; and the corner."""
    corners = np.array([thing.corner(place) for thing, place in zip(things, places, strict=True)])
    sizes, reach = [thing.mask.shape for thing in things], SEARCH + 2  # both rounds, and one for rounding
    low, high = corners.min(axis=0) - reach, (corners + sizes).max(axis=0) + reach
    part = [slice(max(0, a), min(b, n)) for a, b, n in zip(low, high, frame.shape[1:], strict=True)]
    wide = np.zeros((len(frame) + 2, *(high - low)), np.float32)
    here = wide[:, *(slice(side.start - a, side.stop - a) for side, a in zip(part, low, strict=True))]
    there = np.zeros(frame.shape[1:], np.bool_)
    there[inside] = True
    here[:-2], here[-2], here[-1] = frame[:, *part], there[*part], ~there[*part]
    return wide, low


def _shown(layers: Array, size: tuple[int, ...], step: int) -> Array:
    """What is seen of layers (C,H,W) through a window (h,w) at every step-th place, n by n of them: (C,n*n,h,w)."""
    (layer, down, right), n = layers.strides, (layers.shape[1] - size[0]) // step + 1
    strides = (layer, step * down, step * right, down, right)
    view: Array = np.ndarray((len(layers), n, n, *size), layers.dtype, layers, strides=strides)
    return view.reshape(len(layers), n * n, *size)  # a copy: numpy is slow on short rows
