"""Balls that bounce off each other and off the walls, some of them behind a curtain.

A sequence is a pure function of (seed, split, index). The motion is computed in float64 with sums, products, quotients
and square roots alone, each in a step of its own, which every processor rounds alike: the same bits on every device.

Positions are (N,K,2), row before column, in pixels from the upper left corner of the frame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.config import MAX_SIDE, Split, kind
from neural_em.data.generated import DrawnConfig, DrawnScenes, Painted, generate
from neural_em.errors import refuse
from neural_em.fields import TINY, Check, integer, number, several

# three equal balls, some of them hidden
CURTAIN: Mapping[str, Any] = {"objects": 3, "radii": (7.68,), "masses": (1.0,), "speed": 3.2, "curtain": 28}
_ATTEMPTS = 100  # at whole scenes, before the frame is called too small
SUBSTEPS = 16  # of a frame: at the usual speed balls sink into each other by less than a fifth of a pixel
_CANDIDATES = 64  # places tried for a ball at a time
_SCENE = 0xBA115  # keeps these numbers apart from every other use of a seed


@kind("bouncing-balls")
@dataclass(frozen=True, kw_only=True)
class BouncingBallsConfig(DrawnConfig):
    """White balls on black that bounce off each other and off the walls, without friction."""

    objects: int = 4
    frames: int = 51
    height: int = 64
    width: int = 64
    radii: tuple[float, ...] = (5.12, 6.4)  # in pixels, of the kinds of balls, which are equally likely
    masses: tuple[float, ...] = (1.0, 6.0)  # of the same kinds
    speed: float = 2.1  # root of the sum of all balls' squared velocities, in pixels a frame, whatever their number
    curtain: int = 0  # side of a black square, at the same random place in all frames, that hides what is behind it

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "radii": several(number("a number from 0.5 to 1000", 0.5, 1000), "a list of radii"),
        "masses": several(number("a number above 0", TINY, 1e6), "a list of masses"),
        "speed": number("a number from 0 to 100", 0, 100),
        "curtain": integer(0, MAX_SIDE),
    }

    def check_together(self) -> None:
        if len(self.radii) != len(self.masses):
            refuse("masses", f"one for each of {len(self.radii)} radii", len(self.masses))
        side, largest = min(self.height, self.width), max(self.radii)
        if 2 * largest > side or self.curtain > side:
            refuse("height and width", f"room for balls of radius {largest:g} and the curtain", f"{side} pixels")
        if self.speed / SUBSTEPS > side - 2 * largest:
            refuse("speed", f"at most {SUBSTEPS * (side - 2 * largest):g} in {side} pixels", self.speed)
        super().check_together()

    @property
    def room(self) -> int:
        """Balls that fit: where they are denser than a half, they hardly find places."""
        return max(1, int(self.height * self.width / (math.pi * max(self.radii) ** 2) / 2))

    def scenes(self, split: Split, seed: int, device: torch.device | str = "cpu") -> BallScenes:
        return BallScenes(self, split, seed, device)


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


class BallScenes(DrawnScenes[Tracks]):
    """All sequences of one split under one seed."""

    most_drawn = 16_384
    most_painted = dict.fromkeys(("cpu", "cuda"), 1 << 25)
    config: BouncingBallsConfig

    def paint(self, drawn: Tracks) -> Painted:
        return paint(drawn, *self.shape[2:], self.config.curtain)

    def collisions(self, drawn: Tracks) -> Tensor:
        return collisions(drawn, *self.shape[2:]).transpose(0, 1)

    def described(self, drawn: Tracks) -> dict[str, Tensor]:
        """Position and size of the balls, in pixels."""
        position = drawn.position.transpose(0, 1)  # (T,N,K,2)
        return {"position": position, "size": (2 * drawn.radius).expand(len(position), *drawn.radius.shape)}

    def draw(self, indices: Tensor) -> Tracks:
        config, (T, _, H, W) = self.config, self.shape
        key = randomness.keys(self.seed, _SCENE, self.split, indices, device=self.device)
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
        sort = randomness.integers(key, config.most, len(config.radii), stream=0)  # (N,K)
        radius, mass = torch.tensor([config.radii, config.masses], dtype=torch.float64, device=self.device)[:, sort]
        return throw(key, radius * config.there(key, stream=2), mass, H, W, config.speed)


def simulate(balls: Balls, frames: int, height: int, width: int) -> Tracks:
    """Moves the balls without friction; collisions are elastic, along the line between the centres."""
    balls = Balls(*(part.to(torch.float64) for part in balls))
    low = balls.radius.unsqueeze(-1)
    high = torch.tensor([height, width], dtype=torch.float64, device=low.device) - low
    positions, met = [balls.position], [torch.zeros_like(balls.radius, dtype=torch.bool)]
    for _ in range(frames - 1):
        hit = torch.zeros_like(met[0])
        for _ in range(SUBSTEPS):
            position, velocity = balls.position + balls.velocity / SUBSTEPS, balls.velocity
            # a ball beyond a wall is as far before it instead, and flies away from it
            before, beyond = position < low, position > high
            velocity = torch.where(before, velocity.abs(), torch.where(beyond, -velocity.abs(), velocity))
            position = torch.where(before, 2 * low - position, torch.where(beyond, 2 * high - position, position))
            balls, now = collide(balls._replace(position=position, velocity=velocity))
            hit = hit | now
        positions.append(balls.position)
        met.append(hit)
    return Tracks(balls.radius.float(), torch.stack(positions, dim=1).float(), torch.stack(met, dim=1))


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

    Radius and mass are (N,K) float64, of a ball that is not there 0; speed is the root of the sum of all squared
    velocities, in pixels a frame.
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
            free &= ~_touching(places, position[:, other, None], radius[:, k, None], radius[:, other, None])
        placed &= free.any(dim=1)
        chosen = free.to(torch.uint8).argmax(dim=1)  # the first that is free
        position[:, k] = places.gather(1, chosen[:, None, None].expand(-1, 1, 2))[:, 0]
    # sums of twelve uniform numbers are nearly normal and, unlike a logarithm or a cosine, exact: multiples of 2^-24
    parts = randomness.uniform(key, 24 * K, stream=1).to(torch.float64).view(N, K, 2, 12)
    velocity = (parts.sum(dim=-1) - 6) * (radius > 0).unsqueeze(-1)
    squares = (velocity * velocity).flatten(1)
    total = squares[:, 0]
    for i in range(1, 2 * K):  # one after the other: the order of a sum decides its last bit
        total = total + squares[:, i]
    velocity = velocity * (speed / total.sqrt())[:, None, None]
    return Balls(radius, mass, position, velocity), placed


def paint(tracks: Tracks, height: int, width: int, curtain: int = 0) -> Painted:
    """Hard discs; groups are 1 .. K where exactly one ball is seen; nothing is seen behind a curtain of that side."""
    count, number = _covered(tracks.position, tracks.radius[:, None], height, width)
    if tracks.curtain is not None:
        down, across = (
            (torch.arange(n, device=count.device) - tracks.curtain[:, axis, None] + 0.5 - curtain / 2).abs()
            < curtain / 2
            for axis, n in enumerate((height, width))
        )  # (N,H), (N,W)
        count = count * ~(down.unsqueeze(-1) & across.unsqueeze(-2))[:, None]
    alone = count == 1
    return Painted(count.clamp(max=1).unsqueeze(2), number * alone, (count > 1).to(torch.uint8))


def collisions(tracks: Tracks, height: int, width: int) -> Tensor:
    """Where (N,T,H,W) the frame has a ball that has just met another one, seen or hidden."""
    return _covered(tracks.position, tracks.radius[:, None] * tracks.met, height, width)[0] > 0


def _covered(position: Tensor, radius: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """How many balls (N,T,K) cover each pixel's centre, and the sum of their numbers, both (N,T,H,W) uint8."""
    N, T, K, _ = position.shape
    rows, columns = (torch.arange(n, device=radius.device, dtype=torch.float32) + 0.5 for n in (height, width))
    count = torch.zeros(N, T, height, width, dtype=torch.uint8, device=radius.device)
    number = torch.zeros_like(count)
    for k in range(K):
        down = (rows - position[:, :, k, :1]).square()  # (N,T,H)
        across = (columns - position[:, :, k, 1:]).square()
        inside = down.unsqueeze(-1) + across.unsqueeze(-2) < radius[:, :, k].square()[..., None, None]
        count += inside
        number += inside.to(torch.uint8) * (k + 1)
    return count, number


def bouncing_balls(
    num: int, seed: int = 0, split: Split = "training", device: torch.device | str = "cpu", start: int = 0,
    **fields: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sequences of balls that bounce off each other and off the walls; arguments and results are those of `generate`.

    The fields are those of `BouncingBallsConfig`: objects, frames, height, width, radii, masses, speed, curtain ...
    """
    return generate("bouncing-balls", num, seed, split, device, start, **fields)
