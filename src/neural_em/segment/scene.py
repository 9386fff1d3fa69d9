"""The objects of a whole clip in front of a known ground: followed in both directions of time, then put together.

Objects that always move together are one; components that move apart within one are several.
"""

from collections import defaultdict
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from neural_em.segment.config import MAX_COMPONENTS
from neural_em.segment.objects import numbers_in
from neural_em.segment.parts import parted
from neural_em.segment.passes import Labelled, Pass, enlarged
from neural_em.segment.spool import Spool

Array = NDArray[Any]
_SHORT, _CLIP = 3, 8  # frames that an object is seen, at least, in a clip of so many or more
_TOGETHER = 8  # frames that tell whether two move together
_STILL = 1.5  # pixels that a distance may vary, for noise
_SHARE = 0.15  # of an object's pixels that a component owns, to be a part of it
_LISTED = 6  # objects that are named one by one
_APART = 0.25  # of an object's size: parts whose distance varies by more are two objects


class Moments:
    """Count, mean and spread of points, and how far each is from the one before."""

    def __init__(self) -> None:
        self.count, self._sum, self._squares = 0, np.zeros(2), np.zeros(2)
        self._last: Array | None = None
        self._steps = 0.0

    def add(self, point: Array) -> None:
        """Takes the next point (2,)."""
        self._steps += 0.0 if self._last is None else float(np.linalg.norm(point - self._last))
        self.count, self._last = self.count + 1, point
        self._sum, self._squares = self._sum + point, self._squares + point**2

    @property
    def mean(self) -> Array:
        return self._sum / max(1, self.count)

    @property
    def spread(self) -> float:
        return float(np.sqrt(np.maximum(0, self._squares / max(1, self.count) - self.mean**2).sum()))

    @property
    def step(self) -> float:
        return self._steps / max(1, self.count - 1)


class Scene:
    """Takes the frames of a clip one by one; `finish` makes the objects of them, `labels` gives them.

    Attributes:
        found: after `finish`, each object's label, its frames, and the components that it had while it was alone.
    """

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._seen, self._done = Spool(), Spool()
        self._pass = Pass()
        self._unlabelled = 0  # objects for which no label was free
        self._life: dict[int, list[int]] = {}  # of each object: its first and last frame, and how many
        self._size: dict[int, float] = {}  # of each object, in pixels along a side
        self._owned: dict[int, Array] = defaultdict(lambda: np.zeros(MAX_COMPONENTS))  # pixels, by component
        self._places: dict[int, Moments] = defaultdict(Moments)
        self._parts: dict[tuple[int, int, int], Moments] = defaultdict(Moments)  # between components of an object
        self._pairs: dict[tuple[int, int], Moments] = defaultdict(Moments)  # between objects
        self._table: dict[int, list[int]] = {}  # the label of each part of an object
        self._group: dict[int, Array] = {}  # (K,): which part of an object a component is, where it has several

    def add(self, frame: Array, there: Array, gamma: Array) -> None:
        """The next frame (C,H,W), where (H,W) it is not ground, and the assignment (K,h,w), a few times smaller."""
        self._pass.add(frame, there, gamma)
        bytes_of = [np.rint(255 * np.clip(each, 0, 1)).astype(np.uint8) for each in (frame, gamma)]
        self._seen.add(bytes_of[0], there, bytes_of[1])

    def finish(self) -> None:
        """Goes back through the clip, puts both directions together, and tells what is one object."""
        found = Labelled(self._pass.back(self._seen))
        found = parted(self._seen, found) or found
        for i, labels, alone in found:
            owners = self._seen[i][2].argmax(axis=0).astype(np.uint8)
            self._done.add(labels, owners)
            self._look(i, labels, enlarged(owners, labels), alone)
        self._number(self._joined(), len(self._seen))

    def labels(self, i: int) -> Array:
        """The labels (H,W) of a frame."""
        numbers, owners = self._done[len(self._done) - 1 - i]
        owners = enlarged(owners, numbers)
        labels = np.zeros(numbers.shape, np.uint8)
        for number in numbers_in(numbers[numbers > 0]):
            inside, table = numbers == number, np.array(self._table[number], np.uint8)
            labels[inside] = table[self._group[number][owners[inside]]] if len(table) > 1 else table[0]
        return labels

    def summary(self) -> dict[str, Any]:
        """The objects; components that are on one object alone, and so are one; components that hold several."""
        homes: dict[int, list[int]] = defaultdict(list)
        for each in self.found:
            for k in each["components"]:
                homes[k].append(each["label"])
        own = [[k for k in each["components"] if len(homes[k]) == 1] for each in self.found]
        shared = {str(k): sorted(set(home)) for k, home in sorted(homes.items()) if len(set(home)) > 1}
        merged = [each for each in own if len(each) > 1]
        return {"objects": self.found, "merged": merged, "shared": shared, "unlabelled": self._unlabelled}

    def _look(self, i: int, labels: Array, owners: Array, alone: set[int]) -> None:
        """Notes where objects are, and of what components, as far as they are alone."""
        centres = {}
        for number in numbers_in(labels[labels > 0]):
            life = self._life.setdefault(number, [i, i, 0])
            life[0], life[2] = i, life[2] + 1
            rows, columns = np.nonzero(labels == number)
            inside = owners[rows, columns]
            pixels = np.bincount(inside, minlength=MAX_COMPONENTS)
            parts = {int(k): np.array([rows[inside == k].mean(), columns[inside == k].mean()])
                     for k in np.flatnonzero(pixels >= _SHARE * len(rows))}  # fmt: skip
            for k, another in combinations(parts, 2):
                self._parts[number, k, another].add(parts[another] - parts[k])
            self._owned[number] += pixels
            self._size[number] = max(self._size.get(number, 0), float(np.sqrt(len(rows))))
            if number in alone:
                centres[number] = np.array([rows.mean(), columns.mean()])
                self._places[number].add(centres[number])
        for one, other in combinations(sorted(centres), 2):
            self._pairs[one, other].add(centres[other] - centres[one])

    def _joined(self) -> dict[int, int]:
        """For each object the one that it is a part of, often itself: parts keep their distance wherever they go."""
        root = {number: number for number in self._life}
        for (one, other), between in self._pairs.items():
            near = np.linalg.norm(between.mean) < 1.5 * max(self._size[one], self._size[other])
            always = between.count >= max(_TOGETHER, 0.8 * min(self._places[each].count for each in (one, other)))
            moves = self._places[one].spread > 4 * _STILL
            if near and always and moves and between.spread < _STILL:
                old, new = root[other], root[one]
                root = {number: new if each == old else each for number, each in root.items()}
        return root

    def _groups(self, number: int) -> Array:
        """Which part of an object each component (K,) is: 0, unless it moves against others within the object."""
        owned, group = self._owned[number], np.zeros(MAX_COMPONENTS, np.int64)
        parts = [int(k) for k in np.flatnonzero(owned >= _SHARE * max(1.0, owned.sum()))]
        for place, k in enumerate(parts):
            group[k] = place
        for one, other in combinations(parts, 2):
            between = self._parts[number, one, other]
            often = between.count >= max(_TOGETHER, 0.5 * self._life[number][2])
            apart = between.spread > _APART * self._size[number] and between.step < 0.5 * between.spread
            if not (often and apart):
                group[group == group[other]] = group[one]
        return np.unique(group, return_inverse=True)[1].reshape(-1)

    def _number(self, root: dict[int, int], frames: int) -> None:
        """Gives labels: the lowest that is free as long as an object is there."""
        lives = dict[int, list[int]]()
        for number, (first, last, count) in self._life.items():
            known = lives.setdefault(root[number], [first, last, 0])
            lives[root[number]] = [min(known[0], first), max(known[1], last), known[2] + count]
        busy = np.full(MAX_COMPONENTS + 1, -1)  # the last frame that a label is taken
        given = dict[int, list[int]]()
        for number, (first, last, count) in sorted(lives.items(), key=lambda each: (each[1][0], each[0])):
            group = self._group[number] = self._groups(number)
            given[number] = []
            for part in range(int(group.max()) + 1):
                free = [each for each in range(1, len(busy)) if busy[each] < first]
                short = count < _SHORT and frames >= _CLIP
                label = 0 if short or not free else free[0]
                self._unlabelled += not short and not free
                given[number].append(label)
                if label:
                    busy[label] = last
                    members = [each for each in root if root[each] == number]
                    owned = np.where(group == part, sum(self._owned[each] for each in members), 0)
                    components = np.flatnonzero(owned >= _SHARE * max(1.0, float(owned.sum()))) + 1
                    self.found.append({"label": label, "first": first, "last": last, "frames": count,
                                       "components": components.tolist() if owned.any() else [],
                                       "patches": len(members)})  # fmt: skip
        for number, new in root.items():
            self._table[number] = given[new] if number == new else given[new][:1]


def filled(labels: Array) -> Array:
    """Labels (H,W) in which each pixel without one has that of the nearest object, or 1 where there are none."""
    if not labels.any():
        return np.ones_like(labels)
    nearest = ndimage.distance_transform_edt(labels == 0, return_distances=False, return_indices=True)
    return np.asarray(labels[tuple(nearest)])


def told(summary: dict[str, Any]) -> list[str]:
    """What to say of a summary, in a few lines."""
    count = len(summary["objects"])
    lines = [f"{count} object{'' if count == 1 else 's'} followed through the clip (--raw labels components instead)"]
    lines += [f"components {_listed(each)} are never apart: taken for one object" for each in summary["merged"]]
    for k, labels in summary["shared"].items():
        where = f"objects {_listed(labels)}" if len(labels) <= _LISTED else f"{len(labels)} objects"
        lines.append(f"component {k} is on {where}: told apart by how they move")
    if summary["unlabelled"]:
        lines.append(f"{summary['unlabelled']} more objects have no label: {MAX_COMPONENTS} at a time is the most")
    return lines


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
