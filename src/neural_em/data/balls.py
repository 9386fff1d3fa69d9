"""Balls that bounce off each other and off the walls, some of them behind a curtain.

A sequence is a pure function of (seed, split, index). The motion is computed in float64 with sums, products, quotients
and square roots alone, each in a step of its own, which every processor rounds alike: the same bits on every device.

Positions are (N,K,2), row before column, in pixels from the upper left corner of the frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.config import MAX_OBJECTS, MAX_SIDE, SPLITS, Part, Split, kind
from neural_em.data.dataset import Batch, Dataset, StreamingDataset
from neural_em.data.generated import Painted, SceneConfig, SceneReader, make
from neural_em.errors import refuse, unknown
from neural_em.fields import TINY, Check, integer, number, optional, several

# three equal balls, some of them hidden
CURTAIN: Mapping[str, Any] = {"objects": 3, "radii": (7.68,), "masses": (1.0,), "speed": 3.2, "curtain": 28}
SUBSTEPS = 16  # of a frame: balls sink into each other by less than a fifth of a pixel before they turn round
_CANDIDATES = 64  # places tried for a ball at a time
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
            return StreamingDataset(SceneReader(scenes), count, self.shape, True, device, True, self.note())
        return BallDataset(scenes, count)


class Balls(NamedTuple):
    """N scenes of K balls each at one moment; a ball of radius 0 is not there."""

    radius: Tensor  # (N,K)
    mass: Tensor  # (N,K)
    position: Tensor  # (N,K,2)
    velocity: Tensor  # (N,K,2), pixels a frame


class Tracks(NamedTuple):
    """Where N scenes of K balls are in each of T frames, and which balls met another one on the way to it."""

    radius: Tensor  # (N,K) float32
    position: Tensor  # (N,T,K,2) float32
    met: Tensor  # (N,T,K) bool; nothing before the first frame
    curtain: Tensor | None = None  # (N,2) float32: upper left corner

    def select(self, rows: Tensor | slice) -> Tracks:
        """Some of the scenes."""
        return Tracks(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]


def simulate(balls: Balls, frames: int, height: int, width: int) -> Tracks:
    """Moves the balls without friction; collisions are elastic, along the line between the centres."""
    balls = Balls(*(part.to(torch.float64) for part in balls))
    low = balls.radius.unsqueeze(-1)
    high = torch.tensor([height, width], dtype=torch.float64, device=low.device) - low
    positions, met = [balls.position], [torch.zeros_like(balls.radius, dtype=torch.bool)]
    for _ in range(frames - 1):
        hit = torch.zeros_like(met[0])
        for _ in range(SUBSTEPS):
            position = balls.position + balls.velocity / SUBSTEPS
            balls = _off_the_walls(balls._replace(position=position), low, high)
            balls, now = collide(balls)
            hit = hit | now
        positions.append(balls.position)
        met.append(hit)
    return Tracks(balls.radius.float(), torch.stack(positions, dim=1).float(), torch.stack(met, dim=1))


def _off_the_walls(balls: Balls, low: Tensor, high: Tensor) -> Balls:
    """A ball beyond a wall is as far before it instead, and flies away from it."""
    position, velocity = balls.position, balls.velocity
    before, beyond = position < low, position > high
    velocity = torch.where(before, velocity.abs(), torch.where(beyond, -velocity.abs(), velocity))
    position = torch.where(before, 2 * low - position, torch.where(beyond, 2 * high - position, position))
    return balls._replace(position=position, velocity=velocity)


def collide(balls: Balls) -> tuple[Balls, Tensor]:
    """Balls that touch and approach each other exchange momentum, pair after pair; who did (N,K)."""
    radius, mass, position, velocity = balls
    N, K = radius.shape
    first, second = torch.triu_indices(K, K, 1)
    touching = _touching(position[:, first], position[:, second], radius[:, first], radius[:, second])  # (N,P)
    hit = torch.zeros(N, K, dtype=torch.bool, device=radius.device)
    rows = touching.any(dim=1).nonzero()[:, 0]
    if len(rows) == 0:
        return balls, hit
    touching, mass, position, moving = touching[rows], mass[rows], position[rows], velocity[rows]
    involved = hit[rows]
    for pair in touching.any(dim=0).nonzero()[:, 0].tolist():
        i, j = int(first[pair]), int(second[pair])
        apart = position[:, i] - position[:, j]  # (R,2)
        along = _dot(moving[:, i] - moving[:, j], apart)  # negative where they approach
        meets = touching[:, pair] & (along < 0)
        impulse = torch.where(meets, 2 * along / _dot(apart, apart) / (mass[:, i] + mass[:, j]), 0)
        push = impulse.unsqueeze(1) * apart
        moving[:, i] = moving[:, i] - push * mass[:, j : j + 1]
        moving[:, j] = moving[:, j] + push * mass[:, i : i + 1]
        involved[:, i] |= meets
        involved[:, j] |= meets
    return balls._replace(velocity=velocity.index_copy(0, rows, moving)), hit.index_copy(0, rows, involved)


def _touching(a: Tensor, b: Tensor, radius_a: Tensor, radius_b: Tensor) -> Tensor:
    """Whether discs at (...,2) overlap; one that is not there touches nothing."""
    reach = radius_a + radius_b
    return (_dot(a - b, a - b) < reach * reach) & (radius_a > 0) & (radius_b > 0)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    product = a * b
    return product[..., 0] + product[..., 1]  # a sum of two: its order cannot differ


def throw(key: Tensor, radius: Tensor, mass: Tensor, height: int, width: int, speed: float) -> tuple[Balls, Tensor]:
    """Balls (N,K) inside the frame and apart from each other, with random velocities; and which scenes succeeded (N,).

    Args:
        key: (N,), what the scenes are drawn from.
        radius: (N,K) float64; 0 for a ball that is not there.
        mass: (N,K) float64.
        height: of the frame.
        width: of the frame.
        speed: root of the sum of all squared velocities, in pixels a frame.
    """
    N, K = radius.shape
    position = torch.zeros(N, K, 2, dtype=torch.float64, device=radius.device)
    placed = torch.ones(N, dtype=torch.bool, device=radius.device)
    size = torch.tensor([height, width], dtype=torch.float64, device=radius.device)
    for k in range(K):
        u = randomness.uniform(key, 2 * _CANDIDATES, stream=16 + k).view(N, _CANDIDATES, 2).to(torch.float64)
        own = radius[:, k, None, None]
        places = own + u * (size - 2 * own)  # (N,A,2)
        free = torch.ones(N, _CANDIDATES, dtype=torch.bool, device=radius.device)
        for other in range(k):
            reach = (position[:, other, None], radius[:, k, None], radius[:, other, None])
            free &= ~_touching(places, *reach)
        placed &= free.any(dim=1)
        chosen = free.to(torch.uint8).argmax(dim=1)  # the first that is free
        position[:, k] = places.gather(1, chosen[:, None, None].expand(-1, 1, 2))[:, 0]
    velocity = _near_normal(key, 2 * K).view(N, K, 2) * (radius > 0).unsqueeze(-1)
    squares = (velocity * velocity).flatten(1)
    total = squares[:, 0]
    for i in range(1, 2 * K):  # one after the other: the order of a sum decides its last bit
        total = total + squares[:, i]
    velocity = velocity * (speed / total.sqrt())[:, None, None]
    return Balls(radius, mass, position, velocity), placed


def _near_normal(key: Tensor, count: int) -> Tensor:
    """Sums of twelve uniform numbers, float64 (N,count): nearly normal, and exact, unlike a logarithm or a cosine."""
    parts = randomness.uniform(key, 12 * count, stream=1).to(torch.float64).view(len(key), count, 12)
    return parts.sum(dim=-1) - 6  # multiples of 2^-24: exact in any order


def paint(tracks: Tracks, height: int, width: int, curtain: int = 0) -> Painted:
    """Hard discs; groups are 1 .. K where exactly one ball is seen; nothing is seen behind a curtain of that side."""
    count, number = _covered(tracks, height, width)
    if tracks.curtain is not None:
        count = count * ~_square(tracks.curtain, curtain, height, width)[:, None]
    alone = count == 1
    return Painted(count.clamp(max=1).unsqueeze(2), number * alone, (count > 1).to(torch.uint8))


def collisions(tracks: Tracks, height: int, width: int) -> Tensor:
    """Where (N,T,H,W) the frame has a ball that has just met another one, seen or hidden."""
    radius = tracks.radius[:, None].expand(-1, tracks.position.shape[1], -1)
    return _covered(tracks._replace(radius=radius * tracks.met), height, width)[0] > 0


def _covered(tracks: Tracks, height: int, width: int) -> tuple[Tensor, Tensor]:
    """How many balls cover each pixel's centre, and the sum of their numbers, both (N,T,H,W) uint8."""
    N, T, K, _ = tracks.position.shape
    radius = tracks.radius if tracks.radius.dim() == 3 else tracks.radius[:, None].expand(N, T, K)
    rows, columns = (torch.arange(n, device=radius.device, dtype=torch.float32) + 0.5 for n in (height, width))
    count = torch.zeros(N, T, height, width, dtype=torch.uint8, device=radius.device)
    number = torch.zeros_like(count)
    for k in range(K):
        down = (rows - tracks.position[:, :, k, :1]).square()  # (N,T,H)
        across = (columns - tracks.position[:, :, k, 1:]).square()
        inside = down.unsqueeze(-1) + across.unsqueeze(-2) < radius[:, :, k].square()[..., None, None]
        count += inside
        number += inside.to(torch.uint8) * (k + 1)
    return count, number


def _square(corner: Tensor, side: int, height: int, width: int) -> Tensor:
    """Where (N,H,W) squares of that side are whose corners are at (N,2)."""
    down, across = (
        (torch.arange(n, device=corner.device) - corner[:, axis : axis + 1] + 0.5 - side / 2).abs() < side / 2
        for axis, n in enumerate((height, width))
    )
    return down.unsqueeze(-1) & across.unsqueeze(-2)


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
