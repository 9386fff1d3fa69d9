"""A clip gone through forwards and backwards.

Shapes: frames (C,H,W), labels (H,W), gamma (K,h,w), a whole number of times smaller.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_em.segment.lobes import connected, lobed
from neural_em.segment.objects import Follower, chosen
from neural_em.segment.spool import Spool

Array = NDArray[Any]
Both = tuple[int, Array, set[int]]  # a frame's place in the clip, its labels, and the objects that are alone in it


class Pass:
    """Follows the objects of a clip, frame by frame; `back` goes through it backwards and puts both together."""

    def __init__(self, lobes: bool = False) -> None:
        self._lobes, self._forward = lobes, Follower(lobes=lobes)
        self._found, self._ages = Spool(), list[dict[int, int]]()

    def add(self, frame: Array, there: Array, gamma: Array) -> None:
        """The next frame (C,H,W), where (H,W) it is not ground, and the assignment (K,h,w)."""
        patches, _ = (lobed if self._lobes else connected)(there)
        labels, ages = self._forward.add(frame, patches, gamma)
        self._found.add(labels, patches)
        self._ages.append(ages)

    def back(self, seen: Spool) -> Iterator[Both]:
        """From the last frame to the first; ``seen`` are the frames, as bytes."""
        last, things = len(self._ages) - 1, self._forward.things
        for thing in things:
            thing.velocity, thing.alone = -thing.velocity, thing.alone - last - 1
        backward = Follower(things, self._forward.count, self._lobes)
        for i in range(last, -1, -1):
            forward, patches = self._found[i]
            frame, _, gamma = unpacked(seen, i)
            found = backward.add(frame, patches, gamma, forward)
            ages = {**found[1], **self._ages[i]}
            alone = {each for each in ages if 0 in (ages[each], found[1].get(each))}
            yield i, chosen((forward, self._ages[i]), found), alone


class Labelled:
    """The labels of a clip, from the last frame to the first."""

    def __init__(self, frames: Iterable[Both]) -> None:
        self.labels, self.alone = Spool(), dict[int, set[int]]()
        for i, labels, alone in frames:
            self.labels.add(labels)
            self.alone[i] = alone

    def __iter__(self) -> Iterator[Both]:
        for place, (i, alone) in enumerate(self.alone.items()):
            yield i, self.labels[place][0], alone


def unpacked(seen: Spool, i: int) -> tuple[Array, Array, Array]:
    """A frame (C,H,W), where it is not ground (H,W), and its assignment (K,h,w), from bytes."""
    frame, there, gamma = seen[i]
    return frame / np.float32(255), there, gamma / np.float32(255)


def enlarged(maps: Array, like: Array) -> Array:
    """Maps (...,h,w) at the size (H,W) of another, a whole number of times larger."""
    factor = like.shape[-1] // maps.shape[-1]
    return maps if factor == 1 else maps.repeat(factor, axis=-2).repeat(factor, axis=-1)
