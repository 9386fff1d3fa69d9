"""Delta = gamma (x - psi): one kernel each way.

Frames x are (B,C,H,W) in memory; psi, delta and their gradients (B,K,H,W,C), as convolutions read and write them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


def in_memory(images: Tensor) -> Tensor:
    """Images (B,K,C,H,W) as the kernels read them."""
    return images.contiguous() if images.shape[2] == 1 else images.permute(0, 1, 3, 4, 2).contiguous()


def made(images: Tensor, like: Tensor) -> Tensor:
    """What a kernel filled, as (B,K,C,H,W) like another."""
    return images if like.shape[2] == 1 else images.permute(0, 1, 4, 2, 3)


def taken(rows: Any, like: Tensor) -> Tensor:
    """Memory for a kernel to fill, for images like these (B,K,C,H,W)."""
    B, K, C, H, W = like.shape
    memory: Tensor = rows.take((B, K, C, H, W) if C == 1 else (B, K, H, W, C), like)
    return memory


@triton.jit
def _difference(x, psi, gamma, delta, K, L, C: tl.constexpr, BLOCK: tl.constexpr):
    b, k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    at = (b * K + k) * L + i
    share = tl.load(gamma + at, mask=i < L)
    for c in tl.static_range(C):
        d = tl.load(x + (b * C + c) * L + i, mask=i < L) - tl.load(psi + at * C + c, mask=i < L)
        tl.store(delta + at * C + c, share * d, mask=i < L)


@triton.jit
def _difference_backward(
    gradient, x, psi, gamma, g_psi, g_gamma, K, L, GAMMA: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
):
    b, k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    at = (b * K + k) * L + i
    share = tl.load(gamma + at, mask=i < L)
    total = tl.zeros_like(share)
    for c in tl.static_range(C):
        g = tl.load(gradient + at * C + c, mask=i < L)
        tl.store(g_psi + at * C + c, -g * share, mask=i < L)
        if GAMMA:
            d = tl.load(x + (b * C + c) * L + i, mask=i < L) - tl.load(psi + at * C + c, mask=i < L)
            total += g * d
    if GAMMA:
        tl.store(g_gamma + at, total, mask=i < L)


class MaskedDifference(torch.autograd.Function):
    """Delta = gamma (x - psi): x (B,C,H,W), psi (B,K,C,H,W), gamma (B,K,1,H,W)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, psi: Tensor, gamma: Tensor, rows: Any) -> Tensor:
        """Delta (B,K,C,H,W), in the memory that ``rows`` give."""
        B, K, C, H, W = psi.shape
        delta = taken(rows, psi)
        out = made(delta, psi)
        x, psi, gamma = x.contiguous(), in_memory(psi), gamma.contiguous()
        _difference[(B, K, triton.cdiv(H * W, 1024))](x, psi, gamma, delta, K, H * W, C=C, BLOCK=1024)
        ctx.save_for_backward(x, psi, gamma)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of psi and gamma."""
        x, psi, gamma = ctx.saved_tensors
        B, K, C, H, W = gradient.shape
        wanted = ctx.needs_input_grad[2]
        g_psi = torch.empty_like(psi)
        g_gamma = torch.empty_like(gamma) if wanted else g_psi
        _difference_backward[(B, K, triton.cdiv(H * W, 1024))](
            in_memory(gradient), x, psi, gamma, g_psi, g_gamma, K, H * W, GAMMA=wanted, C=C, BLOCK=1024
        )
        return None, made(g_psi, gradient), g_gamma if wanted else None, None
