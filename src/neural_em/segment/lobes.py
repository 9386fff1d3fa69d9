"""Where a patch has necks it may be several things that touch: it is cut there, into its lobes.

Shapes: masks and patches (H,W).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Array = NDArray[Any]
_NECK = 0.65  # of a lobe's breadth: a neck is narrower
_ALIKE = 0.4  # of a patch's breadth: a lobe is broader
_FILLED = 0.5  # of a patch: discs as broad as its lobes fill more; those of strokes and bars do not
_EIGHT = np.ones((3, 3))


def connected(there: Array) -> tuple[Array, int]:
    """The connected patches of a mask, numbered from 1, and how many they are."""
    patches, count = ndimage.label(there, _EIGHT)
    return patches, count


def lobed(there: Array) -> tuple[Array, int]:
    """The same, cut at their necks if their lobes are round."""
    patches, count = connected(there)
    for patch, box in enumerate(ndimage.find_objects(patches), start=1):
        inside = patches[box] == patch
        depth = ndimage.distance_transform_edt(np.pad(inside, 1))[1:-1, 1:-1]
        cores = _cores(depth)
        more = int(cores.max()) - 1
        if more == 0:
            continue
        if np.pi * np.square(ndimage.maximum(depth, cores, range(1, more + 2))).sum() > _FILLED * inside.sum():
            nearest = ndimage.distance_transform_edt(cores == 0, return_distances=False, return_indices=True)
            own = cores[tuple(nearest)][inside]
            patches[box][inside] = np.where(own == 1, patch, count + own - 1)
            count += more
    return patches, count


def _cores(depth: Array) -> Array:
    """The middle of each lobe (H,W), from 1, of a patch of which each pixel's distance from the rim is known."""
    cores, most = (depth > 0).astype(np.int64), float(depth.max())
    tops = (depth == ndimage.maximum_filter(depth, 3)) & (depth >= _ALIKE * most)
    if connected(tops)[1] < 2:  # each lobe has one
        return cores
    order, levels = np.argsort(depth, axis=None), np.arange(1, _NECK * most, max(0.25, most / 32))
    gone = np.searchsorted(depth.flat[order], levels, "right")  # the pixels that are no deeper
    for level in levels[np.unique(gone, return_index=True)[1]]:  # a higher one with the same pixels parts nothing more
        parts, count = connected(depth > level)
        if count < 2:
            continue
        ends = np.zeros(count + 1, np.int64)
        ends[parts.flat[order]] = order  # the deepest pixel of each part comes last
        deepest, homes = depth.flat[ends[1:]], cores.flat[ends[1:]]  # homes: of which core each is a part, 0 of none
        good = (deepest * _NECK >= level) & (deepest >= _ALIKE * most)
        for core in range(1, int(cores.max()) + 1):
            mine = 1 + np.flatnonzero(good & (homes == core))
            if len(mine) > 1:
                last = int(cores.max())
                cores[cores == core] = 0
                for number, part in zip((core, *range(last + 1, last + len(mine))), mine, strict=True):
                    cores[parts == part] = number
    return cores
