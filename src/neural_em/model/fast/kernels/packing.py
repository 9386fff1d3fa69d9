"""The order in which kernels for whole images read weights and write sums for their gradients.

Tables hold the place in the weights of each number that a kernel reads; a cell is 2x2 pixels of the middle layer.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MIDDLE, SMALL = 32, 64  # channels
# rows and columns of a cell's pixels, in the kernels' order; phase and offset of what an up-convolution reads
_PIXELS = ((1, 0), (0, 0), (0, 1), (1, 1))
_REACH = ((0, -1), (0, 0), (0, 1), (1, 0), (1, 1))


def _strips(table: Tensor, strip: int) -> Tensor:
    """A table (depth, parts, columns): strips of the depth, of each column, columns in the order of a thread's sums."""
    depth, parts, columns = table.shape
    return table.view(depth // strip, strip, parts, 4, columns // 8, 2).permute(0, 2, 4, 3, 5, 1).flatten()


def _grid(*sizes: int) -> tuple[Tensor, ...]:
    return torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij")


def _tap(i: Tensor, j: Tensor, taps: int, channel: Tensor, none: int) -> Tensor:
    """Places in a weight (taps, taps, MIDDLE), or ``none`` beside it."""
    inside = (i >= 0) & (i < taps) & (j >= 0) & (j < taps)
    return torch.where(inside, (i * taps + j) * MIDDLE + channel, none)


def _phase(a: Any, b: Any, y: int, x: int, out: Tensor, inside: Tensor) -> Tensor:
    """Places in the phases' weight (4*MIDDLE,3,3,SMALL)."""
    return ((((2 * a + b) * MIDDLE + out) * 3 + y + 1) * 3 + x + 1) * SMALL + inside


def encoder_places(strip: int) -> list[Tensor]:
    """Where the encoder's packed weights are in first (16,MIDDLE), strided (SMALL,4,4,MIDDLE) and a zero.

    Four: first and strided convolution, and both back, the strided one first.
    """
    start, end = 16 * MIDDLE, 16 * MIDDLE * (1 + SMALL)
    row, column = torch.tensor(_PIXELS).T
    i, j, p, c = _grid(6, 8, 4, MIDDLE)
    first = _tap(i - 2 * row[p], j - 1 - 2 * column[p], 4, c, end)
    i, j, p, c, o = _grid(2, 2, 4, MIDDLE, SMALL)
    strided = start + o * 16 * MIDDLE + _tap(2 * i + row[p], 2 * j + column[p], 4, c, 0)
    i, j, p, c, u, v = _grid(2, 2, 4, MIDDLE, 4, 4)
    image = _tap(u + 3 - 2 * (2 * i + row[p]), v + 3 - 2 * (2 * j + column[p]), 4, c, end)
    tables = (first.reshape(-1, 4, MIDDLE), strided.reshape(-1, 1, SMALL),
              strided.permute(0, 1, 4, 2, 3).reshape(-1, 4, MIDDLE), image.reshape(-1, 1, 16))  # fmt: skip
    return [_strips(table, strip) for table in tables]


def decoder_places(strip: int) -> list[Tensor]:
    """Where the decoder's packed weights are in phases (4*MIDDLE,3,3,SMALL), last (25,MIDDLE) and a zero.

    Four: up-convolution and last one, and both back, the last one first.
    """
    row, column = torch.tensor(_PIXELS).T
    up, back = [], []
    for y in (-1, 0, 1):
        i, p, c = _grid(SMALL, 1 if y < 0 else 2, MIDDLE)
        for b, x in _REACH:
            some = torch.tensor([n for n, pixel in enumerate(_PIXELS) if pixel[1] == b and (y >= 0 or pixel[0] == 0)])
            up.append(_strips(_phase(row[some[p]], b, y, x, c, i), strip))
    c, i = _grid(MIDDLE, SMALL)
    for a, y in _REACH:
        back += [_phase(a, b, y, x, c, i) for b, x in _REACH]
    start, end = 36 * MIDDLE * SMALL, 36 * MIDDLE * SMALL + 25 * MIDDLE
    i, j, c, u, v = _grid(4, 4, MIDDLE, 4, 4)
    last = start + _tap(u - 2 * i + 4, v - 2 * j + 4, 5, c, end - start)
    i, j, p, c = _grid(8, 8, 4, MIDDLE)
    last_back = start + _tap(i - 2 * row[p], j - 2 * column[p], 5, c, end - start)
    tables = last.reshape(-1, 1, 16), last_back.reshape(-1, 4, MIDDLE), torch.cat(back).view(-1, 1, SMALL)
    return [torch.cat(up), *(_strips(table, strip) for table in tables)]


def encoder_sums() -> Tensor:
    """Where each number of the strided convolution's gradient (SMALL,4,4,MIDDLE) is in the kernel's sums."""
    row, column = torch.tensor(_PIXELS).T
    i, j, o, p, c = _grid(2, 2, SMALL, 4, MIDDLE)
    return _inverse(o * 16 * MIDDLE + _tap(2 * i + row[p], 2 * j + column[p], 4, c, 0), SMALL, 4, 4, MIDDLE)


def decoder_sums() -> Tensor:
    """The same of the phases' gradient (4*MIDDLE,3,3,SMALL), and of a zero behind the sums."""
    row, column = torch.tensor(_PIXELS).T
    reached = []
    for slot, offsets in enumerate((((0, 0), (0, 1), (-1, 0), (-1, 1)), ((1, 0), (1, 1), (0, -1), (1, -1)))):
        for n, (y, x) in enumerate((*offsets, (-1, -1))):
            some = torch.tensor((range(4), range(4), *((range(2),) * 2 if slot else (range(1, 3),) * 2), (1,))[n])
            i, p, c = _grid(SMALL, len(some), MIDDLE)
            reached.append(_phase(row[some[p]], column[some[p]], y, x, c, i).flatten())
    return _inverse(torch.cat(reached), 4 * MIDDLE, 3, 3, SMALL)


def _inverse(places: Tensor, *shape: int) -> Tensor:
    """Of each number of a table, at which place it is; behind the last one, if at none."""
    table = torch.full(shape, places.numel())
    table.view(-1)[places.flatten()] = torch.arange(places.numel())
    return table


@functools.cache
def _places(places: Callable[[int], list[Tensor]], strip: int, device: torch.device) -> tuple[Tensor, list[int]]:
    with torch.inference_mode(False):
        tables = places(strip)
        return torch.cat(tables).to(device), [len(table) for table in tables]


def packed(
    places: Callable[[int], list[Tensor]], dtype: torch.dtype, *weights: Tensor
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The weights in the type of the products, as the kernels read them; of convolutions with their channels last.

    Behind them, what takes the powers of two back that 16-bit floats are multiplied by.
    """
    rows = [weight.detach().permute(0, 2, 3, 1) if weight.dim() == 4 else weight.detach() for weight in weights]
    back = None
    if dtype == torch.float16:
        largest = torch.stack(torch._foreach_norm(rows, torch.inf))
        back = torch.exp2((torch.frexp(largest).exponent.clamp(-40, 100) - 14).to(largest.dtype))
        rows = list(torch._foreach_div(rows, list(back.unbind())))
    every = torch.cat([*(each.flatten() for each in rows), weights[0].new_zeros(1)])
    table, sizes = _places(places, 16 // dtype.itemsize, every.device)
    return every[table].to(dtype).split(sizes), back
