"""The first and the last convolution, between images of few channels and features of half their size.

Both are one linear map and its transpose: small pixel (i,j) meets the patch of K x K image pixels from
(2i - PAD, 2j - PAD) on. The first convolution has 4x4 patches; the last one, which doubles the image before its 4x4
convolution, reaches 5x5.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.fast.kernels.layout import LAUNCH, in_turn

FIRST, LAST = (4, 1), (5, 2)  # K and PAD
Patch = tuple[int, int]
_PIXELS, _WARPS = 64, 4  # small pixels that a program has at once
_PROGRAMS = 1056  # eight for each multiprocessor of an H200


@triton.jit
def _to_features(
    x, weight, y, H, W, h, w, F,
    C: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
    PB: tl.constexpr, TB: tl.constexpr, FB: tl.constexpr,
):  # fmt: skip
    in_turn()
    n = tl.program_id(0).to(tl.int64)
    p = (tl.program_id(1) * PB + tl.arange(0, PB))[:, None]
    f = tl.arange(0, FB)[None, :]
    total = tl.zeros([PB, FB], dtype=weight.dtype.element_ty)
    for first in tl.static_range(0, K * K * C, TB):
        e = first + tl.arange(0, TB)  # of (K, K, C)
        tap, c = (e // C)[None, :], (e % C)[None, :]
        i, j = 2 * (p // w) + tap // K - PAD, 2 * (p % w) + tap % K - PAD
        inside = (p < h * w) & (tap < K * K) & (i >= 0) & (i < H) & (j >= 0) & (j < W)
        patches = tl.load(x + ((n * H + i) * W + j) * C + c, mask=inside, other=0.0)
        taps = tl.load(weight + e[:, None] * F + f, mask=(e < K * K * C)[:, None] & (f < F), other=0.0)
        if HALF:
            patches, taps = patches.to(tl.bfloat16), taps.to(tl.bfloat16)
        total += tl.dot(patches, taps, input_precision=PRECISION)
    tl.store(y + (n * h * w + p) * F + f, total, mask=(p < h * w) & (f < F))


@triton.jit
def _taps(a, weight, b, f, o, F, C: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, HALF: tl.constexpr):
    """What the features of the row i + a - 1, three small pixels of it, bring to the pixels ``o`` of the image."""
    phase, c = o // C, o % C
    row, column = PAD + 2 - 2 * a + phase // 2, PAD + 2 - 2 * b[:, None] + phase % 2  # the place in the patch
    held = (o < 4 * C) & (row >= 0) & (row < K) & (column >= 0) & (column < K) & ((b < 3) & (f < F))[:, None]
    taps = tl.load(weight + ((row * K + column) * C + c) * F + f[:, None], mask=held, other=0.0)
    return taps.to(tl.bfloat16) if HALF else taps


@triton.jit
def _row(a, y, p, b, f, taps, h, F, w: tl.constexpr, PRECISION: tl.constexpr):
    """The part of the row i + a - 1 around each small pixel p in its image pixels."""
    k, m = p // w + a - 1, p % w + b[None, :] - 1
    inside = (p < h * w) & (k >= 0) & (k < h) & (m >= 0) & (m < w) & ((b < 3) & (f < F))[None, :]
    features = tl.load(y + (k * w + m) * F + f[None, :], mask=inside, other=0.0)
    return tl.dot(features, taps, input_precision=PRECISION)


@triton.jit
def _to_image(
    y, weight, bias, x, BLOCKS, PER, H, W, h, F, w: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
    BIAS: tl.constexpr, PB: tl.constexpr, FB: tl.constexpr, OB: tl.constexpr,
):  # fmt: skip
    in_turn()
    e = tl.arange(0, 4 * FB)  # of (4, FB): the features of three small pixels in a row, one after another in memory
    b, f = e // FB, e % FB
    o = tl.arange(0, OB)[None, :]  # of which 4 * C are used: the image pixels (2i, 2j) and its three neighbours
    above = _taps(0, weight, b, f, o, F, C, K, PAD, HALF)
    beside = _taps(1, weight, b, f, o, F, C, K, PAD, HALF)
    below = _taps(2, weight, b, f, o, F, C, K, PAD, HALF)
    for block in range(tl.program_id(0), BLOCKS, tl.num_programs(0)):
        n = (block // PER).to(tl.int64)
        p = (block % PER * PB + tl.arange(0, PB))[:, None]
        here = y + n * h * w * F
        total = _row(0, here, p, b, f, above, h, F, w, PRECISION)
        total += _row(1, here, p, b, f, beside, h, F, w, PRECISION)
        total += _row(2, here, p, b, f, below, h, F, w, PRECISION)
        if BIAS:
            total += tl.load(bias + o % C)
        at = ((2 * (p // w) + o // C // 2) * W + 2 * (p % w) + o // C % 2) * C + o % C
        tl.store(x + n * H * W * C + at, total, mask=(p < h * w) & (o < 4 * C))


@triton.jit
def _to_weight(
    x, y, parts, BLOCKS, PER, H, W, h, F, w: tl.constexpr,
    C: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
    PB: tl.constexpr, TB: tl.constexpr, FB: tl.constexpr,
):  # fmt: skip
    in_turn()
    e = tl.arange(0, TB)[:, None]  # of (K, K, C)
    tap, c = e // C, e % C
    f = tl.arange(0, FB)[None, :]
    total = tl.zeros([TB, FB], dtype=parts.dtype.element_ty)
    for block in range(tl.program_id(0), BLOCKS, tl.num_programs(0)):
        n = (block // PER).to(tl.int64)
        p = block % PER * PB + tl.arange(0, PB)
        i, j = 2 * (p // w)[None, :] + tap // K - PAD, 2 * (p % w)[None, :] + tap % K - PAD
        inside = (p < h * w)[None, :] & (tap < K * K) & (i >= 0) & (i < H) & (j >= 0) & (j < W)
        patches = tl.load(x + n * H * W * C + (i * W + j) * C + c, mask=inside, other=0.0)
        features = tl.load(
            y + n * h * w * F + p[:, None] * F + f, mask=(p < h * w)[:, None] & (f < F), other=0.0
        )  # fmt: skip
        if HALF:
            patches = patches.to(tl.bfloat16)
        total += tl.dot(patches, features, input_precision=PRECISION)
    at = tl.program_id(0).to(tl.int64) * TB * FB + e * FB + f
    tl.store(parts + at, total)


def to_features(x: Tensor, weight: Tensor, y: Tensor, patch: Patch) -> None:
    """Fills y (N,F,h,w) from images x (N,C,2h,2w), both channels last in memory, and weight (K*K*C,F)."""
    (N, F, h, w), C = y.shape, x.shape[1]
    _to_features[(N, triton.cdiv(h * w, _PIXELS))](
        x, weight, y, 2 * h, 2 * w, h, w, F, C=C, **_settings(y, F, patch),
        TB=triton.next_power_of_2(patch[0] ** 2) if C == 1 else 16, **LAUNCH,
    )  # fmt: skip


def to_image(y: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, patch: Patch) -> None:
    """Fills images x (N,C,2h,2w) from y (N,F,h,w), channels last in memory: the transpose of `to_features`."""
    (N, F, h, w), C = y.shape, x.shape[1]
    blocks, each = _shared_out(N, h * w)
    _to_image[(each,)](
        y, weight, bias, x, *blocks, 2 * h, 2 * w, h, F, w=w, C=C, **_settings(y, F, patch), BIAS=bias is not None,
        OB=max(16, triton.next_power_of_2(4 * C)), **LAUNCH,
    )  # fmt: skip


def to_weight(x: Tensor, y: Tensor, patch: Patch) -> Tensor:
    """The sums over all images x (N,C,2h,2w) and all small pixels of patch times features y (N,F,h,w): (K*K*C,F)."""
    x, y = (each.contiguous(memory_format=torch.channels_last) for each in (x, y))
    (N, F, h, w), C = y.shape, x.shape[1]
    blocks, each = _shared_out(N, h * w)
    settings, taps = _settings(y, F, patch), patch[0] ** 2 * C
    TB = max(16, triton.next_power_of_2(taps))
    parts = x.new_empty(each, TB, settings["FB"])
    _to_weight[(each,)](x, y, parts, *blocks, 2 * h, 2 * w, h, F, w=w, C=C, **settings, TB=TB, **LAUNCH)
    return parts.sum(dim=0)[:taps, :F]


def _shared_out(images: int, pixels: int) -> tuple[tuple[int, int], int]:
    """Blocks of pixels in all and in an image, and among how many programs they are shared out evenly."""
    per = triton.cdiv(pixels, _PIXELS)
    return (images * per, per), triton.cdiv(images * per, triton.cdiv(images * per, _PROGRAMS))


def _settings(features: Tensor, F: int, patch: Patch) -> dict[str, Any]:
    coarse = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return {
        "K": patch[0],
        "PAD": patch[1],
        "PRECISION": "tf32" if coarse else "ieee",
        "HALF": features.dtype == torch.bfloat16,
        "PB": _PIXELS,
        "FB": max(16, triton.next_power_of_2(F)),
        "num_warps": _WARPS,
        "num_stages": 1,
    }  # fmt: skip  (buffers for more would fill the shared memory)


class ToFeatures(torch.autograd.Function):
    """The first convolution: (N,C,H,W) to (N,F,H/2,W/2); its weight's gradient goes to the tape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tape: Any, dtype: torch.dtype) -> Tensor:
        """Of images, with weight (16*C,F); the features' type is the one that is given."""
        x, weight = x.contiguous(memory_format=torch.channels_last), weight.contiguous()
        N, _, H, W = x.shape
        y = x.new_empty(N, H // 2, W // 2, weight.shape[1], dtype=dtype).permute(0, 3, 1, 2)
        to_features(x, weight, y, FIRST)
        ctx.save_for_backward(x, weight)
        ctx.tape = tape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        if ctx.tape is not None:
            ctx.tape.add(x, gradient)
        back = None
        if ctx.needs_input_grad[0]:
            back = torch.empty_like(x)
            to_image(gradient, weight, None, back, FIRST)
        return back, None, None, None


class ToImage(torch.autograd.Function):
    """The last convolution: (N,F,h,w) to (N,C,2h,2w); its parameters' gradients go to the tape."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, bias: Tensor, tape: Any) -> Tensor:
        """Of features, with weight (25*C,F) and bias (C,)."""
        y, weight = y.contiguous(memory_format=torch.channels_last), weight.contiguous()
        N, _, h, w = y.shape
        x = weight.new_empty(N, 2 * h, 2 * w, bias.numel()).permute(0, 3, 1, 2)
        to_image(y, weight, bias, x, LAST)
        ctx.save_for_backward(y, weight)
        ctx.tape = tape
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        y, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        if ctx.tape is not None:
            ctx.tape.add(y, gradient)
        back = torch.empty_like(y)
        to_features(gradient, weight, back, LAST)
        return back, None, None, None
