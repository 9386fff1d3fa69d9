"""Painting objects over each other on a ground, in whole numbers: the same bits on every device.

An object shows a picture's cells at its place, size and angle; later objects hide earlier ones. On a GPU nothing waits
for the host, so that painting can be a part of a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from neural_em.data.drawn import lots, select
from neural_em.data.grounds import ONE_COLOUR, Ground, Tables, paint_ground
from neural_em.data.motion import UNIT
from neural_em.data.silhouettes import Pictures
from neural_em.data.surfaces import add_noise, noise_table, surfaces

ONE = 4096  # stands for one cell of a picture a pixel
PAINTED = {"cpu": 1 << 19, "cuda": 1 << 25}  # pixels at a time


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


class Patch(NamedTuple):
    """P pixels of each of N scenes, and which cell of an object's picture each of them shows; some lie outside it."""

    pixel: Tensor  # (N,P) int64 in all frames
    down: Tensor  # (N,P) int32
    across: Tensor  # (N,P) int32


class Painter:
    """Paints scenes of one kind, sequences (T,3,H,W), on one device; see `ColourConfig` for ``reach`` and ``plain``."""

    def __init__(
        self, pictures: Pictures, shape: tuple[int, int, int, int], reach: int, ground: str, plain: bool,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.pictures, self.shape, self.device = pictures.to(device), shape, device
        self._reach, self._plain = reach, plain
        self._one_colour = plain and ground in ONE_COLOUR
        self._tables, self._surfaces = Tables.on(device), surfaces().to(device)
        self._noise = noise_table().to(device)

    def paint(self, objects: Objects) -> tuple[Tensor, Tensor]:
        """Frames (N,T,3,H,W) uint8 and groups (N,T,H,W) uint8 of the scenes."""
        groups, shade = self._overlaid(objects)
        return self._colours(objects, groups, shade), self._framed(groups)

    def groups(self, objects: Objects) -> Tensor:
        """The groups alone, without the work of colouring."""
        return self._framed(self._overlaid(objects)[0])

    def _framed(self, groups: Tensor) -> Tensor:
        T, _, H, W = self.shape
        return groups.view(-1, T, H, W)

    def _overlaid(self, objects: Objects) -> tuple[Tensor, Tensor | None]:
        """Groups and shades (N,T*H*W): each object on top of those before it."""
        (T, _, H, W), N = self.shape, len(objects.key)
        groups = torch.zeros(N, T * H * W, dtype=torch.uint8, device=self.device)
        shade = None if self._plain else torch.zeros_like(groups)
        for k in range(objects.picture.shape[1]):
            patch = self._patch(objects, k, T)
            inside = self._inside(objects.picture[:, k], patch)
            _overlay(groups, patch.pixel, inside, k + 1)
            if shade is not None:
                _overlay(shade, patch.pixel, inside, self._shades(objects.surface[:, k], patch))
        return groups, shade

    def enough_is_seen(self, objects: Objects, there: Tensor, share: float) -> Tensor:
        """Whether (N,) the first frame shows at least that share of each object that is there (N,K)."""
        H, W = self.shape[2:]
        enough = torch.ones_like(there)
        for rows in lots(len(there), H * W, PAINTED[self.device.type]):
            some = select(objects, rows)
            top = torch.zeros(len(some.key), H * W, dtype=torch.uint8, device=self.device)
            areas = []
            for k in range(there.shape[1]):
                patch = self._patch(some, k, 1)
                inside = self._inside(some.picture[:, k], patch)
                areas.append(inside.sum(dim=1))
                _overlay(top, patch.pixel, inside, k + 1)
            seen = torch.stack([(top == k + 1).sum(dim=1) for k in range(there.shape[1])], dim=1)
            wanted = torch.stack(areas, dim=1).to(torch.float64) * share
            enough[rows] = seen >= wanted.ceil().clamp(min=1)
        return (enough | ~there).all(dim=1)

    def _patch(self, objects: Objects, k: int, frames: int) -> Patch:
        """The square of pixels around object k in each of the first frames, whatever its size: P pixels a scene."""
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
        return Patch(pixel.view(N, -1), cells[0], cells[1])

    def _inside(self, picture: Tensor, patch: Patch) -> Tensor:
        """Where the pictures (N,) have something, (N,P) bool."""
        rim = self.pictures.cells.shape[1]
        first = (picture * (rim * rim) + rim + 1).to(torch.int32)[:, None]
        index = patch.down.clamp(-1, rim - 2) * rim + patch.across.clamp(-1, rim - 2) + first
        return self.pictures.cells.view(-1).index_select(0, index.view(-1)).view(index.shape).bool()

    def _shades(self, surface: Tensor, patch: Patch) -> Tensor:
        """How bright the surfaces (N,) are, (N,P) uint8."""
        side = self._surfaces.shape[1]
        first = (surface * (side * side)).to(torch.int32)[:, None]
        index = patch.down.clamp(0, side - 1) * side + patch.across.clamp(0, side - 1) + first
        return self._surfaces.view(-1).index_select(0, index.view(-1)).view(index.shape)

    def _colours(self, objects: Objects, groups: Tensor, shade: Tensor | None) -> Tensor:
        """Frames (N,T,3,H,W) of what is seen at each pixel: an object in its colour and shade, or the ground."""
        (T, C, H, W), N, K = self.shape, len(objects.key), objects.picture.shape[1]
        planes = torch.empty(C, N, T, H, W, dtype=torch.uint8, device=self.device)
        pixel = groups.to(torch.int32).add_(torch.arange(N, device=self.device, dtype=torch.int32)[:, None] * (K + 1))
        behind = None if self._one_colour else paint_ground(objects.ground, H, W, self._tables)  # (N,3,H,W)
        bright = None if shade is None else shade.to(torch.int32).view(N, T, H, W)
        empty = None if behind is None else (groups == 0).view(N, T, H, W)
        for channel in range(C):
            ground = objects.ground.colours[:, :1, channel].to(torch.uint8)
            palette = torch.cat([ground, objects.colour[:, :, channel]], dim=1).view(-1)
            seen = torch.index_select(palette, 0, pixel.view(-1), out=planes[channel].view(-1)).view(N, T, H, W)
            if bright is not None:
                seen.copy_(seen.to(torch.int32).mul_(bright).add_(128).mul_(257).bitwise_right_shift_(16))  # / 255
            if behind is not None and empty is not None:
                seen.copy_(torch.where(empty, behind[:, None, channel], seen))
        if shade is not None:
            planes = add_noise(planes, objects.key, objects.noise, self._noise)
        return planes.permute(1, 2, 0, 3, 4)


def _overlay(image: Tensor, pixel: Tensor, inside: Tensor, value: Tensor | int) -> None:
    """Paints a value or values (N,P) over images (N,Q) at the pixels (N,P) that are inside."""
    image.scatter_(1, pixel, torch.where(inside, value, image.gather(1, pixel)))
