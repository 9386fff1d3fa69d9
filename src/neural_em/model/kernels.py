"""Fused GPU kernels (Triton) for what is not a product of matrices: one kernel each way where torch needs many.

`activation`: bias, layer norm, scale and offset, non-linearity. `masked_difference`: delta = gamma (x - psi).
`assignment`: psi, E-step and losses. All are exact: the plain functions are their reference, in float32 and float64.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model import distributions, mixture, networks

LARGEST_ROW = 16384  # elements of one sample that one program can hold
_EPSILON = tl.constexpr(networks.EPSILON)
_CLIP = tl.constexpr(distributions.CLIP)
_E_STEP = tl.constexpr(mixture.EPSILON)
ELU, RELU, SIGMOID, IDENTITY = (tl.constexpr(i) for i in range(4))
KINDS = {"elu": 0, "relu": 1, "sigmoid": 2, "identity": 3}


@triton.jit
def _places(P, C, WIDTH, PB: tl.constexpr, CB: tl.constexpr, PHASES: tl.constexpr):
    """Where a tile (PB,CB) of one sample lies in the input, and where in the output, whose phases are interleaved."""
    p = tl.arange(0, PB)[:, None]
    c = tl.arange(0, CB)[None, :]
    inside = (p < P) & (c < C)
    q = p
    if PHASES:  # p = (i * WIDTH + j) * 4 + 2 a + b goes to row 2 i + a, column 2 j + b
        phase = p % 4
        pixel = p // 4
        q = (2 * (pixel // WIDTH) + phase // 2) * (2 * WIDTH) + 2 * (pixel % WIDTH) + phase % 2
    return p * C + c, q * C + c, c, inside


@triton.jit
def _activation_forward(
    x, bias, scale, offset, y, mean, deviation, P, C, WIDTH,
    KIND: tl.constexpr, BIAS: tl.constexpr, AFFINE: tl.constexpr, PHASES: tl.constexpr,
    PB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    source, target, c, inside = _places(P, C, WIDTH, PB, CB, PHASES)
    v = tl.load(x + n * P * C + source, mask=inside, other=0.0)
    if BIAS:
        v += tl.load(bias + c, mask=c < C, other=0.0)
        v = tl.where(inside, v, 0.0)
    m = tl.sum(tl.sum(v, axis=1), axis=0) / (P * C)
    centred = tl.where(inside, v - m, 0.0)
    r = 1.0 / tl.sqrt(tl.sum(tl.sum(centred * centred, axis=1), axis=0) / (P * C) + _EPSILON)
    z = centred * r
    if AFFINE:
        z = z * tl.load(scale + c, mask=c < C, other=0.0) + tl.load(offset + c, mask=c < C, other=0.0)
    if KIND == ELU:
        z = tl.where(z > 0, z, tl.exp(z) - 1.0)
    elif KIND == RELU:
        z = tl.where(z > 0, z, 0.0)
    elif KIND == SIGMOID:
        z = 1.0 / (1.0 + tl.exp(-z))
    tl.store(y + n * P * C + target, z, mask=inside)
    tl.store(mean + n, m)
    tl.store(deviation + n, r)


@triton.jit
def _activation_backward(
    gradient, x, bias, scale, offset, mean, deviation, gx, parts, N, P, C, WIDTH,
    KIND: tl.constexpr, BIAS: tl.constexpr, AFFINE: tl.constexpr, PHASES: tl.constexpr,
    PB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    source, target, c, inside = _places(P, C, WIDTH, PB, CB, PHASES)
    v = tl.load(x + n * P * C + source, mask=inside, other=0.0)
    if BIAS:
        v += tl.load(bias + c, mask=c < C, other=0.0)
    r = tl.load(deviation + n)
    h = tl.where(inside, (v - tl.load(mean + n)) * r, 0.0)
    z = h
    if AFFINE:
        s = tl.load(scale + c, mask=c < C, other=0.0)
        z = h * s + tl.load(offset + c, mask=c < C, other=0.0)
    g = tl.load(gradient + n * P * C + target, mask=inside, other=0.0)
    if KIND == ELU:
        g = tl.where(z > 0, g, g * tl.exp(z))
    elif KIND == RELU:
        g = tl.where(z > 0, g, 0.0)
    elif KIND == SIGMOID:
        z = 1.0 / (1.0 + tl.exp(-z))
        g = g * z * (1.0 - z)
    channel = tl.arange(0, CB)
    if AFFINE:  # this sample's part of the gradients of scale and offset
        tl.store(parts + n * C + channel, tl.sum(g * h, axis=0), mask=channel < C)
        tl.store(parts + (N + n) * C + channel, tl.sum(g, axis=0), mask=channel < C)
        g = g * s
    a = tl.sum(tl.sum(g, axis=1), axis=0) / (P * C)
    b = tl.sum(tl.sum(g * h, axis=1), axis=0) / (P * C)
    g = tl.where(inside, (g - a - h * b) * r, 0.0)
    tl.store(gx + n * P * C + source, g, mask=inside)
    if BIAS:
        tl.store(parts + (2 * N + n) * C + channel, tl.sum(g, axis=0), mask=channel < C)


class Activation(torch.autograd.Function):
    """Bias, layer norm, affine, non-linearity of images in channels-last memory, or of vectors.

    The parameters' gradients go to a tape, each sample's part on its own (3,N,C): scale, offset, bias.
    """

    @staticmethod
    def forward(ctx: Any, tape: Any, kind: str, phases: bool, x: Tensor, scale: Tensor | None, offset: Tensor | None,
                bias: Tensor | None) -> Tensor:  # fmt: skip
        """Of x (N,C) or (N,C,H,W); with phases, of (N,4*C,H,W) whose channels are (2,2,C), to (N,C,2H,2W)."""
        N = x.shape[0]
        image = x.dim() == 4
        x = x.contiguous(memory_format=torch.channels_last) if image else x.contiguous()
        C = x.shape[1] // 4 if phases else x.shape[1]
        P, width = x[0].numel() // C, x.shape[-1]
        if phases:
            shape = (N, C, 2 * x.shape[2], 2 * x.shape[3])
            y = torch.empty(shape, device=x.device, dtype=x.dtype, memory_format=torch.channels_last)
        else:
            y = torch.empty_like(x)
        mean, deviation = (torch.empty(N, device=x.device, dtype=x.dtype) for _ in range(2))
        PB, CB = triton.next_power_of_2(P), triton.next_power_of_2(C)
        settings = {"KIND": KINDS[kind], "BIAS": bias is not None, "AFFINE": scale is not None, "PHASES": phases,
                    "PB": PB, "CB": CB, "num_warps": max(1, min(16, PB * CB // 512))}  # fmt: skip
        _activation_forward[(N,)](x, bias, scale, offset, y, mean, deviation, P, C, width, **settings)
        ctx.save_for_backward(x, scale, offset, bias, mean, deviation)
        ctx.tape, ctx.sizes, ctx.settings = tape, (N, P, C, width), settings
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of x; the parameters' to the tape."""
        x, scale, offset, bias, mean, deviation = ctx.saved_tensors
        N, P, C, width = ctx.sizes
        image = x.dim() == 4
        gradient = gradient.contiguous(memory_format=torch.channels_last) if image else gradient.contiguous()
        gx = torch.empty_like(x)
        parts = torch.empty(2 + (bias is not None), N, C, device=x.device, dtype=x.dtype) if scale is not None else gx
        _activation_backward[(N,)](
            gradient, x, bias, scale, offset, mean, deviation, gx, parts, N, P, C, width, **ctx.settings
        )
        if scale is not None and ctx.tape is not None:
            ctx.tape.add(parts)
        return None, None, None, gx, None, None, None


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
    def forward(ctx: Any, x: Tensor, psi: Tensor, gamma: Tensor) -> Tensor:
        """Delta (B,K,1,H,W)."""
        B, K = psi.shape[:2]
        L = psi[0, 0].numel()
        x, psi, gamma = x.contiguous(), psi.contiguous(), gamma.contiguous()
        delta = torch.empty_like(psi)
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
        return None, g_psi, g_gamma if wanted else None


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
    def forward(ctx: Any, eta: Tensor, x: Tensor, numbers: dict[str, Any], through: bool) -> tuple[Tensor, ...]:
        """From eta (B,K,1,H,W) and the frame x (B,1,H,W).

        Args:
            ctx: for the way back.
            eta: natural parameters.
            x: what they are to explain.
            numbers: PRIOR, CONSTANT of the divergence, WIDTH of the E-step, inter-cluster WEIGHT, GAUSSIAN or not.
            through: let gradients flow through gamma.
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
        ctx.numbers, ctx.through = numbers, through
        ctx.mark_non_differentiable(*([watched] if through else [gamma, watched]))
        return psi, gamma, total, watched

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_psi: Tensor | None, g_gamma: Tensor | None, g_total: Tensor | None, unused: Any) -> Any:
        """The gradient of eta."""
        psi, gamma, x = ctx.saved_tensors
        B, K = psi.shape[:2]
        L = psi[0, 0].numel()
        KB, BLOCK = triton.next_power_of_2(K), 256
        g_total = g_total.contiguous() if g_total is not None else None
        g_psi = g_psi.contiguous() if g_psi is not None else None
        g_gamma = g_gamma.contiguous() if g_gamma is not None and ctx.through else None
        g_eta = torch.empty_like(psi)
        _assignment_backward[(B, triton.cdiv(L, BLOCK))](
            psi, gamma, x, g_psi, g_gamma, g_total, g_eta, K, L, **ctx.numbers, PSI=g_psi is not None,
            THROUGH=ctx.through, GAMMA=g_gamma is not None, LOSS=g_total is not None, KB=KB, BLOCK=BLOCK,
            num_warps=max(1, min(16, KB * BLOCK // 256)),
        )  # fmt: skip
        return g_eta, None, None, None
