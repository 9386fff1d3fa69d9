"""The outer convolutions of an encoder or a decoder in one kernel each way: the host's side of `images.cu`."""

import functools
import importlib.resources
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.fast.graphs import products
from neural_em.model.fast.kernels.packing import (
    MIDDLE,
    SMALL,
    decoder_places,
    decoder_sums,
    encoder_places,
    encoder_sums,
)
from neural_em.model.fast.kernels.sums import column_sums

LARGEST = 7  # side of the smallest image
NAMES = ("encoder_there", "encoder_back", "encoder_weights", "decoder_there", "decoder_back", "decoder_weights")
_SUMS = {"encoder_weights": 16 * MIDDLE * SMALL, "decoder_weights": 26 * MIDDLE * SMALL}  # of a block
_THREADS = 128  # of an image
_SHARED = 232448  # bytes that a block can have on the GPUs these kernels are for


def usable(device: torch.device, dtype: torch.dtype, encodes: bool, side: int, N: int) -> bool:
    """Whether the kernels run there: on a Hopper GPU, in bfloat16 or TF32."""
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    if dtype != torch.bfloat16 and not (dtype == torch.float32 and products() == ("tf32", "tf32")):
        return False
    names = NAMES[:3] if encodes else NAMES[3:]
    return all(_kernel(device, name, operands(dtype), side, _slots(device, name, N)) for name in names)


def operands(dtype: torch.dtype) -> torch.dtype:
    """The type of the products' operands: 16-bit floats have the ten bits of TF32."""
    return torch.float16 if dtype == torch.float32 else dtype


def _slots(device: torch.device, name: str, N: int) -> int:
    """How many images a block has at once: no more than it takes to have all of them in some block."""
    return 2 if name.endswith("weights") else min(3, -(-N // _processors(device)))


def blocks(device: torch.device, name: str, N: int) -> int:
    """How many blocks share N images."""
    return min(_processors(device), N if name.endswith("weights") else -(-N // _slots(device, name, N)))


def _processors(device: torch.device) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@functools.cache
def _kernel(device: torch.device, name: str, dtype: torch.dtype, side: int, slots: int) -> Any:
    """A compiled kernel, which takes about a second; none, and a word about it, where that fails."""
    try:
        from neural_em.model.fast.kernels.compiled import Kernel, compiled

        here = importlib.resources.files(__package__)
        source = "".join((here / file).read_text() for file in ("hopper.cu", "cells.cu", "images.cu"))
        half = dtype == torch.float16
        sizes = {"S": side, "E": 2, "W": 4 if half else 2, "HALF": int(half), "SLOTS": slots, "SHARED": _SHARED,
                 name.upper(): 1}  # fmt: skip
        options = ["--gpu-architecture=sm_90a", "--std=c++17", "--use_fast_math"]
        with torch.cuda.device(device):
            function = compiled(source, name, [*options, *(f"-D{key}={value}" for key, value in sizes.items())])
            return Kernel(function, slots * _THREADS, _SHARED)
    except Exception as error:  # whatever is missing or has changed, there are the other kernels
        warnings.warn(f"no kernels for whole images, training is slower: {error}", stacklevel=2)
        return None


def launch(name: str, dtype: torch.dtype, side: int, N: int, *arguments: Tensor | None) -> None:
    """Runs a kernel on N images, with operands of a type."""
    device = next(each.device for each in arguments if each is not None)
    with torch.cuda.device(device):
        kernel = _kernel(device, name, dtype, side, _slots(device, name, N))
        kernel(blocks(device, name, N), *arguments, N)


@dataclass(frozen=True)
class Layers:
    """What a chain of layers is used with.

    Attributes:
        weights: the packed ones, and what their products are multiplied by, if the operands are scaled.
        dtype: of numbers in memory.
        seen: memory for what a decoder reads.
        tapes: of each layer.
        rows: memory for what each activation makes: its output, and the gradients of its input and of its parameters.
        kept: whether there will be a way back.
    """

    weights: tuple[tuple[Tensor, ...], Tensor | None]
    dtype: torch.dtype
    seen: Any
    tapes: tuple[Any, ...]
    rows: tuple[tuple[Any, ...], ...]
    kept: bool

    def add(self, *left: tuple[Tensor, ...]) -> None:
        """Leaves to each layer's tape what one use left."""
        for tape, tensors in zip(self.tapes, left, strict=True):
            if tape is not None:
                tape.add(*tensors)


class ThroughEncoder(torch.autograd.Function):
    """Images (N,1,4S,4S) to features (N,SMALL,S,S); the parameters' gradients go to the tapes of the four layers."""

    places = staticmethod(encoder_places)

    @staticmethod
    def forward(ctx: Any, layers: Layers, x: Tensor, *parameters: Tensor) -> Tensor:
        """Parameters are all that the layers are held with."""
        _, scale1, offset1, bias1, _, scale2, offset2, bias2 = parameters
        (first, strided, *back), powers = layers.weights
        vectors = bias1, scale1, offset1, bias2, scale2, offset2
        x = _read_whole(x)
        N, side, like = len(x), x.shape[-1] // 4, x.new_empty(0, dtype=layers.dtype)
        middle, small = (N, MIDDLE, 2 * side, 2 * side), (N, SMALL, side, side)
        a2 = layers.rows[1][0].take(small, like)
        between: list[Tensor | None] = [None] * 5
        if layers.kept:
            a1 = layers.rows[0][0].take((N, _row(4 * MIDDLE, 66, first)), first)
            z1, z2 = _images(middle, like), _images(small, like)
            statistics = x.new_empty(2, N, 2)
            between = [z1, a1, z2, *statistics]
            ctx.save_for_backward(x, a1, *back, powers, z1, z2, *statistics, *vectors)
        launch("encoder_there", first.dtype, side, N, x, first, strided, powers, *vectors, a2, *between)
        ctx.layers = layers
        return a2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, a1, *given = ctx.saved_tensors
        N, side, rows = len(x), x.shape[-1] // 4, ctx.layers.rows
        gradient = _read_whole(gradient.to(ctx.layers.dtype))
        dz1 = rows[0][1].take((N, MIDDLE, 2 * side, 2 * side), gradient)
        dz2 = rows[1][1].take((N, _row(SMALL, 74, a1)), a1)
        parts1, parts2 = rows[0][2].take((N, 3, MIDDLE), x), rows[1][2].take((N, 3, SMALL), x)
        back = torch.empty_like(x) if ctx.needs_input_grad[1] else None
        launch("encoder_back", a1.dtype, side, N, gradient, *given, dz1, dz2, parts1, parts2, back)
        if strided := ctx.layers.tapes[2]:
            strided.make_by(functools.partial(_weight_gradient, "encoder_weights", encoder_sums, side))
        ctx.layers.add((x, dz1), (parts1,), (dz2, a1), (parts2,))
        return None, back, *(None,) * 8


class ThroughDecoder(torch.autograd.Function):
    """Features (N,SMALL,S,S) to images (N,1,4S,4S), in the parameters' type; gradients as for the encoder's."""

    places = staticmethod(decoder_places)

    @staticmethod
    def forward(ctx: Any, layers: Layers, x: Tensor, *parameters: Tensor) -> Tensor:
        """Parameters are all that the layers are held with."""
        _, scale, offset, bias, _, last_bias = parameters
        (up, *last, up_back), powers = layers.weights
        x = _read_whole(x.to(layers.dtype))
        N, side = len(x), x.shape[-1]
        eta = bias.new_empty(N, 1, 4 * side, 4 * side)
        between: list[Tensor | None] = [None] * 4
        if layers.kept:
            z, a = _images((N, 4 * MIDDLE, side, side), x), layers.rows[0][0].take((N, MIDDLE, 2 * side, 2 * side), x)
            seen = layers.seen.take((N, _row(SMALL, 74, up)), up)
            between = [seen, z, a, statistics := bias.new_empty(N, 2)]
            ctx.save_for_backward(seen, a, last[1], up_back, powers, z, statistics, bias, scale, offset)
        vectors = bias, scale, offset, last_bias
        launch("decoder_there", up.dtype, side, N, x, up, last[0], powers, *vectors, eta, *between)
        ctx.layers = layers
        return eta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        seen, a, *given = ctx.saved_tensors
        N, side, rows, gradient = len(a), a.shape[-1] // 2, ctx.layers.rows[0], _read_whole(gradient)
        dz, parts = rows[1].take((N, _row(4 * MIDDLE, 74, seen)), seen), rows[2].take((N, 3, MIDDLE), gradient)
        back = _images((N, SMALL, side, side), a)
        launch("decoder_back", seen.dtype, side, N, gradient, *given, dz, parts, back)
        if up := ctx.layers.tapes[0]:
            up.make_by(functools.partial(_weight_gradient, "decoder_weights", decoder_sums, side))
        ctx.layers.add((seen, dz), (parts,), (a, gradient))
        return None, back, *(None,) * 6


def _row(channels: int, cells: int, like: Tensor) -> int:
    """Numbers of an image's planes, with what takes their power back."""
    return channels * cells + 16 // like.itemsize


@functools.cache
def _sums(sums: Callable[[], Tensor], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return sums().to(device)


def _weight_gradient(name: str, sums: Callable[[], Tensor], side: int, small: Tensor, other: Tensor) -> tuple[Tensor]:
    """The gradient of an inner convolution's weight, from the planes of all images."""
    N, table, factors = len(small), _sums(sums, small.device), None
    if small.dtype == torch.float16:  # images have powers of their own: all are brought to the largest
        factors = small.view(torch.float32)[:, -4] * other.view(torch.float32)[:, -4]
        largest = factors.amax()
        factors = factors / largest
    parts = small.new_empty(blocks(small.device, name, N), _SUMS[name], dtype=torch.float32)
    launch(name, small.dtype, side, N, small, other, factors, parts)
    weight = F.pad(column_sums(parts), (0, 1))[table]
    if factors is not None:
        weight *= largest
    return (weight.permute(0, 3, 1, 2),)


def _read_whole(x: Tensor) -> Tensor:
    """In one piece, channels last, from where 16 bytes can be read at once."""
    x = x.contiguous(memory_format=torch.channels_last)
    return x.clone() if x.data_ptr() % 16 else x


def _images(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
