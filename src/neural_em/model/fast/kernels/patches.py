"""Patches of one-channel images: what the first convolution multiplies, and what the last one has multiplied."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


@triton.jit
def _unfold(
    x, columns, H, W, h, w,
    S: tl.constexpr, PAD: tl.constexpr, K: tl.constexpr, ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # of (h, w, ROW)
    tap, pixel = e % ROW, e // ROW
    y, z = S * (pixel // w) + tap // K - PAD, S * (pixel % w) + tap % K - PAD
    inside = (e < h * w * ROW) & (tap < K * K) & (y >= 0) & (y < H) & (z >= 0) & (z < W)
    v = tl.load(x + n * H * W + y * W + z, mask=inside, other=0.0)
    tl.store(columns + n * h * w * ROW + e, v, mask=e < h * w * ROW)


@triton.jit
def _fold(
    columns, bias, x, H, W, h, w,
    S: tl.constexpr, PAD: tl.constexpr, K: tl.constexpr, ROW: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # of (H, W)
    y, z = e // W + PAD, e % W + PAD
    total = tl.zeros([BLOCK], dtype=columns.dtype.element_ty)
    if BIAS:
        total += tl.load(bias)
    for a in tl.static_range((K + S - 1) // S):  # only every S-th tap falls on a given pixel
        for b in tl.static_range((K + S - 1) // S):
            u, v = y % S + S * a, z % S + S * b
            i, j = (y - u) // S, (z - v) // S
            inside = (e < H * W) & (u < K) & (v < K) & (y >= u) & (z >= v) & (i < h) & (j < w)
            total += tl.load(columns + ((n * h + i) * w + j) * ROW + u * K + v, mask=inside, other=0.0)
    tl.store(x + n * H * W + e, total, mask=e < H * W)


FIRST, LAST = (4, 1), (5, 2)  # size and padding of the patches of the first and of the last convolution


def row(size: int) -> int:
    """Numbers of a patch in memory: its taps, filled up with zeros so that products can read it four at a time."""
    return -(-size * size // 4) * 4


def unfold(x: Tensor, columns: Tensor, size: int, pad: int) -> None:
    """Fills columns (N*h*w, row) with the patches around every second pixel of x (N,1,H,W)."""
    N, _, H, W = x.shape
    h, w = H // 2, W // 2
    grid = (N, triton.cdiv(h * w * row(size), 1024))
    _unfold[grid](x.contiguous(), columns, H, W, h, w, S=2, PAD=pad, K=size, ROW=row(size), BLOCK=1024)


def fold(columns: Tensor, bias: Tensor | None, x: Tensor, size: int, pad: int) -> None:
    """Fills x (N,1,H,W) with the sums of the patches: the transpose of `unfold`, plus a bias."""
    N, _, H, W = x.shape
    grid = (N, triton.cdiv(H * W, 256))
    _fold[grid](columns.contiguous(), bias, x, H, W, H // 2, W // 2, S=2, PAD=pad, K=size, ROW=row(size),
                BIAS=bias is not None, BLOCK=256)  # fmt: skip


class Unfold(torch.autograd.Function):
    """Patches of 4x4 around every second pixel of one-channel images: (N,1,H,W) to (N*h*w, 16)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Any) -> Tensor:
        """What the first convolution multiplies; ``rows`` gives the memory to write to."""
        ctx.shape = x.shape
        columns: Tensor = rows.take((x.numel() // 4, 16), x)
        unfold(x, columns, *FIRST)
        return columns

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The patches' gradients, summed where they overlap."""
        x = gradient.new_empty(ctx.shape)
        fold(gradient, None, x, *FIRST)
        return x, None


class Fold(torch.autograd.Function):
    """Sums overlapping patches of 5x5 to a one-channel image: (N*h*w, 28) to (N,1,2h,2w), plus a bias."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor, bias: Tensor, shape: tuple[int, ...], rows: Any, tape: Any) -> Tensor:
        """What the last convolution has multiplied."""
        ctx.rows, ctx.tape, ctx.shape = rows, tape, columns.shape
        x = columns.new_empty(shape)
        fold(columns, bias, x, *LAST)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of each patch; that of the bias to the tape."""
        columns: Tensor = ctx.rows.take(ctx.shape, gradient)
        unfold(gradient, columns, *LAST)
        if ctx.tape is not None:
            ctx.tape.add(gradient)
        return columns, None, None, None, None
