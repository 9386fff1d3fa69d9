"""How objects' surfaces look, and a camera's noise: tables that are looked up, the same bits on every device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.grounds import TILE, textures
from neural_em.data.silhouettes import GRID

SHADED, TEXTURED = 1, 5  # the first shaded and the first textured surface; 0 is flat
_TEXTURES = (0, 1, 2, 3, 4, 12, 13, 14, 15, 20, 21)  # coarse enough to be seen on an object
_NUMBERS = 1 << 18  # in the table of noise: frames read it from a random place on
_SEED = 0x5F2FA


@cache
def surfaces() -> Tensor:
    """Brightness of surfaces (U,GRID,GRID) uint8, 255 = the object's own colour: flat, lit from a side, textured."""
    assert GRID == TILE
    place = torch.arange(GRID)
    flat = torch.full((GRID, GRID), 255)
    lit = []
    for down, across in ((32, 32), (32, 96), (96, 32), (96, 96)):
        distance = (place - down)[:, None].square() + (place - across).square()
        lit.append((255 - distance * 150 // 10_000).clamp(min=90))
    rough = [255 - textures()[i] * 150 // 255 for i in _TEXTURES]
    return torch.stack([flat, *lit, *rough]).to(torch.uint8)


@cache
def noise_table() -> Tensor:
    """Nearly normal numbers with deviation 64, int32: sums of twelve uniform ones."""
    parts = randomness.uniform(randomness.keys(_SEED, torch.arange(_NUMBERS)), 12).to(torch.float64)
    return ((parts.sum(dim=1) - 6) * 64).round().to(torch.int32)


def add_noise(planes: Tensor, key: Tensor, deviation: Tensor, table: Tensor) -> Tensor:
    """Channels (C,N,T,H,W) uint8 with noise of so many 1/16 levels (N,) from a table of `noise_table`."""
    C, N, T, H, W = planes.shape
    start = (
        randomness.integers(key, C * T, _NUMBERS, stream=160).to(torch.int32).view(N, C, T).transpose(0, 1).contiguous()
    )
    index = start[..., None] + torch.arange(H * W, device=planes.device, dtype=torch.int32)  # (C,N,T,H*W)
    numbers = table.index_select(0, index.bitwise_and_(_NUMBERS - 1).view(-1)).view(planes.shape)
    numbers *= deviation.to(torch.int32).view(N, 1, 1, 1)
    return numbers.add_(512).bitwise_right_shift_(10).add_(planes.to(torch.int32)).clamp_(0, 255).to(torch.uint8)
