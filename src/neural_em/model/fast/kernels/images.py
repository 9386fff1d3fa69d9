"""The outer convolutions of an encoder or a decoder in one kernel each way: the host's side of `images.cu`."""

import functools
import importlib.resources
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.fast.graphs import products

MIDDLE, SMALL = 32, 64  # channels
LARGEST = 7  # side of the smallest image
NAMES = ("encoder_there", "encoder_back", "decoder_there", "decoder_back")
# rows and columns of a cell's pixels, in the kernels' order; phase and offset of what an up-convolution reads
_PIXELS = ((1, 0), (0, 0), (0, 1), (1, 1))
_REACH = ((0, -1), (0, 0), (0, 1), (1, 0), (1, 1))
_TEAM = 128  # threads
_SHARED = 232448  # bytes that a block can have on the GPUs these kernels are for


def usable(device: torch.device, dtype: torch.dtype, encodes: bool, side: int, N: int) -> bool:
    """Whether the kernels run there: on a Hopper GPU, in bfloat16 or TF32."""
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    if dtype != torch.bfloat16 and not (dtype == torch.float32 and products() == ("tf32", "tf32")):
        return False
    names = NAMES[:2] if encodes else NAMES[2:]
    return all(_kernel(device, name, dtype.itemsize, side, _slots(device, name, dtype.itemsize, N)) for name in names)


def with_up(dtype: torch.dtype) -> bool:
    """Whether the decoder's kernels are with the up-convolution: in float its weights are more than a block has."""
    return dtype == torch.bfloat16


def _slots(device: torch.device, name: str, size: int, N: int) -> int:
    """How many images a block has at once: no more than it takes to have all of them in some block."""
    most = 1 if name.startswith("encoder") and size == 4 else 3
    return min(most, -(-N // torch.cuda.get_device_properties(device).multi_processor_count))


def teams(name: str, size: int) -> int:
    """How many teams of threads share an image: two where there is memory for a single one."""
    return 2 if name.startswith("encoder") and size == 4 else 1


@functools.cache
def _kernel(device: torch.device, name: str, size: int, side: int, slots: int) -> Any:
    """A compiled kernel, which takes about a second; none, and a word about it, where that fails."""
    try:
        from neural_em.model.fast.kernels.compiled import Kernel, compiled

        here = importlib.resources.files(__package__)
        source = "".join((here / file).read_text() for file in ("hopper.cu", "images.cu"))
        sizes = {"S": side, "E": size, "SLOTS": slots, "TEAMS": teams(name, size), "SHARED": _SHARED,
                 "UP": int(size == 2), name.upper(): 1}  # fmt: skip
        options = ["--gpu-architecture=sm_90a", "--std=c++17", "--use_fast_math"]
        with torch.cuda.device(device):
            function = compiled(source, name, [*options, *(f"-D{key}={value}" for key, value in sizes.items())])
            return Kernel(function, slots * teams(name, size) * _TEAM, _SHARED)
    except Exception as error:  # whatever is missing or has changed, there are the other kernels
        warnings.warn(f"no kernels for whole images, training is slower: {error}", stacklevel=2)
        return None


def launch(name: str, side: int, N: int, *arguments: Tensor | None) -> None:
    """Runs a kernel on N images; the second tensor among the arguments tells the type of numbers."""
    given = [each for each in arguments if each is not None]
    device, size = given[1].device, given[1].itemsize
    slots, processors = _slots(device, name, size, N), torch.cuda.get_device_properties(device).multi_processor_count
    with torch.cuda.device(device):
        _kernel(device, name, size, side, slots)(min(processors, -(-N // slots)), *arguments, N)


@dataclass(frozen=True)
class Layers:
    """What a chain of layers is used with.

    Attributes:
        weights: the packed ones.
        tapes: of each layer.
        rows: memory for what each activation makes: its output, and the gradients of its input and of its parameters.
        kept: whether there will be a way back.
    """

    weights: tuple[Tensor, ...]
    tapes: tuple[Any, ...]
    rows: tuple[tuple[Any, ...], ...]
    kept: bool

    def add(self, *left: tuple[Tensor, ...]) -> None:
        """Leaves to each layer's tape what one use left."""
        for tape, tensors in zip(self.tapes, left, strict=True):
            if tape is not None:
                tape.add(*tensors)


# ---- weights, in the order in which the kernels' products read them ----


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
    row = torch.tensor(_PIXELS)[:, 0]

    def phase(a: Any, b: Any, y: int, x: int, out: Tensor, inside: Tensor) -> Tensor:
        return ((((2 * a + b) * MIDDLE + out) * 3 + y + 1) * 3 + x + 1) * SMALL + inside

    up, back = [], []
    for y in (-1, 0, 1):
        i, p, c = _grid(SMALL, 1 if y < 0 else 2, MIDDLE)
        for b, x in _REACH:
            some = torch.tensor([n for n, (a, column) in enumerate(_PIXELS) if column == b and (y >= 0 or a == 0)])
            up.append(_strips(phase(row[some[p]], b, y, x, c, i), strip))
    c, i = _grid(MIDDLE, SMALL)
    for a, y in _REACH:
        back += [phase(a, b, y, x, c, i) for b, x in _REACH]
    last = [36 * MIDDLE * SMALL + table for table in last_places(strip)]
    return [torch.cat(up), *last, _strips(torch.cat(back).view(-1, 1, SMALL), strip)]


def last_places(strip: int) -> list[Tensor]:
    """Two, the last convolution's: where its packed weights are in (25,MIDDLE) and a zero, there and back."""
    row, column = torch.tensor(_PIXELS).T
    i, j, c, u, v = _grid(4, 4, MIDDLE, 4, 4)
    there = _tap(u - 2 * i + 4, v - 2 * j + 4, 5, c, 25 * MIDDLE)
    i, j, p, c = _grid(8, 8, 4, MIDDLE)
    back = _tap(i - 2 * row[p], j - 2 * column[p], 5, c, 25 * MIDDLE)
    return [_strips(table, strip) for table in (there.reshape(-1, 1, 16), back.reshape(-1, 4, MIDDLE))]


@functools.cache
def _places(places: Callable[[int], list[Tensor]], strip: int, device: torch.device) -> tuple[Tensor, list[int]]:
    with torch.inference_mode(False):
        tables = places(strip)
        return torch.cat(tables).to(device), [len(table) for table in tables]


def packed(places: Callable[[int], list[Tensor]], dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
    """The weights in the type of the products, as the kernels read them; of convolutions with their channels last."""
    rows = [weight.detach().permute(0, 2, 3, 1) if weight.dim() == 4 else weight.detach() for weight in weights]
    every = torch.cat([*(each.flatten() for each in rows), weights[0].new_zeros(1)])
    table, sizes = _places(places, 16 // dtype.itemsize, every.device)
    read = every[table].to(dtype)
    if dtype == torch.float32 and read.is_cuda:  # to the ten bits of TF32: the products would cut the rest off
        wide = read * (2**13 + 1)
        read = wide - (wide - read)
    return read.split(sizes)


# ---- the functions ----


class ThroughEncoder(torch.autograd.Function):
    """Images (N,1,4S,4S) to features (N,SMALL,S,S); the parameters' gradients go to the tapes of the four layers."""

    places = staticmethod(encoder_places)

    @staticmethod
    def forward(ctx: Any, layers: Layers, x: Tensor, *parameters: Tensor) -> Tensor:
        """Parameters are all that the layers are held with."""
        _, scale1, offset1, bias1, _, scale2, offset2, bias2 = parameters
        first, strided, *back = layers.weights
        vectors = bias1, scale1, offset1, bias2, scale2, offset2
        x = _read_whole(x)
        N, side = len(x), x.shape[-1] // 4
        middle, small = (N, MIDDLE, 2 * side, 2 * side), (N, SMALL, side, side)
        a2 = layers.rows[1][0].take(small, first)
        between: list[Tensor | None] = [None] * 5
        if layers.kept:
            a1 = layers.rows[0][0].take(middle, first)
            z1, z2 = _images(middle, first), _images(small, first)
            statistics = x.new_empty(2, N, 2)
            between = [z1, a1, z2, *statistics]
            ctx.save_for_backward(x, a1, z1, z2, *statistics, *back, *vectors)
        launch("encoder_there", side, N, x, first, strided, *vectors, a2, *between)
        ctx.layers = layers
        return a2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, a1, *between = ctx.saved_tensors
        N, side, rows = len(x), x.shape[-1] // 4, ctx.layers.rows
        dz1, dz2 = rows[0][1].take(tuple(a1.shape), a1), rows[1][1].take(tuple(gradient.shape), a1)
        parts1, parts2 = rows[0][2].take((N, 3, MIDDLE), x), rows[1][2].take((N, 3, SMALL), x)
        back = torch.empty_like(x) if ctx.needs_input_grad[1] else None
        gradient = _read_whole(gradient.to(a1.dtype))
        launch("encoder_back", side, N, gradient, *between, dz1, dz2, parts1, parts2, back)
        ctx.layers.add((x, dz1), (parts1,), (a1, dz2), (parts2,))
        return None, back, *(None,) * 8


class ThroughDecoder(torch.autograd.Function):
    """Features (N,SMALL,S,S) to images (N,1,4S,4S), in the parameters' type; gradients as for the encoder's."""

    places = staticmethod(decoder_places)

    @staticmethod
    def forward(ctx: Any, layers: Layers, x: Tensor, *parameters: Tensor) -> Tensor:
        """Parameters are all that the layers are held with.

        Where the weights are without the up-convolution's, x is its result, the phases (N,4*MIDDLE,S,S).
        """
        scale, offset, bias, _, last_bias = parameters[-5:]
        last, last_back = layers.weights[-3:-1] if len(layers.weights) == 4 else layers.weights
        up, up_back = (layers.weights[0], layers.weights[3]) if len(layers.weights) == 4 else (None, None)
        x = _read_whole(x.to(last.dtype))
        N, side = len(x), x.shape[-1]
        eta = bias.new_empty(N, 1, 4 * side, 4 * side)
        between: list[Tensor | None] = [None] * 3
        if layers.kept:
            z = None if up is None else _images((N, 4 * MIDDLE, side, side), last)
            a = layers.rows[0][0].take((N, MIDDLE, 2 * side, 2 * side), last)
            between = [z, a, statistics := bias.new_empty(N, 2)]
            ctx.save_for_backward(x, a, z, statistics, last_back, up_back, bias, scale, offset)
        launch("decoder_there", side, N, x, up, last, bias, scale, offset, last_bias, eta, *between)
        ctx.layers = layers
        return eta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, a, z, statistics, last, up, *vectors = ctx.saved_tensors
        N, side, rows, gradient = len(x), x.shape[-1], ctx.layers.rows[0], _read_whole(gradient)
        product, back = (x, None) if z is None else (z, torch.empty_like(x))
        dz, parts = rows[1].take(tuple(product.shape), product), rows[2].take((N, 3, MIDDLE), gradient)
        launch("decoder_back", side, N, gradient, product, statistics, last, up, *vectors, dz, parts, back)
        own = (parts,), (a, gradient)
        if back is None:
            ctx.layers.add(*own)
            return None, dz, *(None,) * 5
        ctx.layers.add((x, dz), *own)
        return None, back, *(None,) * 6


class ThroughLast(ThroughDecoder):
    """The same from what the up-convolution made."""

    places = staticmethod(last_places)


def _read_whole(x: Tensor) -> Tensor:
    """In one piece, channels last, from where 16 bytes can be read at once."""
    x = x.contiguous(memory_format=torch.channels_last)
    return x.clone() if x.data_ptr() % 16 else x


def _images(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
