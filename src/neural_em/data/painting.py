"""Painting objects over each other on a ground, in whole numbers: the same bits on every device.

An object shows a picture's cells at its place, size and angle; later objects hide earlier ones. On a GPU nothing waits
for the host, so that painting can be a part of a CUDA graph.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.generated import lots, select
from neural_em.data.grounds import ONE_COLOUR, Ground, paint_ground, textures
from neural_em.data.motion import UNIT, directions
from neural_em.data.silhouettes import GRID, Pictures

ONE = 4096  # stands for one cell of a picture a pixel
PAINTED = {"cpu": 1 << 19, "cuda": 1 << 25}  # pixels at a time
SHADED, TEXTURED = 1, 5  # the first shaded and the first textured surface; 0 is flat
_TEXTURES = (0, 1, 2, 3, 4, 12, 13, 14, 15, 20, 21)  # coarse enough to be seen on an object
_NUMBERS = 1 << 18  # in the table of noise: frames read it from a random place on
_SEED = 0x5F2FA  # of the noise


class Objects(NamedTuple):
    """All that has to be known of N scenes of at most K objects; later objects hide earlier ones."""

    ground: Ground
    key: Tensor  # (N,)
    picture: Tensor  # (N,K) int64; 0 for an object that is not there
    turn: Tensor  # (N,K,2,2) int32
    place: Tensor  # (N,K,2,T) int32
    size: Tensor  # (N,K) int32; 0 where it is not told
    colour: Tensor  # (N,K,3) uint8
    surface: Tensor  # (N,K) int64
    noise: Tensor  # (N,) int32: the camera's deviation, in 1/16 levels


class Painter:
    """Paints scenes of one kind, sequences (T,3,H,W), on one device; see `ColourConfig` for ``reach`` and ``plain``."""

    def __init__(
        self, pictures: Pictures, shape: tuple[int, int, int, int], reach: int, ground: str, plain: bool,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.pictures, self.shape, self.device = pictures.to(device), shape, device
        self._reach, self._plain = reach, plain
        self._one_colour = plain and ground in ONE_COLOUR
        # what painting looks up, on the device it paints on
        self._tables = directions(device), textures().to(device)
        self._surfaces, self._noise = surfaces().to(device), _noise_table().to(device)

    def overlaid(self, objects: Objects) -> tuple[Tensor, Tensor | None]:
        """Groups and shades (N,T,H,W) uint8, each object on top of those before it; no shades where all is plain."""
        (T, _, H, W), N = self.shape, len(objects.key)
        groups = torch.zeros(N, T * H * W, dtype=torch.uint8, device=self.device)
        shade = None if self._plain else torch.zeros_like(groups)
        for k in range(objects.picture.shape[1]):
            pixel, cell = self._patch(objects, k, T)
            inside = self._inside(objects, k, cell)
            _overlay(groups, pixel, inside, k + 1)
            if shade is not None:
                _overlay(shade, pixel, inside, _looked_up(self._surfaces, objects.surface[:, k], cell))
        return groups.view(N, T, H, W), None if shade is None else shade.view(N, T, H, W)

    def enough_is_seen(self, objects: Objects, there: Tensor, share: float) -> Tensor:
        """Whether (N,) the first frame shows at least that share of each object that is there (N,K)."""
        H, W = self.shape[2:]
        enough = torch.ones_like(there)
        for rows in lots(len(there), H * W, PAINTED[self.device.type]):
            some = select(objects, rows)
            top = torch.zeros(len(some.key), H * W, dtype=torch.uint8, device=self.device)
            areas = []
            for k in range(there.shape[1]):
                pixel, cell = self._patch(some, k, 1)
                inside = self._inside(some, k, cell)
                areas.append(inside.sum(dim=1))
                _overlay(top, pixel, inside, k + 1)
            seen = torch.stack([(top == k + 1).sum(dim=1) for k in range(there.shape[1])], dim=1)
            wanted = torch.stack(areas, dim=1).to(torch.float64) * share
            enough[rows] = seen >= wanted.ceil().clamp(min=1)
        return (enough | ~there).all(dim=1)

    def _patch(self, objects: Objects, k: int, frames: int) -> tuple[Tensor, list[Tensor]]:
        """The square of pixels around object k in each of the first frames, whatever its size: P pixels a scene.

        Gives the pixels (N,P) int64, counted through all frames, and which cell of the object's picture each of them
        shows, down and across, (N,P) int32 each; some lie outside it.
        """
        N, (H, W) = len(objects.key), self.shape[2:]
        side = min(self._reach, H), min(self._reach, W)
        place, turn = objects.place[:, k, :, :frames].transpose(1, 2), objects.turn[:, k]  # (N,T,2), (N,2,2)
        box = self.pictures.box[objects.picture[:, k]].to(torch.int32)  # (N,2)
        row, column = (
            ((place[..., axis] - side[axis] * (UNIT // 2)) // UNIT).clamp(0, (H, W)[axis] - side[axis])[..., None]
            + torch.arange(side[axis], device=self.device, dtype=torch.int32)
            for axis in (0, 1)
        )  # (N,T,rows), (N,T,columns)
        cells = []
        for axis in (0, 1):
            down, across = turn[:, axis, 0, None], turn[:, axis, 1, None]  # (N,1)
            moved = (down.long() * place[..., 0] + across.long() * place[..., 1]) // UNIT  # (N,T)
            start = box[:, axis, None] * (ONE // 2) - moved.to(torch.int32)
            vertical = down[..., None] * (2 * row + 1) // 2 + start[..., None]  # (N,T,rows)
            cell = vertical[..., None] + (across[..., None] * (2 * column + 1) // 2)[:, :, None]
            cells.append(cell.bitwise_right_shift_(ONE.bit_length() - 1).view(N, -1))
        frame = torch.arange(frames, device=self.device) * (H * W)
        pixel = (frame[:, None] + row.long() * W)[..., None] + column.long()[:, :, None]
        return pixel.view(N, -1), cells

    def _inside(self, objects: Objects, k: int, cell: list[Tensor]) -> Tensor:
        """Where object k has something, (N,P) bool."""
        return _looked_up(self.pictures.cells, objects.picture[:, k], cell, rim=1).bool()

    def colours(self, objects: Objects, groups: Tensor, shade: Tensor | None) -> Tensor:
        """Frames (N,T,3,H,W) uint8 of what is seen at each pixel: an object in its colour and shade, or the ground."""
        (T, C, H, W), N, K = self.shape, len(objects.key), objects.picture.shape[1]
        planes = torch.empty(C, N, T, H, W, dtype=torch.uint8, device=self.device)
        first = torch.arange(N, device=self.device, dtype=torch.int32) * (K + 1)  # of a scene's colours
        pixel = groups.to(torch.int32).add_(first[:, None, None, None])
        behind = None if self._one_colour else paint_ground(objects.ground, H, W, *self._tables)  # (N,3,H,W)
        empty = None if behind is None else groups == 0
        bright = None if shade is None else shade.to(torch.int32)
        for channel in range(C):
            ground = objects.ground.colours[:, :1, channel].to(torch.uint8)
            palette = torch.cat([ground, objects.colour[:, :, channel]], dim=1).view(-1)
            seen = torch.index_select(palette, 0, pixel.view(-1), out=planes[channel].view(-1)).view(N, T, H, W)
            if bright is not None:
                seen.copy_(seen.to(torch.int32).mul_(bright).add_(128).mul_(257).bitwise_right_shift_(16))  # / 255
            if behind is not None and empty is not None:
                seen.copy_(torch.where(empty, behind[:, None, channel], seen))
        if shade is not None:
            planes = _add_noise(planes, objects.key, objects.noise, self._noise)
        return planes.permute(1, 2, 0, 3, 4)


def _overlay(image: Tensor, pixel: Tensor, inside: Tensor, value: Tensor | int) -> None:
    """Paints a value or values (N,P) over images (N,Q) at the pixels (N,P) that are inside."""
    image.scatter_(1, pixel, torch.where(inside, value, image.gather(1, pixel)))


def _looked_up(tables: Tensor, which: Tensor, cell: list[Tensor], rim: int = 0) -> Tensor:
    """Cells (N,P) of one of the tables (S,side,side) each (N,), which has a rim; those outside are the nearest ones."""
    side = tables.shape[1]
    first = (which * (side * side) + rim * (side + 1)).to(torch.int32)[:, None]
    down, across = (part.clamp(-rim, side - 1 - rim) for part in cell)
    index = down * side + across + first
    return tables.view(-1).index_select(0, index.view(-1)).view(index.shape)


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
def _noise_table() -> Tensor:
    """Nearly normal numbers with deviation 64, int32: sums of twelve uniform ones."""
    parts = randomness.uniform(randomness.keys(_SEED, torch.arange(_NUMBERS)), 12).to(torch.float64)
    return ((parts.sum(dim=1) - 6) * 64).round().to(torch.int32)


def _add_noise(planes: Tensor, key: Tensor, deviation: Tensor, table: Tensor) -> Tensor:
    """Channels (C,N,T,H,W) uint8 with noise of so many 1/16 levels (N,) from a table of `_noise_table`."""
    C, N, T, H, W = planes.shape
    start = randomness.integers(key, C * T, _NUMBERS, stream=160).to(torch.int32)
    start = start.view(N, C, T).transpose(0, 1).contiguous()
    index = start[..., None] + torch.arange(H * W, device=planes.device, dtype=torch.int32)  # (C,N,T,H*W)
    numbers = table.index_select(0, index.bitwise_and_(_NUMBERS - 1).view(-1)).view(planes.shape)
    numbers *= deviation.to(torch.int32).view(N, 1, 1, 1)
    return numbers.add_(512).bitwise_right_shift_(10).add_(planes.to(torch.int32)).clamp_(0, 255).to(torch.uint8)
