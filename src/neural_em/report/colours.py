"""The colours of components and groups: always the same colour for the same index, safe for the colour-blind."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from neural_em.errors import refuse

Pixels = NDArray[np.uint8]
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
TOLERANCE = 1e-3  # gamma computed in half precision sums to 1 only about this well

# The first eight are Okabe and Ito's colours and a purple, in an order in which nobody confuses the first five: blue,
# red, yellow, green, purple. Nearly all later ones are colours of a 16-level RGB grid, each as far in CIELAB as can be
# from those before it, from black, grey and white, as seen by the least favourable of normal, protan, deutan and tritan
# eyes.
_TABLE = """
56B4E9 D55E00 F0E442 009E73 AA55FF CC79A7 E69F00 0072B2 AAFF88 994433 88BB66 6644CC 00EEAA 9988FF 884477 BB0000
CCDDFF AA1199 EEAACC BBDD55 336655 FF4444 9900FF 559944 FF22CC BB0055 7788DD 00CC99 EE8833 99DD77 88EECC BB5599
AA6655 BBBB55 77CC88 AACCFF FFBB00 446600 CC00BB 7722DD CC99CC FF44FF BBEE99 999966 BB6633 DD2222 9955DD AAEEEE
0055FF 77AA99 555599 CC7777 6699CC 88BBDD CCAAFF DD8855 DD11AA 55DDDD DD66BB 995566 AA3344 FFDDBB AA0088 AAAA88
"""
_PALETTE: Pixels = np.array([tuple(bytes.fromhex(colour)) for colour in _TABLE.split()], np.uint8)
LIMIT = len(_PALETTE)


def palette(count: int) -> Pixels:
    """The colours of the first ``count`` components, (count,3); a component's colour does not depend on ``count``."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 0 <= count <= LIMIT:
        refuse("colours", f"a number of components from 0 to {LIMIT}", repr(count))
    return _PALETTE[: int(count)].copy()


def blend(gamma: Any) -> Pixels:
    """The assignment gamma (...,K,H,W) as RGB (...,H,W,3): every pixel the weighted mean of the components' colours.

    A hard assignment gives exactly the palette's colours; where gamma is 0 for all components the pixel is black.
    """
    gamma = _numbers(gamma)
    if gamma.ndim < 3 or 0 in gamma.shape:
        refuse("gamma", "the shape (...,K,H,W)", gamma.shape)
    if not (gamma.min() >= -TOLERANCE and gamma.max() <= 1 + TOLERANCE):  # false for NaN too
        refuse("gamma", "values from 0 to 1", f"{gamma.min():.3g} to {gamma.max():.3g}")
    colours = palette(gamma.shape[-3]).astype(np.float32)
    if gamma.sum(axis=-3).max() > 1 + TOLERANCE * 10:
        refuse("gamma", "sums over the components of at most 1", f"{gamma.sum(axis=-3).max():.3g}")
    rgb = np.tensordot(gamma, colours, axes=(-3, 0))  # (...,K,H,W) x (K,3) -> (...,H,W,3)
    return np.clip(np.rint(rgb), 0, 255).astype(np.uint8)


def colour_groups(groups: Any, background: tuple[int, int, int] = BLACK) -> Pixels:
    """Groups (...,H,W) as RGB (...,H,W,3): group n in the colour of component n-1, group 0 as the background."""
    table = np.concatenate([np.array([background], np.uint8), _PALETTE])
    coloured: Pixels = table[_labels(groups)]
    return coloured


def as_components(groups: Any, gamma: Any) -> NDArray[np.int64]:
    """Groups (T,H,W), each with the number, from 1, of the component of gamma (T,K,H,W) that matches it.

    The matching is the one that covers the most pixels. Groups that are left without a component come after all of
    them, so that `colour_groups` gives matching things one colour and others none of theirs.
    """
    groups, gamma = _labels(groups), _numbers(gamma)
    names = np.unique(groups[groups > 0])
    numbers = np.zeros(LIMIT + 1, np.int64)
    numbers[names] = (gamma.shape[1] + np.arange(len(names))) % LIMIT + 1
    if len(names):
        shared = np.stack([(gamma * (groups == name)[:, None]).sum((0, 2, 3)) for name in names])
        rows, columns = linear_sum_assignment(shared, maximize=True)
        numbers[names[rows]] = columns + 1
    return numbers[groups]


def distinct(rgb: Pixels) -> tuple[Pixels, NDArray[np.int64]]:
    """The different colours (n,3) of a picture (...,3), and for every pixel (...) which of them it has."""
    packed = rgb.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    values, index = np.unique(packed, return_inverse=True)
    colours: Pixels = np.stack([values >> 16, values >> 8 & 255, values & 255], axis=-1).astype(np.uint8)
    return colours, index.reshape(packed.shape)


def _labels(groups: Any) -> NDArray[np.int64]:
    groups = np.asarray(groups)
    if groups.ndim < 2 or groups.size == 0:
        refuse("groups", "the shape (...,H,W)", groups.shape)
    if groups.dtype.kind not in "iub" and not (groups.dtype.kind == "f" and np.array_equal(groups, np.rint(groups))):
        refuse("groups", "whole numbers", groups.dtype)  # files often keep them as floats
    if groups.min() < 0 or groups.max() > LIMIT:
        refuse("groups", f"numbers from 0 to {LIMIT}", f"{groups.min()} to {groups.max()}")
    labels: NDArray[np.int64] = groups.astype(np.int64)
    return labels


def _numbers(gamma: Any) -> NDArray[np.float32]:
    array = np.asarray(gamma)
    if array.dtype.kind not in "fiub":
        refuse("gamma", "numbers", array.dtype)
    return array.astype(np.float32, copy=False)
