"""Balls that bounce off each other and off the walls: throwing, moving and painting them.

The motion is computed in float64 with sums, products, quotients and square roots alone, each in a step of its own,
which every processor rounds alike: the same bits on every device.

Positions are (N,K,2), row before column, in pixels from the upper left corner of the frame.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.generated import Painted

SUBSTEPS = 16  # of a frame: at the usual speed balls sink into each other by less than a fifth of a pixel
_CANDIDATES = 64  # places tried for a ball at a time


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
