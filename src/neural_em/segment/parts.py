"""Objects that touch in every frame, told apart by their shape and how it changes.

Where two objects touch there is a neck between them, and their outline changes while they move. A spanner has a neck
too, but it keeps its shape, also when it turns. So an object that does not keep its shape while it is alone, and that
has necks then or grows as if another one came out from behind it, is followed once more, with patches cut at their
necks. Those of its lobes whose distance changes are objects.

Shapes: labels (H,W).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from neural_em.segment.lobes import connected, lobed
from neural_em.segment.objects import GROWN, PART, numbers_in
from neural_em.segment.passes import Both, Labelled, Pass, unpacked
from neural_em.segment.spool import Spool

Array = NDArray[Any]
Shared = dict[int, dict[int, int]]  # the pixels that each lobe has of each object
_OFTEN = 8  # frames, at least, that tell how something changes
_SHAPE = 0.08  # of an object's length: what varies by less keeps its shape; what varies by more at once is another one
_CHANGE = 0.07  # of a lobe's size, and
_NOISE = 1.0  # pixels: what the distance between two lobes varies by, at least, if they are two objects
_TAKEN = 0.25  # of a lobe: if a loose object has so much of it, it may be a part of that


def parted(seen: Spool, whole: Labelled) -> Labelled | None:
    """The labels of a clip with objects parted whose lobes move against each other; None if there are none."""
    loose = _loose(whole)
    if not loose:
        return None
    again = Pass(lobes=True)
    for i in range(len(seen)):
        again.add(*unpacked(seen, i))
    finer = Labelled(again.back(seen))
    names = _names(whole, finer, loose)
    new = set(names.values()) - {number for _, labels, _ in whole for number in numbers_in(labels)}
    return Labelled(_mixed(whole, finer, names, new | loose)) if new else None


def _loose(whole: Labelled) -> set[int]:
    """The objects that do not keep their shape while they are alone, and have necks then at times, or grow."""
    shapes: dict[int, dict[int, float]] = defaultdict(dict)  # how long an object is for its size, by frame
    pixels: dict[int, Counter[int]] = defaultdict(Counter)  # of an object, by frame: of all its patches
    for i, number, inside in _alone(whole):
        spread = np.linalg.eigvalsh(np.cov(np.nonzero(inside), bias=True))[-1]
        shapes[number][i] = float(np.sqrt(max(0.0, spread) / inside.sum()))
        pixels[number][i] += int(inside.sum())
    varying = {number for number, lengths in shapes.items() if _varies(lengths)}
    sizes = {number: pixels[number].values() for number in varying}
    grown = {number for number, each in sizes.items() if max(each) > GROWN * min(each)}
    frames = _alone(whole) if varying - grown else ()
    return grown | {number for _, number, inside in frames if number in varying - grown and lobed(inside)[1] > 1}


def _alone(whole: Labelled) -> Iterator[tuple[int, int, Array]]:
    """Frame, object and mask (h,w) of every patch that one object has for itself and the frame does not cut."""
    for i, labels, _ in whole:
        patches, _ = connected(labels > 0)
        for patch, box in enumerate(ndimage.find_objects(patches), start=1):
            inside = patches[box] == patch
            numbers = numbers_in(labels[box][inside])
            clear = all(side.start > 0 and side.stop < edge for side, edge in zip(box, labels.shape, strict=True))
            if len(numbers) == 1 and clear:
                yield i, numbers[0], inside


def _varies(lengths: dict[int, float]) -> bool:
    """Whether an object grows longer or shorter little by little; all at once, it is another one."""
    run: list[float] = []
    for i, length in lengths.items():
        if i + 1 not in lengths or abs(length - lengths[i + 1]) > _SHAPE * length:
            run = []
        run.append(length)
        if len(run) >= _OFTEN and max(run) - min(run) > _SHAPE * length:
            return True
    return False


def _names(whole: Labelled, finer: Labelled, loose: set[int]) -> dict[int, int]:
    """For each lobe the number of its object: a new one where the lobes of a loose one move against each other."""
    shared: Shared = defaultdict(lambda: defaultdict(int))
    between: dict[frozenset[int], list[float]] = defaultdict(list)
    size: dict[int, float] = defaultdict(float)
    for (_, labels, _), (_, lobes, _) in zip(whole, finer, strict=True):
        cells = np.nonzero(lobes)
        which, most = lobes[cells], int(labels.max()) + 1
        pairs, pixels = np.unique(which.astype(np.int64) * most + labels[cells], return_counts=True)
        for pair, count in zip(pairs.tolist(), pixels.tolist(), strict=True):
            shared[pair // most][pair % most] += count
        area, centres = np.bincount(which), dict[int, Array]()
        rows, columns = (np.bincount(which, places) for places in cells)
        for lobe in np.flatnonzero(area).tolist():
            centres[lobe] = np.array([rows[lobe], columns[lobe]]) / area[lobe]
            size[lobe] = max(size[lobe], float(np.sqrt(area[lobe])))
        for one, other in combinations(centres, 2):
            between[frozenset((one, other))].append(float(np.linalg.norm(centres[one] - centres[other])))
    apart = {pair for pair, far in between.items() if _changes(far, max(size[each] for each in pair))}
    return _grouped(shared, apart, loose)


def _changes(far: list[float], size: float) -> bool:
    """Whether a distance changes, and not by noise or all at once."""
    spread = float(np.std(far))
    steps = float(np.abs(np.diff(far)).mean()) if len(far) > 1 else 0.0
    return len(far) >= _OFTEN and spread > max(_NOISE, _CHANGE * size) and steps < 0.5 * spread


def _grouped(shared: Shared, apart: set[frozenset[int]], loose: set[int]) -> dict[int, int]:
    """Lobes of an object keep its number; those of a loose one that move against each other have new ones."""
    pixels = {lobe: sum(each.values()) for lobe, each in shared.items()}
    whole: dict[int, int] = defaultdict(int)
    for each in shared.values():
        for number, count in each.items():
            whole[number] += count
    members: dict[int, list[int]] = defaultdict(list)  # the lobes of each number
    family: dict[int, list[int]] = defaultdict(list)  # the numbers that an object is parted into
    unused = 1 + max(whole, default=0)
    for lobe in sorted(shared, key=lambda each: -pixels[each]):
        home = max(shared[lobe], key=lambda number: shared[lobe][number])
        taken = max(loose, key=lambda number: shared[lobe].get(number, 0))
        against = {name for name in members if any(frozenset((lobe, each)) in apart for each in members[name])}
        if home in against and shared[lobe].get(taken, 0) > _TAKEN * pixels[lobe]:
            home = taken
        fits = [name for name in family[home] if name not in against]
        if family[home] and not fits and home in loose and pixels[lobe] >= PART * whole[home]:
            fits, unused = [unused], unused + 1
        name = (fits or family[home] or [home])[0]
        members[name].append(lobe)
        family[home] += [] if name in family[home] else [name]
    return {lobe: name for name, lobes in members.items() for lobe in lobes}


def _mixed(whole: Labelled, finer: Labelled, names: dict[int, int], new: set[int]) -> Iterator[Both]:
    """The finer labels in the patches in which an object is parted, the others elsewhere."""
    table = np.zeros(1 + max(names), np.int32)
    table[list(names)] = list(names.values())
    for (i, labels, alone), (_, lobes, single) in zip(whole, finer, strict=True):
        patches, _ = connected((labels > 0) | (lobes > 0))
        found = table[lobes]
        here = np.isin(patches, np.unique(patches[np.isin(found, list(new))]))
        yield i, np.where(here & (found > 0), found, labels), alone | {names[each] for each in single if each in names}
