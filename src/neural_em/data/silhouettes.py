"""Pictures of objects as masks: geometric families, letters, and given bitmaps; and which pixels show which cell.

A family's pictures are drawn once, on a grid of 128 x 128 cells, inside a circle that fills the grid; objects show them
at any size and angle. They are computed in float64 with sums, products, quotients, square roots and comparisons alone:
the same cells on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.motion import UNIT, directions

GRID = 128  # cells along a side of a family's picture
ONE = 4096  # stands for one cell of a picture a pixel
_SEED = 0x51C7  # of what is random about polygons and blobs
# five columns a row, seven rows from the top, a hexadecimal number each
_LETTERS = {
    "A": "0E 11 11 1F 11 11 11", "B": "1E 11 11 1E 11 11 1E", "C": "0F 10 10 10 10 10 0F", "E": "1F 10 10 1E 10 10 1F",
    "F": "1F 10 10 1E 10 10 10", "H": "11 11 11 1F 11 11 11", "J": "01 01 01 01 01 11 0E", "K": "11 12 14 18 14 12 11",
    "L": "10 10 10 10 10 10 1F", "M": "11 1B 15 15 11 11 11", "N": "11 19 19 15 13 13 11", "P": "1E 11 11 1E 10 10 10",
    "R": "1E 11 11 1E 14 12 11", "S": "0F 10 10 0E 01 01 1E", "T": "1F 04 04 04 04 04 04", "U": "11 11 11 11 11 11 0E",
    "V": "11 11 11 0A 0A 04 04", "X": "11 11 0A 04 0A 11 11", "Y": "11 11 0A 04 04 04 04", "Z": "1F 01 02 04 08 10 1F",
}  # fmt: skip


@dataclass(frozen=True)
class Pictures:
    """S pictures; the first is empty, and stands for objects that are not there."""

    cells: Tensor  # (S, side + 2, side + 2) uint8: 1 inside; a rim of zeros goes round each
    box: Tensor  # (S,2) int64: rows and columns that a picture fills, from its upper left corner
    sort: Tensor  # (S,) int64: which family a picture is of

    def to(self, device: torch.device | str) -> Pictures:
        return Pictures(self.cells.to(device), self.box.to(device), self.sort.to(device))

    def patch(
        self, which: Tensor, place: Tensor, turn: Tensor, size: tuple[int, int], reach: int
    ) -> tuple[Tensor, list[Tensor]]:
        """A square of pixels that holds the picture ``which`` (N,) of an object in each of T frames: P pixels a scene.

        Gives the pixels (N,P) int64, counted through all frames of a size, and which cell of the picture each of them
        shows, down and across, (N,P) int32 each; some lie outside it. The object's place (N,2,T) and turn (N,2,2) are
        those of `Objects`; the square has ``reach`` pixels along a side.
        """
        N, (H, W), frames = len(which), size, place.shape[2]
        side, place = (min(reach, H), min(reach, W)), place.transpose(1, 2)  # (N,T,2)
        row, column = (
            ((place[..., axis] - side[axis] * (UNIT // 2)) // UNIT).clamp(0, size[axis] - side[axis])[..., None]
            + torch.arange(side[axis], device=place.device, dtype=torch.int32)
            for axis in (0, 1)
        )  # (N,T,rows), (N,T,columns)
        cells = []
        for axis in (0, 1):
            down, across = turn[:, axis, 0, None], turn[:, axis, 1, None]  # (N,1)
            moved = (down.long() * place[..., 0] + across.long() * place[..., 1]) // UNIT  # (N,T)
            start = self.box[which, axis, None].to(torch.int32) * (ONE // 2) - moved.to(torch.int32)
            vertical = down[..., None] * (2 * row + 1) // 2 + start[..., None]  # (N,T,rows)
            cell = vertical[..., None] + (across[..., None] * (2 * column + 1) // 2)[:, :, None]
            cells.append(cell.bitwise_right_shift_(ONE.bit_length() - 1).view(N, -1))
        frame = torch.arange(frames, device=place.device) * (H * W)
        pixel = (frame[:, None] + row.long() * W)[..., None] + column.long()[:, :, None]
        return pixel.view(N, -1), cells


def looked_up(tables: Tensor, which: Tensor, cell: list[Tensor], rim: int = 0) -> Tensor:
    """Cells (N,P) of one of the tables (S,side,side) each (N,), which has a rim; those outside are the nearest ones."""
    side = tables.shape[1]
    first = (which * (side * side) + rim * (side + 1)).to(torch.int32)[:, None]
    down, across = (part.clamp(-rim, side - 1 - rim) for part in cell)
    index = down * side + across + first
    return tables.view(-1).index_select(0, index.view(-1)).view(index.shape)


def from_bitmaps(bitmaps: Sequence[Tensor], sorts: Sequence[int] | None = None) -> Pictures:
    """Pictures from bitmaps (height, width) of any sizes, each a sort of its own unless sorts are named."""
    sizes = torch.tensor([[0, 0], *(bitmap.shape for bitmap in bitmaps)])
    side = int(sizes.max()) + 2
    cells = torch.zeros(len(bitmaps) + 1, side, side, dtype=torch.uint8)
    for i, bitmap in enumerate(bitmaps, start=1):
        cells[i, 1 : 1 + bitmap.shape[0], 1 : 1 + bitmap.shape[1]] = bitmap
    return Pictures(cells, sizes, torch.tensor([0, *(sorts or range(len(bitmaps)))]))


def family_pictures(families: Sequence[str]) -> Pictures:
    """All pictures of the families; a picture's sort is its family's place among all of them."""
    names = list(FAMILIES)
    bitmaps, sorts = zip(*((bitmap, names.index(name)) for name in families for bitmap in _drawn(name)), strict=True)
    return from_bitmaps(bitmaps, sorts)


def blocks(bitmap: Tensor, size: int) -> Tensor:
    """A bitmap whose pixels are squares of that many pixels."""
    return bitmap.repeat_interleave(size, 0).repeat_interleave(size, 1)


@cache
def _drawn(family: str) -> tuple[Tensor, ...]:
    places = ((torch.arange(GRID, dtype=torch.float64) * 2 + 1) / GRID) - 1  # the cells' centres, from -1 to 1
    y, x = torch.meshgrid(places, places, indexing="ij")
    disc = _disc(y, x, 1.0)
    return tuple((mask & disc).to(torch.uint8) for mask in FAMILIES[family](y, x))


def _disc(y: Tensor, x: Tensor, radius: float) -> Tensor:
    return y * y + x * x < radius * radius


def _ellipses(y: Tensor, x: Tensor) -> Iterator[Tensor]:
    for stretch in (1.0, 1.25, 1.5, 1.75, 2.0):
        yield _disc(y * stretch, x, 1.0)


def _squares(y: Tensor, x: Tensor) -> Iterator[Tensor]:
    yield torch.maximum(y.abs(), x.abs()) < 0.7


def _hearts(y: Tensor, x: Tensor) -> Iterator[Tensor]:
    u, v = x * 1.15, 0.22 - y * 1.15
    lifted = v * 1.25 - u.abs().sqrt()
    yield u * u + lifted * lifted < 1


def _half_planes(y: Tensor, x: Tensor, headings: Sequence[int], distances: Sequence[float]) -> Tensor:
    """How many of the lines, each that far from the centre, have the point beyond them."""
    beyond = torch.zeros_like(y, dtype=torch.int64)
    for (sine, cosine), distance in zip(directions()[list(headings)].tolist(), distances, strict=True):
        beyond += y * sine + x * cosine >= distance * 4096
    return beyond


def _polygons(y: Tensor, x: Tensor) -> Iterator[Tensor]:
    apothems = {3: 0.5, 4: 0.707, 5: 0.809, 6: 0.866}  # cos(pi / corners)
    for corners, distance in apothems.items():
        yield _half_planes(y, x, [round(256 * i / corners) for i in range(corners)], [distance] * corners) == 0
    for i in range(12):  # irregular ones
        corners = 4 + i % 4
        key = randomness.keys(_SEED, i)
        turns = randomness.integers(key, corners, 256 // corners // 2, stream=0).tolist()
        distances = (0.5 + 0.4 * randomness.uniform(key, corners, stream=1).to(torch.float64)).tolist()
        headings = [256 * j // corners + turn for j, turn in enumerate(turns)]
        yield _half_planes(y, x, headings, distances) == 0


def _stars(y: Tensor, x: Tensor) -> Iterator[Tensor]:
    # a star's points are each beyond one of its lines
    for points, distance in {5: 0.309, 6: 0.5, 7: 0.623}.items():  # cos(2 pi / points)
        yield _half_planes(y, x, [round(256 * i / points) for i in range(points)], [distance] * points) <= 1


def _letters(y: Tensor, x: Tensor) -> Iterator[Tensor]:
    for rows in _LETTERS.values():
        table = torch.tensor([[int(row, 16) >> (4 - column) & 1 for column in range(5)] for row in rows.split()])
        drawn = blocks(table, 15)  # 105 x 75: its corners are on the circle
        letter = torch.zeros(GRID, GRID, dtype=torch.bool)
        letter[12:117, 27:102] = drawn.bool()
        yield letter


def _blobs(y: Tensor, x: Tensor) -> Iterator[Tensor]:
    for i in range(16):  # drops that flow together
        key = randomness.keys(_SEED, 1, i)
        places = (randomness.uniform(key, 8, stream=0).to(torch.float64) - 0.5).view(4, 2).tolist()
        pull = torch.zeros_like(y)
        for down, across in places:
            pull = pull + 0.07 / ((y - down) * (y - down) + (x - across) * (x - across))
        yield pull > 1


def _rings(y: Tensor, x: Tensor) -> Iterator[Tensor]:
    for hole in (0.4, 0.5, 0.6):
        yield ~_disc(y, x, hole)


# each gives its pictures on the cells' coordinates; what lies outside the circle is cut off
FAMILIES: dict[str, Callable[[Tensor, Tensor], Iterator[Tensor]]] = {
    "ellipse": _ellipses, "square": _squares, "heart": _hearts, "polygon": _polygons, "star": _stars,
    "letter": _letters, "blob": _blobs, "ring": _rings,
}  # fmt: skip
