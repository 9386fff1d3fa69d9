"""Objects through time: where each one is in each frame, under one number, and how well that matches true tracks."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

Labels = NDArray[Any]
GAP = 15  # frames that an object may be out of sight and still be the same


class Place(NamedTuple):
    """Where an object is in a frame: pixels at the frame's own size, x to the right and y down."""

    frame: int
    object: int  # its number through all frames, from 1
    label: int  # its label in this frame's label image
    box: tuple[int, int, int, int]  # x, y, width, height
    area: int
    centroid: tuple[float, float]  # x, y
    velocity: tuple[float, float]  # x, y: pixels a frame since it was last seen; 0 where it is new


@dataclass
class _Track:
    number: int
    place: Place
    area: float
    velocity: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))

    def expected(self, frame: int) -> NDArray[np.float64]:
        return np.array(self.place.centroid) + (frame - self.place.frame) * self.velocity


class Tracker:
    """Gives the objects of frame after frame their numbers.

    A component keeps its object's number as long as it stays near to where that object was going. An object that comes
    back after at most `GAP` frames, under whichever label, near to where it was going, has its old number.
    """

    def __init__(self) -> None:
        self._tracks: list[_Track] = []
        self._count, self._frame = 0, -1

    def add(self, labels: Labels) -> list[Place]:
        """Takes the labels (H,W) of the next frame, 0 for no object; gives where its objects are."""
        self._frame += 1
        found = _found(labels, self._frame)
        self._tracks = [each for each in self._tracks if self._frame - each.place.frame <= GAP + 1]
        taken = self._matched(found, np.hypot(*labels.shape))
        places = []
        for place in found:
            track = taken.get(place.label)
            if track is None:
                self._count += 1
                track = _Track(self._count, place, place.area)
                self._tracks.append(track)
            places.append(self._moved(track, place))
        return places

    def _moved(self, track: _Track, place: Place) -> Place:
        passed = place.frame - track.place.frame
        step = np.zeros(2)
        if passed:
            step = (np.array(place.centroid) - track.place.centroid) / passed
            track.velocity = 0.5 * track.velocity + 0.5 * step
        track.area = max(0.9 * track.area, place.area)
        track.place = place._replace(object=track.number, velocity=(float(step[0]), float(step[1])))
        return track.place

    def _matched(self, found: list[Place], diagonal: float) -> dict[int, _Track]:
        """The track that each label continues."""
        cost = np.ones((len(found), len(self._tracks)))  # out of reach; more would break sure pairs
        for i, place in enumerate(found):
            for j, track in enumerate(self._tracks):
                away = float(np.linalg.norm(track.expected(place.frame) - place.centroid))
                reach = 0.05 * diagonal + 1.5 * np.sqrt(track.area)
                if away < reach:
                    cost[i, j] = away / reach - (1.0 if track.place.label == place.label else 0.0)
        pairs = zip(*linear_sum_assignment(cost), strict=True)
        return {found[i].label: self._tracks[j] for i, j in pairs if cost[i, j] < 1}


def _found(labels: Labels, frame: int) -> list[Place]:
    """The objects of a frame, without numbers."""
    places = []
    parts: list[Any] = ndimage.find_objects(labels.astype(np.int32))  # None where a label is not there
    for label, part in enumerate(parts, start=1):
        if part is None:
            continue
        rows, columns = np.nonzero(labels[part] == label)
        top, left = part[0].start, part[1].start
        box = (left, top, part[1].stop - left, part[0].stop - top)
        centroid = (float(columns.mean()) + left, float(rows.mean()) + top)
        places.append(Place(frame, 0, label, box, len(rows), centroid, (0.0, 0.0)))
    return places


def run_lengths(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """A mask (H,W) as COCO writes it, uncompressed: runs of 0 and 1 in turn down the columns, 0 first."""
    flat = mask.T.ravel()
    ends = np.flatnonzero(np.diff(flat.astype(np.int8))) + 1
    bounds = np.concatenate([[0], ends, [len(flat)]])
    counts = np.diff(bounds).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if len(flat) and flat[0] else counts}


class TrackScores:
    """MOTA and IDF1 against true groups; an object is found where half of its pixels and the label's are shared.

    Pixels with group 0 are not scored, so labels there are no mistake, unless they are all that an object has.
    """

    def __init__(self) -> None:
        self._true: Counter[int] = Counter()
        self._found: Counter[int] = Counter()
        self._both: Counter[tuple[int, int]] = Counter()
        self._hits = self._switches = 0
        self._last: dict[int, int] = {}

    def add(self, groups: Labels, labels: Labels, places: list[Place]) -> None:
        """One frame's true groups (H,W), labels and places."""
        objects = [int(each) for each in np.unique(groups) if each]
        numbers = [place.object for place in places]
        self._true.update(objects)
        self._found.update(numbers)
        overlap = np.zeros((len(objects), len(places)))
        for j, place in enumerate(places):
            own = (labels == place.label) & (groups > 0)
            for i, group in enumerate(objects):
                true = groups == group
                overlap[i, j] = int((own & true).sum()) / max(1, int((own | true).sum()))
        good = overlap >= 0.5
        self._both.update((objects[i], numbers[j]) for i, j in zip(*np.nonzero(good), strict=True))
        # whom an object was found as before comes first, as in CLEAR MOT
        kept = np.array([[self._last.get(each) == number for number in numbers] for each in objects])
        value = good * (overlap + (kept if kept.size else 0.0))
        for row, column in zip(*linear_sum_assignment(value, maximize=True), strict=True):
            if good[row, column]:
                each, number = objects[row], numbers[column]
                self._hits += 1
                self._switches += self._last.get(each, number) != number
                self._last[each] = number

    def scores(self) -> dict[str, float]:
        """MOTA, IDF1, and how often an object changed its number."""
        true, found = self._true.total(), self._found.total()
        if not true:
            return {}
        missed, wrong = true - self._hits, found - self._hits
        rows, columns = sorted(self._true), sorted(self._found)
        table = np.array([[self._both[row, column] for column in columns] for row in rows]).reshape(len(rows), -1)
        same = int(table[linear_sum_assignment(table, maximize=True)].sum())
        return {"mota": round(1 - (missed + wrong + self._switches) / true, 6),
                "idf1": round(2 * same / (true + found), 6), "identity_switches": self._switches}  # fmt: skip
