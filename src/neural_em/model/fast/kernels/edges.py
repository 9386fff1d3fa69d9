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

from neural_em.model.fast.kernels.layout import warps
from neural_em.model.fast.kernels.sums import column_sums

FIRST, LAST = (4, 1), (5, 2)  # K and PAD
Patch = tuple[int, int]
_PIXELS = 32  # small pixels of one program
_ROWS, _PROGRAMS = 64, 1024  # small pixels at a time for the weight's gradient; programs, about so many


@triton.jit
def _to_features(
    x, weight, y, H, W, h, w, F,
    C: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
    PB: tl.constexpr, TB: tl.constexpr, FB: tl.constexpr,
):  # fmt: skip
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
def _to_image(
    y, weight, bias, x, H, W, h, w, F,
    C: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
    BIAS: tl.constexpr, PB: tl.constexpr, FB: tl.constexpr, OB: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    p = (tl.program_id(1) * PB + tl.arange(0, PB))[:, None]
    f = tl.arange(0, FB)
    i, j = p // w, p % w
    o = tl.arange(0, OB)[None, :]  # of which 4 * C are used: the image pixels (2i, 2j) and its three neighbours
    phase, c = o // C, o % C
    total = tl.zeros([PB, OB], dtype=x.dtype.element_ty)
    for a in tl.static_range(3):  # the small pixels around: (i + a - 1, j + b - 1)
        for b in tl.static_range(3):
            k, m = i + a - 1, j + b - 1
            inside = (p < h * w) & (k >= 0) & (k < h) & (m >= 0) & (m < w)
            tile = tl.load(y + (n * h * w + k * w + m) * F + f[None, :], mask=inside & (f < F)[None, :], other=0.0)
            row, column = PAD + 2 - 2 * a + phase // 2, PAD + 2 - 2 * b + phase % 2  # the place in the patch
            held = (o < 4 * C) & (row >= 0) & (row < K) & (column >= 0) & (column < K) & (f < F)[:, None]
            taps = tl.load(weight + ((row * K + column) * C + c) * F + f[:, None], mask=held, other=0.0)
            if HALF:
                taps = taps.to(tl.bfloat16)
            total += tl.dot(tile, taps, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + c)
    at = ((n * H + 2 * i + phase // 2) * W + 2 * j + phase % 2) * C + c
    tl.store(x + at, total, mask=(p < h * w) & (o < 4 * C))


@triton.jit
def _patches_by_features(
    x, y, sums, N, EACH, H, W, h, w, F,
    C: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
    PB: tl.constexpr, EB: tl.constexpr, FB: tl.constexpr,
):  # fmt: skip
    e = tl.arange(0, EB)[:, None]  # of (K, K, C)
    f = tl.arange(0, FB)[None, :]
    p = tl.program_id(0) * PB + tl.arange(0, PB)  # small pixels, of one image after another
    i, j = 2 * (p // w)[None, :] + e // (K * C) - PAD, 2 * (p % w)[None, :] + e // C % K - PAD
    inside = (p < h * w)[None, :] & (e < K * K * C) & (i >= 0) & (i < H) & (j >= 0) & (j < W)
    read, held = p[:, None] * F + f, (p < h * w)[:, None] & (f < F)
    total = tl.zeros([EB, FB], dtype=sums.dtype.element_ty)
    first = tl.program_id(1).to(tl.int64) * EACH
    for n in range(first, tl.minimum(first + EACH, N)):
        patches = tl.load(x + n * H * W * C + ((i * W + j) * C + e % C), mask=inside, other=0.0)
        features = tl.load(y + n * h * w * F + read, mask=held, other=0.0)
        if HALF:
            patches = patches.to(tl.bfloat16)
        total += tl.dot(patches, features, input_precision=PRECISION)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + (program * K * K * C + e) * F + f, total, mask=(e < K * K * C) & (f < F))


def to_features(x: Tensor, weight: Tensor, y: Tensor, patch: Patch) -> None:
    """Fills y (N,F,h,w) from images x (N,C,2h,2w), both channels last in memory, and weight (K*K*C,F)."""
    (N, F, h, w), C = y.shape, x.shape[1]
    _to_features[(N, triton.cdiv(h * w, _PIXELS))](
        x, weight, y, 2 * h, 2 * w, h, w, F, C=C, **_settings(y, F, patch),
        TB=triton.next_power_of_2(patch[0] ** 2) if C == 1 else 16,
    )  # fmt: skip


def to_image(y: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, patch: Patch) -> None:
    """Fills images x (N,C,2h,2w) from y (N,F,h,w), channels last in memory: the transpose of `to_features`."""
    (N, F, h, w), C = y.shape, x.shape[1]
    _to_image[(N, triton.cdiv(h * w, _PIXELS))](
        y, weight, bias, x, 2 * h, 2 * w, h, w, F, C=C, **_settings(y, F, patch), BIAS=bias is not None,
        OB=max(16, triton.next_power_of_2(4 * C)),
    )  # fmt: skip


def _settings(features: Tensor, F: int, patch: Patch) -> dict[str, Any]:
    coarse = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return {"K": patch[0], "PAD": patch[1], "PRECISION": "tf32" if coarse else "ieee",
            "HALF": features.dtype == torch.bfloat16, "PB": _PIXELS, "FB": max(16, triton.next_power_of_2(F)),
            "num_warps": 2}  # fmt: skip


def patches_by_features(x: Tensor, y: Tensor, patch: Patch) -> Tensor:
    """The weight's gradient (K*K*C,F) from images x (N,C,2h,2w) and features y (N,F,h,w)."""
    x, y = (each.contiguous(memory_format=torch.channels_last) for each in (x, y))
    (N, F, h, w), C = y.shape, x.shape[1]
    taps, blocks = patch[0] ** 2 * C, triton.cdiv(h * w, _ROWS)
    EB = max(16, triton.next_power_of_2(taps))
    each = triton.cdiv(N * blocks, _PROGRAMS)
    programs = triton.cdiv(N, each)
    sums = x.new_empty(programs * blocks, taps * F)
    _patches_by_features[blocks, programs](
        x, y, sums, N, each, 2 * h, 2 * w, h, w, F, C=C,
        **{**_settings(y, F, patch), "PB": _ROWS, "EB": EB, "num_warps": max(2, warps(EB * _ROWS, 32))},
    )  # fmt: skip
    return column_sums(sums).view(taps, F)


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
