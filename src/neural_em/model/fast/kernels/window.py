"""The window of log-odds: one kernel each way, a program for each image."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.fast.kernels.layout import LAUNCH, in_memory, in_turn, made, taken, warps
from neural_em.model.window import EDGE

_EDGE, _SLOPE = tl.constexpr(EDGE), tl.constexpr(4.0 * EDGE)
_BLOCK = 2048  # pixels that a program reads at once


@triton.jit
def _places(i, like, H, W):
    """Rows and columns of pixels, from the middle of the frame."""
    rows = (i // W).to(like.dtype.element_ty) - 0.5 * (H - 1)
    return rows, (i % W).to(like.dtype.element_ty) - 0.5 * (W - 1)


@triton.jit
def _window_forward(eta, out, centres, H, W, NARROW: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    in_turn()
    n, L = tl.program_id(0).to(tl.int64), H * W
    total = tl.zeros([BLOCK], dtype=eta.dtype.element_ty)
    down, across = total, total
    for start in range(0, L, BLOCK):
        i = start + tl.arange(0, BLOCK)
        rows, columns = _places(i, eta, H, W)
        s = 1.0 / (1.0 + tl.exp(-tl.load(eta + (n * L + i) * C + C - 1, mask=i < L, other=0.0)))
        weight = tl.where(i < L, s * s, 0.0)
        total, down, across = total + weight, down + weight * rows, across + weight * columns
    mass = tl.sum(total, axis=0) + 1.0
    y, x = tl.sum(down, axis=0) / mass, tl.sum(across, axis=0) / mass
    tl.store(centres + n * 3, y)
    tl.store(centres + n * 3 + 1, x)
    tl.store(centres + n * 3 + 2, mass)
    for start in range(0, L, BLOCK):
        i = start + tl.arange(0, BLOCK)
        rows, columns = _places(i, eta, H, W)
        distance = ((rows - y) * (rows - y) + (columns - x) * (columns - x)) * NARROW
        for c in tl.static_range(C):
            v = tl.load(eta + (n * L + i) * C + c, mask=i < L)
            if c == C - 1:
                v -= _EDGE * distance * distance
            tl.store(out + (n * L + i) * C + c, v, mask=i < L)


@triton.jit
def _window_backward(gradient, eta, centres, out, H, W, NARROW: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    in_turn()
    n, L = tl.program_id(0).to(tl.int64), H * W
    y, x, mass = tl.load(centres + n * 3), tl.load(centres + n * 3 + 1), tl.load(centres + n * 3 + 2)
    down = tl.zeros([BLOCK], dtype=eta.dtype.element_ty)
    across = down
    for start in range(0, L, BLOCK):
        i = start + tl.arange(0, BLOCK)
        rows, columns = _places(i, eta, H, W)
        distance = ((rows - y) * (rows - y) + (columns - x) * (columns - x)) * NARROW
        slope = tl.load(gradient + (n * L + i) * C + C - 1, mask=i < L, other=0.0) * distance
        down, across = down + slope * (rows - y), across + slope * (columns - x)
    by_y = tl.sum(down, axis=0) * (_SLOPE * NARROW) / mass  # what a weight does to the centre is shared by all
    by_x = tl.sum(across, axis=0) * (_SLOPE * NARROW) / mass
    for start in range(0, L, BLOCK):
        i = start + tl.arange(0, BLOCK)
        rows, columns = _places(i, eta, H, W)
        for c in tl.static_range(C):
            g = tl.load(gradient + (n * L + i) * C + c, mask=i < L, other=0.0)
            if c == C - 1:
                s = 1.0 / (1.0 + tl.exp(-tl.load(eta + (n * L + i) * C + c, mask=i < L, other=0.0)))
                g += 2.0 * s * s * (1.0 - s) * ((rows - y) * by_y + (columns - x) * by_x)
            tl.store(out + (n * L + i) * C + c, g, mask=i < L)


def _settings(eta: Tensor, narrow: float) -> dict[str, Any]:
    """Settings of both kernels for eta (B,K,H,W,C)."""
    _, _, H, W, C = eta.shape
    BLOCK = min(_BLOCK, triton.next_power_of_2(H * W))
    return {"H": H, "W": W, "NARROW": narrow, "C": C, "BLOCK": BLOCK, "num_warps": warps(BLOCK, 4)}


class Window(torch.autograd.Function):
    """`windowed`, the odds (the last channel) of eta (B,K,C,H,W) in their window."""

    @staticmethod
    def forward(ctx: Any, eta: Tensor, share: float, rows: Any) -> Tensor:
        """Eta in its window, whose radius is a share of the shorter side; ``rows`` give its gradient's memory."""
        B, K, _, H, W = eta.shape
        eta = in_memory(eta)
        out, centres = torch.empty_like(eta), eta.new_empty(B * K, 3)
        ctx.narrow, ctx.rows = 1 / (share * min(H, W)) ** 2, rows
        _window_forward[(B * K,)](eta, out, centres, **_settings(eta, ctx.narrow), **LAUNCH)
        ctx.save_for_backward(eta, centres)
        return made(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        eta, centres = ctx.saved_tensors
        out = taken(ctx.rows, gradient)
        _window_backward[(len(centres),)](
            in_memory(gradient), eta, centres, out, **_settings(eta, ctx.narrow), **LAUNCH
        )
        return made(out), None, None
