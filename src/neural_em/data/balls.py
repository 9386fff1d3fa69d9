"""Balls that bounce off each other and off the walls, some of them behind a curtain.

A sequence is a pure function of (seed, split, index), the same bits on every device; `ball_motion.py` says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.ball_motion import SUBSTEPS, Balls, Tracks, collisions, paint, simulate, throw
from neural_em.data.config import MAX_SIDE, Split, kind
from neural_em.data.drawn import DrawnConfig, DrawnScenes
from neural_em.data.generated import Painted, generate
from neural_em.errors import refuse
from neural_em.fields import TINY, Check, integer, number, several

# three equal balls, some of them hidden
CURTAIN: Mapping[str, Any] = {"objects": 3, "radii": (7.68,), "masses": (1.0,), "speed": 3.2, "curtain": 28}
_ATTEMPTS = 100  # at whole scenes, before the frame is called too small
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


class BallScenes(DrawnScenes[Tracks]):
    """All sequences of one split under one seed."""

    most_drawn = 16_384
    most_painted = dict.fromkeys(("cpu", "cuda"), 1 << 25)
    config: BouncingBallsConfig

    def paint(self, drawn: Tracks) -> Painted:
        return paint(drawn, *self.shape[2:], self.config.curtain)

    def collisions(self, drawn: Tracks) -> Tensor:
        return collisions(drawn, *self.shape[2:])

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
        radius, mass = (
            torch.tensor(table, dtype=torch.float64, device=self.device)[sort]
            for table in (config.radii, config.masses)
        )
        return throw(key, radius * config.there(key, stream=2), mass, H, W, config.speed)


def bouncing_balls(
    num: int, seed: int = 0, split: Split = "training", device: torch.device | str = "cpu", start: int = 0,
    **fields: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sequences of balls that bounce off each other and off the walls; arguments and results are those of `generate`.

    The fields are those of `BouncingBallsConfig`: objects, frames, height, width, radii, masses, speed, curtain ...
    """
    return generate("bouncing-balls", num, seed, split, device, start, **fields)
