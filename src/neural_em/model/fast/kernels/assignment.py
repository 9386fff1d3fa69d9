"""Delta = gamma (x - psi); and psi, E-step and losses: one kernel each way, for one channel."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.distributions import CLIP
from neural_em.model.fast.closed_form import refuse_watched
from neural_em.model.mixture import EPSILON

_CLIP = tl.constexpr(CLIP)
_E_STEP = tl.constexpr(EPSILON)
LARGEST = 32768  # numbers of one sample that one program can hold


def fits(psi: Tensor) -> bool:
    """Whether these kernels are made for psi (B,K,C,H,W): one channel, and K images not too large."""
    K, C = psi.shape[1:3]
    return C == 1 and triton.next_power_of_2(K) * triton.next_power_of_2(psi[0, 0].numel()) <= LARGEST


@triton.jit
def _difference(x, psi, gamma, delta, K, L, BLOCK: tl.constexpr):
    b, k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    at = (b * K + k) * L + i
    d = tl.load(gamma + at, mask=i < L) * (tl.load(x + b * L + i, mask=i < L) - tl.load(psi + at, mask=i < L))
    tl.store(delta + at, d, mask=i < L)


@triton.jit
def _difference_backward(gradient, x, psi, gamma, g_psi, g_gamma, K, L, GAMMA: tl.constexpr, BLOCK: tl.constexpr):
    b, k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    at = (b * K + k) * L + i
    g = tl.load(gradient + at, mask=i < L)
    tl.store(g_psi + at, -g * tl.load(gamma + at, mask=i < L), mask=i < L)
    if GAMMA:
        d = tl.load(x + b * L + i, mask=i < L) - tl.load(psi + at, mask=i < L)
        tl.store(g_gamma + at, g * d, mask=i < L)


class MaskedDifference(torch.autograd.Function):
    """Delta = gamma (x - psi), for one channel: x (B,1,H,W), psi and gamma (B,K,1,H,W)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, psi: Tensor, gamma: Tensor, rows: Any) -> Tensor:
        """Delta (B,K,1,H,W), in the memory that ``rows`` give."""
        B, K = psi.shape[:2]
        L = psi[0, 0].numel()
        x, psi, gamma = x.contiguous(), psi.contiguous(), gamma.contiguous()
        delta: Tensor = rows.take(tuple(psi.shape), psi)
        _difference[(B, K, triton.cdiv(L, 1024))](x, psi, gamma, delta, K, L, BLOCK=1024)
        ctx.save_for_backward(x, psi, gamma)
        return delta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of psi and gamma."""
        x, psi, gamma = ctx.saved_tensors
        B, K = psi.shape[:2]
        L = psi[0, 0].numel()
        wanted = ctx.needs_input_grad[2]
        g_psi = torch.empty_like(psi)
        g_gamma = torch.empty_like(psi) if wanted else g_psi
        _difference_backward[(B, K, triton.cdiv(L, 1024))](
            gradient.contiguous(), x, psi, gamma, g_psi, g_gamma, K, L, GAMMA=wanted, BLOCK=1024
        )
        return None, g_psi, g_gamma if wanted else None, None


@triton.jit
def _pixel_terms(x, psi, PRIOR: tl.constexpr, WIDTH: tl.constexpr, GAUSSIAN: tl.constexpr):
    """Likelihood, log-probability and divergence from the prior, and the derivative of each by psi."""
    if GAUSSIAN:
        likelihood = tl.exp(-0.5 * (x - psi) * (x - psi) / (WIDTH * WIDTH)) * (0.3989422804014327 / WIDTH)
        slope = likelihood * (x - psi) / (WIDTH * WIDTH)
        log, log_slope = -0.5 * (x - psi) * (x - psi), x - psi
        kl, kl_slope = 0.5 * (psi - PRIOR) * (psi - PRIOR), psi - PRIOR
    else:
        likelihood = x * psi + (1.0 - x) * (1.0 - psi)
        slope = 2.0 * x - 1.0
        on, off = tl.where(psi > _CLIP, psi, _CLIP), tl.where(1.0 - psi > _CLIP, 1.0 - psi, _CLIP)
        on_slope = tl.where(psi >= _CLIP, 1.0 / on, 0.0)
        off_slope = tl.where(1.0 - psi >= _CLIP, -1.0 / off, 0.0)
        log = x * tl.log(on) + (1.0 - x) * tl.log(off)
        log_slope = x * on_slope + (1.0 - x) * off_slope
        kl = -(1.0 - PRIOR) * tl.log(off) - PRIOR * tl.log(on)  # its constant is added outside
        kl_slope = -(1.0 - PRIOR) * off_slope - PRIOR * on_slope
    return likelihood, slope, log, log_slope, kl, kl_slope


@triton.jit
def _assignment_forward(
    eta, x, psi, gamma, total, watched, B, K, L,
    PRIOR: tl.constexpr, CONSTANT: tl.constexpr, WIDTH: tl.constexpr, WEIGHT: tl.constexpr, GAUSSIAN: tl.constexpr,
    KB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, KB)[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    inside = (k < K) & (i < L)
    at = (b * K + k) * L + i
    v = tl.load(eta + at, mask=inside, other=0.0)
    frame = tl.load(x + b * L + i, mask=i < L, other=0.0)
    if not GAUSSIAN:
        v = 1.0 / (1.0 + tl.exp(-v))
    likelihood, _, log, _, kl, _ = _pixel_terms(frame, v, PRIOR, WIDTH, GAUSSIAN)
    likelihood = tl.where(inside, likelihood + _E_STEP, 0.0)
    g = likelihood / tl.where(i < L, tl.sum(likelihood, axis=0)[None, :], 1.0)
    tl.store(psi + at, v, mask=inside)
    tl.store(gamma + at, g, mask=inside)
    intra = -tl.sum(tl.sum(tl.where(inside, g * log, 0.0), axis=1), axis=0)
    inter = tl.sum(tl.sum(tl.where(inside, (1.0 - g) * (kl + CONSTANT), 0.0), axis=1), axis=0)
    largest = tl.max(tl.where(k < K, v, float("-inf")), axis=0)[None, :]
    _, _, log, _, _, _ = _pixel_terms(frame, tl.where(i < L, largest, 0.5), PRIOR, WIDTH, GAUSSIAN)
    bound = -tl.sum(tl.sum(tl.where(i < L, log, 0.0), axis=1), axis=0)
    tl.store(total + b, intra + WEIGHT * inter)
    tl.store(watched + b, intra)
    tl.store(watched + B + b, inter)
    tl.store(watched + 2 * B + b, bound)


@triton.jit
def _assignment_backward(
    psi, gamma, x, g_psi, g_gamma, g_total, g_eta, K, L,
    PRIOR: tl.constexpr, CONSTANT: tl.constexpr, WIDTH: tl.constexpr, WEIGHT: tl.constexpr, GAUSSIAN: tl.constexpr,
    PSI: tl.constexpr, THROUGH: tl.constexpr, GAMMA: tl.constexpr, LOSS: tl.constexpr,
    KB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, KB)[:, None]
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (k < K) & (i < L)
    at = (b * K + k) * L + i
    v = tl.load(psi + at, mask=inside, other=0.5)
    g = tl.load(gamma + at, mask=inside, other=0.0)
    frame = tl.load(x + b * L + i, mask=i < L, other=0.0)
    likelihood, slope, log, log_slope, kl, kl_slope = _pixel_terms(frame, v, PRIOR, WIDTH, GAUSSIAN)
    out = tl.zeros_like(v)
    if PSI:
        out = tl.load(g_psi + at, mask=inside, other=0.0)
    through = tl.zeros_like(v)
    if GAMMA:
        through = tl.load(g_gamma + at, mask=inside, other=0.0)
    if LOSS:
        scale = tl.load(g_total + b)
        out += scale * (WEIGHT * (1.0 - g) * kl_slope - g * log_slope)
        through += scale * (-log - WEIGHT * (kl + CONSTANT))
    if THROUGH:  # back through gamma_k = P_k / sum P
        through = tl.where(inside, through, 0.0)
        total = tl.sum(tl.where(inside, likelihood + _E_STEP, 0.0), axis=0)[None, :]
        mean = tl.sum(g * through, axis=0)[None, :]
        out += (through - mean) / tl.where(i < L, total, 1.0) * slope
    if not GAUSSIAN:
        out = out * v * (1.0 - v)
    tl.store(g_eta + at, out, mask=inside)


class Assignment(torch.autograd.Function):
    """One step's psi and gamma (B,K,1,H,W), total loss (B,) and, only to watch, intra, inter and bound (3,B)."""

    @staticmethod
    def forward(
        ctx: Any, eta: Tensor, x: Tensor, numbers: dict[str, Any], through: bool, rows: Any
    ) -> tuple[Tensor, ...]:
        """From eta (B,K,1,H,W) and the frame x (B,1,H,W).

        Args:
            ctx: for the way back.
            eta: natural parameters.
            x: what they are to explain.
            numbers: PRIOR, CONSTANT of the divergence, WIDTH of the E-step, inter-cluster WEIGHT, GAUSSIAN or not.
            through: let gradients flow through gamma.
            rows: give the memory for the gradient of eta.
        """
        B, K = eta.shape[:2]
        L = eta[0, 0].numel()
        eta, x = eta.contiguous(), x.contiguous()
        psi, gamma = torch.empty_like(eta), torch.empty_like(eta)
        total, watched = eta.new_empty(B), eta.new_empty(3, B)
        KB, BLOCK = triton.next_power_of_2(K), triton.next_power_of_2(L)
        _assignment_forward[(B,)](
            eta, x, psi, gamma, total, watched, B, K, L, **numbers, KB=KB, BLOCK=BLOCK,
            num_warps=max(1, min(16, KB * BLOCK // 512)),
        )  # fmt: skip
        ctx.save_for_backward(psi, gamma, x)
        ctx.set_materialize_grads(False)
        ctx.numbers, ctx.through, ctx.rows = numbers, through, rows
        if not through:
            ctx.mark_non_differentiable(gamma)
        return psi, gamma, total, watched

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_psi: Tensor | None, g_gamma: Tensor | None, g_total: Tensor | None, other: Any) -> Any:
        """The gradient of eta."""
        refuse_watched(other)
        psi, gamma, x = ctx.saved_tensors
        B, K = psi.shape[:2]
        L = psi[0, 0].numel()
        KB, BLOCK = triton.next_power_of_2(K), 256
        g_total = g_total.contiguous() if g_total is not None else None
        g_psi = g_psi.contiguous() if g_psi is not None else None
        g_gamma = g_gamma.contiguous() if g_gamma is not None and ctx.through else None
        g_eta: Tensor = ctx.rows.take(tuple(psi.shape), psi)
        _assignment_backward[(B, triton.cdiv(L, BLOCK))](
            psi, gamma, x, g_psi, g_gamma, g_total, g_eta, K, L, **ctx.numbers, PSI=g_psi is not None,
            THROUGH=ctx.through, GAMMA=g_gamma is not None, LOSS=g_total is not None, KB=KB, BLOCK=BLOCK,
            num_warps=max(1, min(16, KB * BLOCK // 256)),
        )  # fmt: skip
        return g_eta, None, None, None, None
