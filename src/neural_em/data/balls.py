"""Balls that bounce off each other and off the walls, some of them behind a curtain.

A sequence is a pure function of (seed, split, index), the same bits on every device; `ball_motion.py` says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.ball_motion import SUBSTEPS, Balls, Tracks, collisions, paint, simulate, throw
from neural_em.data.config import MAX_OBJECTS, MAX_SIDE, SPLITS, Part, Split, kind
from neural_em.data.dataset import Batch, Dataset, StreamingDataset
from neural_em.data.generated import Painted, SceneConfig, SceneReader, make
from neural_em.errors import refuse, unknown
from neural_em.fields import TINY, Check, integer, number, optional, several

# three equal balls, some of them hidden
CURTAIN: Mapping[str, Any] = {"objects": 3, "radii": (7.68,), "masses": (1.0,), "speed": 3.2, "curtain": 28}
_ATTEMPTS = 100  # at whole scenes, before the frame is called too small
_SCENE = 0xBA115  # keeps these numbers apart from every other use of a seed
_TRACKED, _PAINTED = 16_384, 1 << 25  # sequences moved at a time; pixels painted at a time


@kind("bouncing-balls")
@dataclass(frozen=True, kw_only=True)
class BouncingBallsConfig(SceneConfig):
    """White balls on black that bounce off each other and off the walls, without friction.

    Attributes:
        most_objects: sequences have from ``objects`` to this many balls, all equally likely; ``None``: ``objects``.
        radii: in pixels, of the kinds of balls; each ball is of one of them, all equally likely.
        masses: of the same kinds.
        speed: root of the sum of all balls' squared velocities, in pixels a frame, whatever their number.
        curtain: side of a black square at a random place, the same in all frames, which hides what is behind it; 0 for
            none.
    """

    objects: int = 4
    frames: int = 51
    height: int = 64
    width: int = 64
    most_objects: int | None = None
    radii: tuple[float, ...] = (5.12, 6.4)
    masses: tuple[float, ...] = (1.0, 6.0)
    speed: float = 2.1
    curtain: int = 0

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "most_objects": optional(integer(1, MAX_OBJECTS)),
        "radii": several(number("a number from 0.5 to 1000", 0.5, 1000), "a list of radii"),
        "masses": several(number("a number above 0", TINY, 1e6), "a list of masses"),
        "speed": number("a number from 0 to 100", 0, 100),
        "curtain": integer(0, MAX_SIDE),
    }

    def check_together(self) -> None:
        """Refuses balls without room, and kinds that are only half described."""
        if len(self.radii) != len(self.masses):
            refuse("masses", f"one for each of {len(self.radii)} radii", len(self.masses))
        if self.most_objects is not None and self.most_objects < self.objects:
            refuse("most_objects", f"at least {self.objects}, the number of objects", self.most_objects)
        side, largest = min(self.height, self.width), max(self.radii)
        if 2 * largest > side or self.curtain > side:
            refuse("height and width", f"room for balls of radius {largest:g} and the curtain", f"{side} pixels")
        if self.speed / SUBSTEPS > side - 2 * largest:
            refuse("speed", f"at most {SUBSTEPS * (side - 2 * largest):g} in {side} pixels", self.speed)
        room = int(self.height * self.width / (math.pi * largest**2) / 2)  # denser than a half, they hardly find places
        if (self.most_objects or self.objects) > max(1, room):
            refuse("objects", f"at most {max(1, room)} in {self.height} x {self.width} pixels", self.objects)

    def scenes(self, split: Split, seed: int, device: torch.device | str = "cpu") -> BallScenes:
        """All sequences of a split."""
        return BallScenes(self, split, seed, device)

    def load(self, split: Part, seed: int, device: torch.device | str, count: int, budget: int) -> Dataset:
        """Where the balls are is held in memory; the frames, a hundred times as large, are painted batch by batch."""
        split_of: dict[str, Split] = {"training": "training", "validation": "validation", "test": "test"}
        scenes = self.scenes(split_of[split], seed, device)
        if self.fresh and split == "training":
            data = StreamingDataset(SceneReader(scenes), count, self.shape, True, device, True, self.note())
            data.truth = lambda indices: described(scenes.tracks(indices))
            return data
        return BallDataset(scenes, count)


class BallScenes:
    """All sequences of one split under one seed."""

    levels = 1
    dtype = torch.uint8

    def __init__(self, config: BouncingBallsConfig, split: Split, seed: int, device: torch.device | str) -> None:
        """The config's numbers have been checked by itself."""
        if split not in SPLITS:
            unknown("split", split, SPLITS)
        self.config, self.shape, self.device = config, config.shape, torch.device(device)
        self._seed, self._split = seed, SPLITS.index(split)

    def tracks(self, indices: Tensor) -> Tracks:
        """Where the balls of the scenes at the given indices (N,) are in every frame."""
        parts = [self._tracks(some.to(self.device)) for some in indices.split(_TRACKED)]
        joined = (None if pieces[0] is None else torch.cat(pieces) for pieces in zip(*parts, strict=True))
        return Tracks(*joined)  # type: ignore[arg-type]

    def sequences(self, indices: Tensor) -> Iterator[tuple[slice, Painted]]:
        """Paints the sequences at the given indices (N,) a few at a time, each lot with its place in 0 .. N."""
        T, _, H, W = self.shape
        lot = max(1, _PAINTED // (T * H * W))
        tracks = self.tracks(indices)
        for first in range(0, len(indices), lot):
            rows = slice(first, min(first + lot, len(indices)))
            yield rows, paint(tracks.select(rows), H, W, self.config.curtain)

    def _tracks(self, indices: Tensor) -> Tracks:
        config, (T, _, H, W) = self.config, self.shape
        key = randomness.keys(self._seed, _SCENE, self._split, indices, device=self.device)
        balls, placed = self._throw(key)
        for attempt in range(1, _ATTEMPTS):
            rows = (~placed).nonzero()[:, 0]
            if len(rows) == 0:
                break
            again, done = self._throw(randomness.fold(key[rows], attempt))
            balls = Balls(*(part.index_copy(0, rows, new) for part, new in zip(balls, again, strict=True)))
            placed = placed.index_copy(0, rows, done)
        if not placed.all():
            refuse("height x width", "room for balls that do not touch each other at the start", f"{H} x {W}")
        tracks = simulate(balls, T, H, W)
        if not config.curtain:
            return tracks
        room = torch.tensor([H, W], device=self.device) - config.curtain + 1
        return tracks._replace(curtain=randomness.integers(key, 2, room, stream=3).float())

    def _throw(self, key: Tensor) -> tuple[Balls, Tensor]:
        config, (_, _, H, W) = self.config, self.shape
        most = config.most_objects or config.objects
        sort = randomness.integers(key, most, len(config.radii), stream=0)  # (N,K)
        radius, mass = (
            torch.tensor(table, dtype=torch.float64, device=self.device)[sort]
            for table in (config.radii, config.masses)
        )
        number = config.objects + randomness.integers(key, 1, most - config.objects + 1, stream=2)  # (N,1)
        there = torch.arange(most, device=self.device) < number
        return throw(key, radius * there, mass, H, W, config.speed)


class BallDataset(Dataset):
    """Holds where the balls are, and paints a batch when it is asked for; on a GPU without the host."""

    resident = True
    has_groups = True

    def __init__(self, scenes: BallScenes, count: int) -> None:
        """Moves the balls of the first so many scenes."""
        self.shape, self.device, self.note = scenes.shape, scenes.device, scenes.config.note()
        self._tracks, self._curtain = scenes.tracks(torch.arange(count)), scenes.config.curtain
        self.truth = lambda indices: described(self._select(indices))

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self._tracks.radius)

    def batch(self, indices: Tensor) -> Batch:
        """See the base."""
        tracks = self._select(indices)
        painted = paint(tracks, *self.shape[2:], self._curtain)
        frames = painted.frames.transpose(0, 1).to(torch.float32).contiguous()
        return Batch(frames, painted.groups.transpose(0, 1).contiguous())

    def collisions(self, indices: Tensor) -> Tensor:
        """Where (T,B,H,W) the frames show a ball that has just met another one."""
        return collisions(self._select(indices), *self.shape[2:]).transpose(0, 1)

    def _select(self, indices: Tensor) -> Tracks:
        if not indices.is_cuda and len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self):
            refuse("indices", f"numbers from 0 to {len(self) - 1}", f"{int(indices.min())} to {int(indices.max())}")
        return self._tracks.select(indices.to(self.device, non_blocking=True))


def described(tracks: Tracks) -> dict[str, Tensor]:
    """Position and size of the balls, in pixels; see `Dataset.properties`."""
    position = tracks.position.transpose(0, 1)  # (T,N,K,2)
    return {"position": position, "size": (2 * tracks.radius).expand(len(position), *tracks.radius.shape)}


def bouncing_balls(
    num: int, seed: int = 0, split: Split = "training", device: torch.device | str = "cpu", start: int = 0,
    **fields: object,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sequences of balls that bounce off each other and off the walls.

    Args:
        num: How many sequences.
        seed: Together with the split and its index, names a sequence, the same on every device.
        split: "training", "validation" or "test".
        device: Where to make them.
        start: Index of the first sequence.
        fields: Of `BouncingBallsConfig`: objects, frames, height, width, radii, masses, speed, curtain ...

    Returns:
        Frames (T,N,1,H,W) float32, 0 or 1, and groups (T,N,H,W) uint8: 1 .. objects, 0 where not exactly one ball is.
    """
    return make(BouncingBallsConfig("bouncing-balls", **fields).scenes(split, seed, device), num, start)  # type: ignore[arg-type]
