"""Objects in front of a known ground, through a clip: what is never apart is one, what touches now and then is not.

What stands out from the ground falls into connected patches. A patch that moves alone is an object, however many
components the model tears it into; so its picture and its components are known. Where objects come together, each pixel
of their patch goes to the one whose picture, moved to where it fits best, and whose components explain it best. Going
through the clip backwards as well tells objects apart that touch at its beginning.

Shapes: frames (C,H,W), patches and labels (H,W), gamma (K,h,w), a whole number of times smaller; pixels are (P,).
"""

import numpy as np
from scipy import ndimage

from neural_em.segment.lobes import connected
from neural_em.segment.things import SEARCH, Array, Cells, Thing, cost_of, fitted

Found = tuple[Array, dict[int, int]]  # labels (H,W), and for how long each object has not been alone
GAP = 15  # frames that an object may be out of sight, or not be told from those that it touches
_LEAST = 0.001  # of the frame: smaller patches are no objects
_TORN = 3  # frames that two parts have to be apart to be two
PART = 0.15  # of an object: what is less is no object of its own
GROWN, _REST = 1.4, 0.3  # times its size: a lobe that is larger at once has another one in it, which shows so much
_MODEL = 0.1  # how much the model's assignment counts beside the objects' pictures


class Follower:
    """Follows the objects from frame to frame, in one direction of time."""

    def __init__(self, things: list[Thing] | None = None, count: int = 0, lobes: bool = False) -> None:
        self.things = things or []
        self.count, self._frame, self._lobes = count, -1, lobes  # lobes: patches are cut at their necks

    def add(self, frame: Array, patches: Array, gamma: Array, before: Array | None = None) -> Found:
        """Takes the next frame: gives its labels (H,W), and for how long each object has not been alone.

        ``patches`` are numbered from 1 without gaps, 0 is ground. ``before`` are labels of the same frame, found in
        the other direction: new objects take their numbers.
        """
        self._frame += 1
        cells = _cells(patches)
        large = {patch for patch, inside in cells.items() if len(inside[0]) >= max(6, _LEAST * patches.size)}
        homes = self._homes(patches, cells, large)
        labels = np.zeros(patches.shape, np.int32)
        for patch, inside in cells.items():
            things = homes.get(patch, [])
            if not things and patch in large:
                self._begin(inside, frame, gamma, before)
                labels[inside] = self.things[-1].number
            elif len(things) == 1 and not self._grown(things, frame, inside, gamma, before):
                labels[inside] = things[0].number
            elif things:
                labels[inside] = self._divided(things, frame, inside, gamma)
        crowd = {id(thing) for things in homes.values() if len(things) > 1 for thing in things}
        seen = {id(thing) for things in homes.values() for thing in things}
        for thing in list(self.things):
            if id(thing) in seen and id(thing) not in crowd:
                own = [patch for patch, things in homes.items() if things == [thing]]
                inside = cells[own[0]] if len(own) == 1 else np.nonzero(labels == thing.number)
                self._renew(thing, inside, frame, gamma, torn=len(own) > 1)
            elif id(thing) not in seen and thing.alone != self._frame:
                self._coast(thing, patches.shape)
        return labels, {thing.number: self._frame - thing.alone for thing in self.things}

    def _homes(self, patches: Array, cells: dict[int, Cells], large: set[int]) -> dict[int, list[Thing]]:
        """The objects in each patch."""
        homes = dict[int, list[Thing]]()
        shared = np.zeros((len(self.things), len(cells) + 1))
        for i, thing in enumerate(self.things):
            expected = patches[thing.cells(thing.centre + thing.velocity, patches.shape)]
            shared[i] = np.bincount(expected, minlength=len(cells) + 1)
        shared[:, 0] = 0
        for i, thing in enumerate(self.things):
            if shared[i].any():
                homes.setdefault(int(shared[i].argmax()), []).append(thing)
        known = list(self.things)
        for patch in [each for each in cells if each in large and each not in homes]:
            pixels = {thing: shared[i, patch] for i, thing in enumerate(known) if thing in self.things}
            self._claim(patch, cells[patch], pixels, homes)
        return homes

    def _claim(
        self, patch: int, inside: Cells, shared: dict[Thing, float], homes: dict[int, list[Thing]]
    ) -> None:  # fmt: skip
        """Finds out whose a patch is in which nobody is expected: one of a crowd, a lost one, a part, or new.

        ``shared`` are the pixels of the patch where each object was expected.
        """
        area, centre = len(inside[0]), np.mean(inside, axis=1)
        where = {id(thing): home for home, things in homes.items() for thing in things}
        near = []
        for thing, pixels in shared.items():
            home, own = where.get(id(thing)), thing.area
            free = home is None or len(homes[home]) > 1
            away = float(np.linalg.norm(thing.centre + thing.velocity - centre))
            reach = np.sqrt(own) + 2 * float(np.linalg.norm(thing.velocity)) + SEARCH
            if free and away < reach * (1 + 0.2 * min(thing.unseen, 5)) and 0.3 * own < area < 3 * own:
                near.append((away - 0.01 * pixels, thing))
        if near:
            thing = min(near, key=lambda each: each[0])[1]
            if id(thing) in where:
                homes[where[id(thing)]].remove(thing)
            homes[patch] = [thing]
            return
        for thing, pixels in shared.items():
            home = where.get(id(thing))
            if home is not None and pixels > 0.5 * area and len(homes[home]) == 1:
                if thing.torn < _TORN - 1 or area < PART * thing.area:
                    homes[patch] = [thing]  # a part of it
                else:  # two objects that were taken for one
                    self.things.remove(thing)
                    for alone in [each for each, things in homes.items() if things == [thing]]:
                        del homes[alone]
                return

    def _grown(self, things: list[Thing], frame: Array, inside: Cells, gamma: Array, before: Array | None) -> bool:
        """Whether a lobe is larger all at once: the rest of another one that was cut joined it, and begins here."""
        (thing,) = things
        own = thing.area
        if not self._lobes or len(inside[0]) < GROWN * own:
            return False
        rest = np.zeros(frame.shape[1:], np.bool_)
        rest[inside] = True
        rest[thing.cells(thing.centre + thing.velocity, rest.shape)] = False
        if rest.sum() >= _REST * own:
            self._begin(np.nonzero(rest), frame, gamma, before)
            things.append(self.things[-1])
        return len(things) > 1

    def _begin(self, inside: Cells, frame: Array, gamma: Array, before: Array | None) -> None:
        self.count += 1
        number = self.count
        if before is not None:
            known = np.bincount(before[inside])
            known[[thing.number for thing in self.things if thing.number < len(known)] + [0]] = 0
            number = int(known.argmax()) if known.any() else number
        nothing = np.zeros((1, 1), bool)
        thing = Thing(number, np.zeros(2), nothing, nothing[None], np.zeros(2), np.zeros(len(gamma)), -9)
        self.things.append(thing)
        self._renew(thing, inside, frame, gamma)

    def _renew(self, thing: Thing, inside: Cells, frame: Array, gamma: Array, torn: bool = False) -> None:
        """An object that is alone shows itself."""
        rows, columns = inside
        centre, low = np.mean(inside, axis=1), np.min(inside, axis=1)
        part = slice(low[0], rows.max() + 1), slice(low[1], columns.max() + 1)
        if thing.alone >= 0:
            old = 0.5 if thing.alone == self._frame - 1 else 0.0
            thing.velocity = old * thing.velocity + (1 - old) * (centre - thing.centre) / (1 + thing.unseen)
        thing.torn = thing.torn + 1 if torn else 0
        thing.centre, thing.offset, thing.alone, thing.unseen = centre, centre - low, self._frame, 0
        thing.area, thing.picture = len(rows), frame[:, *part].copy()
        thing.mask = np.zeros(thing.picture.shape[1:], np.bool_)
        thing.mask[rows - low[0], columns - low[1]] = True
        thing.components = 0.9 * thing.components + _assigned(gamma, inside, frame).sum(axis=1) / len(rows)

    def _coast(self, thing: Thing, size: tuple[int, ...]) -> None:
        """An object out of sight moves on, until it is given up."""
        thing.centre, thing.unseen = thing.centre + thing.velocity, thing.unseen + 1
        outside = (thing.centre < 0).any() or (thing.centre >= size).any()
        if outside or thing.unseen > GAP:
            self.things.remove(thing)

    def _divided(self, things: list[Thing], frame: Array, inside: Cells, gamma: Array) -> Array:
        """The labels (P,) of the pixels of a patch that several objects share; moves these to where they fit best."""
        places = fitted(things, frame, inside)
        seen, costs = frame[:, inside[0], inside[1]], []
        for thing, place in zip(things, places, strict=True):
            thing.velocity = 0.8 * thing.velocity + 0.2 * (place - thing.centre)
            thing.centre, thing.unseen = place, 0
            costs.append(cost_of(thing, seen, *inside))
        shares = np.stack([thing.components / max(1e-6, thing.components.sum()) for thing in things]) + 0.02
        own = (shares / shares.sum(axis=0)) @ _assigned(gamma, inside, frame)  # (things,P)
        best = (np.stack(costs) - _MODEL * np.log(own)).argmin(axis=0)
        return np.array([thing.number for thing in things])[best]


def _cells(patches: Array) -> dict[int, Cells]:
    """The pixels of each patch."""
    cells = dict[int, Cells]()
    for patch, box in enumerate(ndimage.find_objects(patches), start=1):
        rows, columns = np.nonzero(patches[box] == patch)
        cells[patch] = rows + box[0].start, columns + box[1].start
    return cells


def _assigned(gamma: Array, cells: Cells, frame: Array) -> Array:
    """The assignment (K,P) of pixels."""
    factor = frame.shape[-1] // gamma.shape[-1]
    return np.asarray(gamma[:, cells[0] // factor, cells[1] // factor])


def chosen(one: Found, other: Found) -> Array:
    """The labels (H,W) of a frame from both directions: in each patch those that tell more objects apart.

    Where they tell the same number apart, those with more objects elsewhere, or whose were alone a shorter while ago.
    """
    labels, differs = one[0].copy(), one[0] != other[0]
    if not differs.any():
        return labels
    counts = [len(numbers_in(found)) for found, _ in (one, other)]
    patches, _ = connected((one[0] > 0) | (other[0] > 0))
    for patch in numbers_in(patches[differs]):
        inside = patches == patch
        value = []
        for (found, ages), count in zip((one, other), counts, strict=True):
            numbers = numbers_in(found[inside])
            age = sum(ages.get(each, 0) for each in numbers)
            value.append((sum(each > 0 for each in numbers), count, -age))
        if value[1] > value[0]:
            labels[inside] = other[0][inside]
    return labels


def numbers_in(labels: Array) -> list[int]:
    """The labels that there are, 0 among them."""
    return np.flatnonzero(np.bincount(labels.ravel())).tolist()
