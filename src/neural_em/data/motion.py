"""Motion in a box, in whole numbers: reflected at the walls without pausing, the same on every device."""

import math

import torch
from torch import Tensor

from neural_em import randomness

UNIT = 256  # fractional places are held in such parts of a pixel
HEADINGS = 256  # directions in a full turn
_FINE = 4096  # what stands for 1.0 in sines and cosines; coarse enough that every processor rounds them alike
_MOTIONS = 4  # still, straight, curved, speeding up or slowing down
_BEND = 10  # of a curve, at most: headings a frame


def reflect(start: Tensor, velocity: Tensor, room: Tensor, frames: int) -> Tensor:
    """Positions over time of things that move at constant speed between the walls 0 and ``room``.

    A wall is touched for one frame: ..., 1, 0, 1, ... and ..., 15, 16, 15, ... Start, velocity and room are integers
    of one shape S, the positions (*S, frames); a room of 0 is none to move in.
    """
    steps = torch.arange(frames, device=start.device, dtype=start.dtype)
    return fold(start[..., None] + velocity[..., None] * steps, room[..., None])


def launch(key: Tensor, room: Tensor, velocities: Tensor) -> tuple[Tensor, Tensor]:
    """Corners in [0, room] and velocities out of a list (V,), for rooms (N,K,2), all equally likely; streams 1 to 4."""
    K = room.shape[1]
    corner = [randomness.integers(key, K, room[..., axis] + 1, stream=1 + axis) for axis in (0, 1)]
    choice = [randomness.integers(key, K, len(velocities), stream=3 + axis) for axis in (0, 1)]
    return torch.stack(corner, dim=-1), velocities[torch.stack(choice, dim=-1)]


def fold(unfolded: Tensor, wall: Tensor) -> Tensor:
    """Where somebody is between the walls 0 and ``wall`` who would be at ``unfolded`` if there were none; integers."""
    # the way there and back is 2 * wall long; remainder is never negative here
    phase = torch.remainder(unfolded, (2 * wall).clamp(min=1))
    return torch.where(wall > 0, wall - (wall - phase).abs(), torch.zeros_like(phase))


def directions(device: torch.device | str = "cpu") -> Tensor:
    """Sine and cosine of all headings (HEADINGS, 2), int64; 4096 stands for 1."""
    angles = [2 * math.pi * heading / HEADINGS for heading in range(HEADINGS)]
    return torch.tensor([[round(_FINE * math.sin(a)), round(_FINE * math.cos(a))] for a in angles], device=device)


def wander(key: Tensor, start: Tensor, room: Tensor, frames: int, speed: int, varied: bool) -> Tensor:
    """Positions (N,K,2,T) of things that fly at any speed up to the given one, in any direction; streams from 32 on.

    Start, room (N,K,2) and speed are in 1/256 pixels. Varied: equally many stand still, fly straight on, fly in curves,
    and speed up or slow down.
    """
    count = start.shape[1]
    pace, change = (randomness.integers(key, count, speed + 1, stream=32 + i) for i in (0, 1))  # (N,K)
    heading = randomness.integers(key, count, HEADINGS, stream=34)
    bend = randomness.integers(key, count, 2 * _BEND + 1, stream=35) - _BEND
    sort = randomness.integers(key, count, _MOTIONS, stream=36)
    steps = torch.arange(frames - 1, device=start.device)
    last = torch.where(sort == 3, change, pace) if varied else pace
    bend = torch.where(sort == 2, bend, 0) if varied else torch.zeros_like(bend)
    fast = pace[..., None] + (last - pace)[..., None] * steps // max(1, frames - 2)  # (N,K,T-1)
    if varied:
        fast = fast * (sort != 0)[..., None]
    way = directions(start.device)[(heading[..., None] + bend[..., None] * steps) % HEADINGS]  # (N,K,T-1,2)
    moved = (fast[..., None] * way + _FINE // 2) // _FINE
    path = torch.cat([torch.zeros_like(start)[:, :, None], moved.cumsum(dim=2)], dim=2) + start[:, :, None]
    return fold(path, room[:, :, None]).transpose(2, 3)
