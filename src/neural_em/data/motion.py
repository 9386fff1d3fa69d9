"""Straight motion in a box: constant integer velocities, reflected at the walls without pausing."""

from __future__ import annotations

import torch
from torch import Tensor


def reflect(start: Tensor, velocity: Tensor, room: Tensor, frames: int) -> Tensor:
    """Positions over time of things that move at constant speed between the walls 0 and ``room``.

    A wall is touched for one frame: ..., 1, 0, 1, ... and ..., 15, 16, 15, ...

    Args:
        start: Integer positions at frame 0, each in [0, room]; any shape S.
        velocity: Integer pixels per frame, of shape S.
        room: The largest position, of shape S; 0 means there is no room to move.
        frames: How many frames.

    Returns:
        Integer positions of shape (*S, frames).
    """
    steps = torch.arange(frames, device=start.device, dtype=start.dtype)
    unfolded = start[..., None] + velocity[..., None] * steps
    wall = room[..., None]
    # the way there and back is 2 * room long; remainder is never negative here
    phase = torch.remainder(unfolded, (2 * wall).clamp(min=1))
    return torch.where(wall > 0, wall - (wall - phase).abs(), torch.zeros_like(phase))
