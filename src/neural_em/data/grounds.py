"""Colours, grounds, surfaces of objects, and the camera's noise: the same bits on every device."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.motion import HEADINGS
from neural_em.data.silhouettes import GRID

GROUNDS = ("black", "grey", "colour", "gradient", "texture", "mixed")
ONE_COLOUR = ("black", "grey", "colour")
TILE = 128  # side of a texture, which is repeated
NEAR = 16257  # smallest squared distance of an object's colour from the ground's: 0.25 of 255 squared
_CANDIDATES = 56  # colours tried for an object
_SPREAD, _GREY_SPREAD = 192, 102  # of 256: how far a ground may go from one colour to another
_ALONG = 9  # places between a ground's two colours that an object's colour is compared with
_SEED, _NOISE_SEED = 0x7E77, 0x5F2FA  # of the textures, and of the camera's noise
SHADED, TEXTURED = 1, 5  # the first shaded and the first textured surface; 0 is flat
_TEXTURES = (0, 1, 2, 3, 4, 12, 13, 14, 15, 20, 21)  # coarse enough to be seen on an object
_NUMBERS = 1 << 18  # in the table of noise: frames read it from a random place on


class Ground(NamedTuple):
    """N grounds, each between two colours."""

    colours: Tensor  # (N,2,3) int32, levels from 0 to 255
    is_gradient: Tensor  # (N,) bool; else a texture, which one colour does not show
    heading: Tensor  # (N,) int64 of the gradient
    texture: Tensor  # (N,) int64
    shift: Tensor  # (N,2) int64 of the texture


def draw_ground(key: Tensor, kind: str, grey: Tensor) -> Ground:
    """Grounds of scenes (N,), of one of `GROUNDS`; those of grey scenes (N,) are grey. Streams from 64 on."""
    N = len(key)
    sort = torch.full((N,), GROUNDS.index(kind), device=key.device)
    if kind == "mixed":
        sort = randomness.integers(key, 1, len(GROUNDS) - 1, stream=64)[:, 0]
    first, other = draw_colours(key, 2, grey | (sort == 1), stream=65).unbind(dim=1)  # (N,3)
    spread = torch.where(grey, _GREY_SPREAD, _SPREAD)[:, None]
    second = torch.where(sort[:, None] >= 3, first + ((other - first) * spread >> 8), first)
    colours = torch.stack([first, second], dim=1) * (sort > 0)[:, None, None]
    drawn = randomness.uniform(key, 4, stream=66).to(torch.float64)
    high = torch.tensor([HEADINGS, len(textures()), TILE, TILE], device=key.device)
    heading, texture, *shift = (drawn * high).to(torch.int64).unbind(dim=1)
    return Ground(colours.to(torch.int32), sort == 3, heading, texture, torch.stack(shift, dim=1))


def draw_colours(key: Tensor, count: int, grey: Tensor, stream: int) -> Tensor:
    """Colours (N,count,3) int64 from 0 to 255; of grey scenes (N,) the three are equal."""
    colours = randomness.integers(key, count * 3, 256, stream=stream).view(len(key), count, 3)
    return torch.where(grey[:, None, None], colours[..., :1], colours)


def distinct_colours(key: Tensor, count: int, ground: Ground, grey: Tensor, stream: int) -> Tensor:
    """Colours (N,count,3) uint8 that differ from every colour of the ground by `NEAR` or more."""
    N = len(key)
    steps = torch.arange(_ALONG, device=key.device)[:, None]
    first, second = ground.colours.to(torch.int64)[:, :, None].unbind(dim=1)  # (N,1,3)
    along = first + (second - first) * steps // (_ALONG - 1)  # (N,A,3)
    corner = torch.arange(8, device=key.device)[:, None] >> torch.arange(3, device=key.device) & 1
    corners = torch.where(grey[:, None, None], corner[:, :1], corner) * 255  # one of them is always far enough
    chosen = []
    for k in range(count):
        tried = torch.cat([draw_colours(key, _CANDIDATES, grey, stream + k), corners], dim=1)  # (N,C,3)
        apart = (tried[:, :, None] - along[:, None]).square().sum(dim=3).amin(dim=2)  # (N,C)
        first_free = (apart >= NEAR).to(torch.uint8).argmax(dim=1)
        chosen.append(tried.gather(1, first_free[:, None, None].expand(N, 1, 3)))
    return torch.cat(chosen, dim=1).to(torch.uint8)


def paint_ground(ground: Ground, height: int, width: int, directions: Tensor, textures: Tensor) -> Tensor:
    """Grounds (N,3,H,W) uint8; the tables are those of the functions of these names, on the ground's device."""
    rows, columns = (torch.arange(n, device=ground.heading.device) for n in (height, width))
    down, across = directions[ground.heading].unbind(dim=1)  # (N,)
    along = rows[:, None] * down[:, None, None] + columns * across[:, None, None]  # (N,H,W)
    length = (down.abs() * (height - 1) + across.abs() * (width - 1)).clamp(min=1)[:, None, None]
    start = (down.clamp(max=0) * (height - 1) + across.clamp(max=0) * (width - 1))[:, None, None]
    y, x = ((n + ground.shift[:, axis, None]) % TILE for axis, n in enumerate((rows, columns)))
    texture = textures[ground.texture[:, None, None], y[:, :, None], x[:, None]]
    share = torch.where(ground.is_gradient[:, None, None], (along - start) * 255 // length, texture)
    share = share.to(torch.int32)[:, None]  # (N,1,H,W)
    first, second = ground.colours[..., None, None].unbind(dim=1)  # (N,3,1,1)
    return (first + ((second - first) * share + 127) // 255).to(torch.uint8)


@cache
def textures() -> Tensor:
    """All textures (P,TILE,TILE) int64 from 0 to 255, each of which continues at its edges; coarse ones first."""
    return torch.stack([*_clouds(), *_stripes(), *_checks()])


def _clouds() -> Iterator[Tensor]:
    """Random numbers on lattices, between which the values go over into each other."""
    for i in range(12):
        key = randomness.keys(_SEED, i)
        coarse = 32 >> i // 5
        yield (3 * _lattice(key, coarse, 0) + _lattice(key, coarse // 2, 1)) // 4


def _lattice(key: Tensor, spacing: int, stream: int) -> Tensor:
    knots = TILE // spacing
    values = randomness.integers(key, knots * knots, 256, stream=stream).view(knots, knots)
    place = torch.arange(TILE)
    index, part = place // spacing, place % spacing
    rows = values[index] * (spacing - part)[:, None] + values[(index + 1) % knots] * part[:, None]  # (TILE,knots)
    both = rows[:, index] * (spacing - part) + rows[:, (index + 1) % knots] * part
    return both // (spacing * spacing)


def _stripes() -> Iterator[Tensor]:
    place = torch.arange(TILE)
    for down, across in ((3, 0), (0, 4), (3, 3), (4, -3), (5, 2), (-2, 7), (8, 0), (0, 11)):
        phase = (place[:, None] * down + place * across) % TILE
        yield (4 * (TILE // 2 - (TILE // 2 - phase).abs()) - 1).clamp(min=0)


def _checks() -> Iterator[Tensor]:
    for side in (32, 16, 8, 4):
        parity = torch.arange(TILE) // side % 2
        yield (parity[:, None] ^ parity) * 255


@cache
def surfaces() -> Tensor:
    """Brightness of surfaces (U,GRID,GRID) uint8, 255 = the object's own colour: flat, lit from a side, textured."""
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
    parts = randomness.uniform(randomness.keys(_NOISE_SEED, torch.arange(_NUMBERS)), 12).to(torch.float64)
    return ((parts.sum(dim=1) - 6) * 64).round().to(torch.int32)


def add_noise(planes: Tensor, key: Tensor, deviation: Tensor, table: Tensor) -> Tensor:
    """Channels (C,N,T,H,W) uint8 with noise of so many 1/16 levels (N,) from a table of `noise_table`."""
    C, N, T, H, W = planes.shape
    start = randomness.integers(key, C * T, _NUMBERS, stream=160).to(torch.int32)
    start = start.view(N, C, T).transpose(0, 1).contiguous()
    index = start[..., None] + torch.arange(H * W, device=planes.device, dtype=torch.int32)  # (C,N,T,H*W)
    numbers = table.index_select(0, index.bitwise_and_(_NUMBERS - 1).view(-1)).view(planes.shape)
    numbers *= deviation.to(torch.int32).view(N, 1, 1, 1)
    return numbers.add_(512).bitwise_right_shift_(10).add_(planes.to(torch.int32)).clamp_(0, 255).to(torch.uint8)
