"""A convolution and an activation in one kernel, a whole image (or several small ones) in one program.

There: convolution, bias, layer norm, non-linearity. Back: the gradient of what a convolution read and, through the
activation that made it, the gradient of what that one was given. Either way the image that lies between the two is
never read or written.

All are products: of the SIDE x SIDE patches of an image, those of its pixel (i,j) from (STRIDE i - PAD, STRIDE j - PAD)
on, with a weight (F, SIDE*SIDE*C). Columns F may be the four phases of an image of twice the size, (2,2,channels).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from neural_em.model.fast.kernels.activation import _EPSILON, KINDS, activated, sloped
from neural_em.model.fast.kernels.edges import precision

USED = True  # where images fit
LARGEST = 16384  # numbers that one program can hold
ROWS = 64  # of a program, at least, and twice as many if its weight is heavy: several images where one has fewer
HEAVY = 96 * 1024  # bytes of a weight, which every program reads
HEAVIEST = 256 * 1024  # bytes of it for each image: beyond that, several kernels for all images are faster
PROGRAMS = 32  # at least, if there are as many images
# where a tile lies in memory: as it is; its columns, four phases, as one image; its rows, an image, as four phases
PLAIN, JOINED, SPLIT = 0, 1, 2
_JOINED, _SPLIT = tl.constexpr(JOINED), tl.constexpr(SPLIT)


class Patches(NamedTuple):
    """Which pixels each product reads."""

    SIDE: int
    STRIDE: int
    PAD: int


HALVING, AROUND, REACHED = Patches(4, 2, 1), Patches(3, 1, 1), Patches(5, 2, 2)


class Norm(NamedTuple):
    """An activation: its parameters (channels,), and each image's mean and 1 / deviation (N,)."""

    kind: str
    scale: Tensor
    offset: Tensor
    bias: Tensor
    mean: Tensor
    deviation: Tensor


def image_fits(height: int, width: int, columns: int, depth: int, dtype: torch.dtype) -> bool:
    """Whether a program can hold images of that size and so many columns, and is not busy reading the weight alone."""
    weight = columns * depth * min(dtype.itemsize, 4)  # float64 is for tests, which are to see the same kernels
    PB, FB, G = _tile(height * width, columns, weight)
    return USED and PB * FB <= LARGEST and weight <= HEAVIEST * G


def _tile(pixels: int, columns: int, weight: int) -> tuple[int, int, int]:
    """Rows and columns of an image's tile, and how many images share a program and its weight of so many bytes."""
    PB, FB = (max(16, triton.next_power_of_2(n)) for n in (pixels, columns))
    rows = 2 * ROWS if weight > HEAVY else ROWS
    return PB, FB, max(1, min(rows // PB, LARGEST // (PB * FB)))


@triton.jit
def _over_image(v, G: tl.constexpr, PB: tl.constexpr):
    """The sum over each of G images of PB rows, to be read with its rows."""
    rows = tl.sum(v, axis=1)
    if G == 1:
        total = tl.sum(rows, axis=0)
    else:
        total = tl.sum(tl.reshape(rows, (G, PB)), axis=1)
        total = tl.reshape(tl.broadcast_to(total[:, None], (G, PB)), (G * PB,))[:, None]
    return total


@triton.jit
def _places(p, f, h, w, F: tl.constexpr, PLACE: tl.constexpr):
    """Where pixel p and column f of an image lie in its memory."""
    if PLACE == _JOINED:
        phase = f // (F // 4)
        q = (2 * (p // w) + phase // 2) * (2 * w) + 2 * (p % w) + phase % 2
        at = q * (F // 4) + f % (F // 4)
    elif PLACE == _SPLIT:
        i, j = p // w, p % w
        at = (((i // 2) * (w // 2) + j // 2) * 4 + 2 * (i % 2) + j % 2) * F + f
    else:
        at = p * F + f
    return at


@triton.jit
def _product(
    x, weight, first, image, p, there, N, H, W, w, C: tl.constexpr, F: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
    FB: tl.constexpr, KB: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """The product of the images' patches with the weight: 0 where there is no pixel or no column."""
    f = tl.arange(0, FB)[None, :]
    e = tl.arange(0, KB)
    x += first.to(tl.int64) * H * W * C
    i, j = STRIDE * (p // w) - PAD, STRIDE * (p % w) - PAD
    total = tl.zeros([p.shape[0], FB], dtype=TYPE)
    for k in range(0, SIDE * SIDE * C, KB):
        if C % KB == 0:  # one tap's channels, or some of them
            tap, c = k // C, k % C + e[None, :]
        else:
            tap, c = (k + e)[None, :] // C, (k + e)[None, :] % C
        row, column = i + tap // SIDE, j + tap % SIDE
        inside = there & (tap < SIDE * SIDE) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        patches = tl.load(x + ((image * H + row) * W + column) * C + c, mask=inside, other=0.0)
        held = (f < F) & (k + e < SIDE * SIDE * C)[:, None]
        taps = tl.load(weight + f * (SIDE * SIDE * C) + (k + e)[:, None], mask=held, other=0.0)
        if HALF:
            patches, taps = patches.to(tl.bfloat16), taps.to(tl.bfloat16)
        total += tl.dot(patches, taps, input_precision=PRECISION)
    return total


@triton.jit
def _there(
    x, weight, bias, scale, offset, mean, deviation, before, out, N, H, W, h, w,
    C: tl.constexpr, F: tl.constexpr, KIND: tl.constexpr, PLACE: tl.constexpr, KEPT: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
    G: tl.constexpr, PB: tl.constexpr, FB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * G
    r = tl.arange(0, G * PB)[:, None]
    image, p, f = r // PB, r % PB, tl.arange(0, FB)[None, :]
    there = (first + image < N) & (p < h * w)
    v = _product(
        x, weight, first, image, p, there, N, H, W, w, C, F, SIDE, STRIDE, PAD, PRECISION, HALF, FB, KB,
        mean.dtype.element_ty,
    )  # fmt: skip
    inside = there & (f < F)
    base = first.to(tl.int64) * h * w * F
    if KEPT:
        v = v.to(before.dtype.element_ty)
        tl.store(before + base + image * h * w * F + _places(p, f, h, w, F, 0), v, mask=inside)
    v = v.to(mean.dtype.element_ty)
    channel = f % (F // 4) if PLACE == _JOINED else f
    v = tl.where(inside, v + tl.load(bias + channel, mask=f < F, other=0.0), 0.0)
    m = _over_image(v, G, PB) / (h * w * F)
    v = tl.where(inside, v - m, 0.0)
    d = 1.0 / tl.sqrt(_over_image(v * v, G, PB) / (h * w * F) + _EPSILON)
    z = v * d * tl.load(scale + channel, mask=f < F, other=0.0) + tl.load(offset + channel, mask=f < F, other=0.0)
    z = activated(z, KIND)
    tl.store(out + base + image * h * w * F + _places(p, f, h, w, F, PLACE), z, mask=inside)
    one = (first + image < N) & (p == 0)
    nothing = tl.zeros([G * PB, 1], dtype=mean.dtype.element_ty)
    tl.store(mean + first + image, m + nothing, mask=one)
    tl.store(deviation + first + image, d + nothing, mask=one)


@triton.jit
def _back(
    x, weight, bias, scale, offset, mean, deviation, before, out, parts, N, H, W, h, w,
    C: tl.constexpr, F: tl.constexpr, KIND: tl.constexpr, PLACE: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
    G: tl.constexpr, PB: tl.constexpr, FB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * G
    r = tl.arange(0, G * PB)[:, None]
    image, p, f = r // PB, r % PB, tl.arange(0, FB)[None, :]
    there = (first + image < N) & (p < h * w)
    g = _product(
        x, weight, first, image, p, there, N, H, W, w, C, F, SIDE, STRIDE, PAD, PRECISION, HALF, FB, KB,
        mean.dtype.element_ty,
    )  # fmt: skip
    inside = there & (f < F)
    at = first.to(tl.int64) * h * w * F + image * h * w * F + _places(p, f, h, w, F, PLACE)
    channels: tl.constexpr = F // 4 if PLACE == _JOINED else F
    channel = f % channels
    s = tl.load(scale + channel, mask=f < F, other=0.0)
    v = tl.load(before + at, mask=inside, other=0.0).to(mean.dtype.element_ty)
    v += tl.load(bias + channel, mask=f < F, other=0.0)
    d = tl.load(deviation + first + image, mask=there, other=0.0)
    v = tl.where(inside, (v - tl.load(mean + first + image, mask=there, other=0.0)) * d, 0.0)
    g = sloped(g, v * s + tl.load(offset + channel, mask=f < F, other=0.0), KIND)
    # these images' part of the gradients of scale, offset and bias: rows (phases, 3, channels) of each program
    column = tl.arange(0, FB)
    parts += (tl.program_id(0) * (F // channels) + column // channels) * 3 * channels + column % channels
    tl.store(parts, tl.sum(g * v, axis=0), mask=column < F)
    tl.store(parts + channels, tl.sum(g, axis=0), mask=column < F)
    g = g * s
    a = _over_image(g, G, PB) / (h * w * F)
    b = _over_image(g * v, G, PB) / (h * w * F)
    g = tl.where(inside, (g - a - v * b) * d, 0.0)
    tl.store(out + at, g, mask=inside)
    tl.store(parts + 2 * channels, tl.sum(g, axis=0), mask=column < F)


def image_there(
    x: Tensor, weight: Tensor, norm: Norm, before: Tensor | None, out: Tensor, patches: Patches, joined: bool
) -> None:
    """Fills ``out`` with the activation of the convolution of x, ``before`` with the convolution without its bias.

    Args:
        x: (N,C,H,W), channels last in memory as all images are.
        weight: (F, SIDE*SIDE*C).
        norm: the activation; its means and deviations are filled.
        before: (N,F,h,w), or none to keep none.
        out: (N,F,h,w) or, joined from four phases, (N,F/4,2h,2w), of the type of the products.
        patches: what of x the convolution reads.
        joined: whether F are four phases.
    """
    size = (out.shape[2] // 2, out.shape[3] // 2) if joined else (out.shape[2], out.shape[3])
    grid, sizes, settings = _settings(x, weight, size, patches, out, 1024)
    _there[grid](
        x, weight, norm.bias, norm.scale, norm.offset, norm.mean, norm.deviation, before, out, *sizes,
        **settings, KIND=KINDS[norm.kind], PLACE=JOINED if joined else PLAIN, KEPT=before is not None,
    )  # fmt: skip


def image_back(
    gradient: Tensor, weight: Tensor, norm: Norm, before: Tensor, out: Tensor, patches: Patches, place: int
) -> Tensor:
    """Fills ``out`` with the gradient of ``before``; the parameters' gradients in parts (M,3,channels), to be summed.

    Args:
        gradient: (N,C,H,W) of what the next convolution gave.
        weight: (F, SIDE*SIDE*C) of its transpose.
        norm: the activation that made what it read.
        before: what that one was given, without the bias.
        out: like ``before``.
        patches: what of the gradient the transpose reads.
        place: JOINED, of F that are four phases, or SPLIT, where ``before`` has phases.
    """
    H, W = gradient.shape[2:]
    size = (H // patches.STRIDE, W // patches.STRIDE)
    grid, sizes, settings = _settings(gradient, weight, size, patches, before, 512)
    phases = 4 if place == JOINED else 1
    parts = norm.mean.new_empty(grid[0] * phases, 3, len(weight) // phases)
    _back[grid](
        gradient, weight, norm.bias, norm.scale, norm.offset, norm.mean, norm.deviation, before, out, parts, *sizes,
        **settings, KIND=KINDS[norm.kind], PLACE=place,
    )  # fmt: skip
    return parts


@functools.cache
def _shared() -> int:
    """Bytes of a multiprocessor's own memory that a program may fill with what it reads ahead."""
    if not torch.cuda.is_available():
        return 160 * 1024
    devices: list[Any] = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return min(device.shared_memory_per_block_optin for device in devices) * 2 // 3


def _settings(
    x: Tensor, weight: Tensor, size: tuple[int, int], patches: Patches, like: Tensor, warp: int
) -> tuple[tuple[int], tuple[int, ...], dict[str, Any]]:
    """Grid, sizes and constants of a kernel that makes images of that size from x, in the precision of ``like``.

    A warp is to hold so many numbers.
    """
    (N, C, H, W), F, bytes_each = x.shape, len(weight), like.element_size()
    PB, FB, G = _tile(size[0] * size[1], F, weight.nbytes)
    G = min(G, triton.next_power_of_2(max(1, N // PROGRAMS)))
    KB = next((n for n in (64, 32, 16) if C % n == 0 and n * bytes_each <= 128), 16)
    ahead = _shared() // ((G * PB + FB) * KB * bytes_each)
    constants = {
        "C": C, "F": F, **patches._asdict(), "PRECISION": precision(), "HALF": like.dtype == torch.bfloat16, "G": G,
        "PB": PB, "FB": FB, "KB": KB, "num_warps": max(4, min(16, G * PB * FB // warp)),
        "num_stages": max(1, min(3, ahead)) if C % KB == 0 and bytes_each < 8 else 1,
    }  # fmt: skip
    return (triton.cdiv(N, G),), (N, H, W, *size), constants
