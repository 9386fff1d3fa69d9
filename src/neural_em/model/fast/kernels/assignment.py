"""Delta = gamma (x - psi); and psi, E-step, losses and the next step's delta: one kernel each way.

Frames x are (B,C,H,W) in memory; psi, eta, delta and their gradients (B,K,H,W,C), as convolutions read and write them.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.distributions import CLIP
from neural_em.model.fast.closed_form import refuse_watched
from neural_em.model.fast.kernels.layout import in_memory, made, taken, tile, warps
from neural_em.model.fast.kernels.masked import masked_backward, masked_block, masked_forward
from neural_em.model.mixture import EPSILON

_CLIP = tl.constexpr(CLIP)
_E_STEP = tl.constexpr(EPSILON)
PROGRAM = 8192  # numbers that one program holds; a larger sample is shared out
COMPONENTS = 256  # of a pixel, all in one program
CHANNELS = 8  # of a pixel, each written out in the kernels


def fits(psi: Tensor) -> bool:
    """Whether these kernels are made for psi or eta (B,K,C,H,W): not in half precision, few channels and components."""
    whole = psi.dtype in (torch.float32, torch.float64)
    return whole and psi.shape[2] <= CHANNELS and psi.shape[1] <= COMPONENTS


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
        x, psi, gamma = x.contiguous(), in_memory(psi), gamma.contiguous()
        _difference[(B, K, triton.cdiv(H * W, 1024))](x, psi, gamma, delta, K, H * W, C=C, BLOCK=1024)
        ctx.save_for_backward(x, psi, gamma)
        return made(delta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, psi, gamma = ctx.saved_tensors
        B, K, C, H, W = gradient.shape
        wanted = ctx.needs_input_grad[2]
        g_psi = torch.empty_like(psi)
        g_gamma = torch.empty_like(gamma) if wanted else g_psi
        _difference_backward[(B, K, triton.cdiv(H * W, 1024))](
            in_memory(gradient), x, psi, gamma, g_psi, g_gamma, K, H * W, GAMMA=wanted, C=C, BLOCK=1024
        )
        return None, made(g_psi), g_gamma if wanted else None, None


@triton.jit
def _pixel_terms(
    x, psi, width, PRIOR: tl.constexpr, WIDTH: tl.constexpr, ANNEALED: tl.constexpr, GAUSSIAN: tl.constexpr
):
    """Likelihood, log-probability and divergence from the prior of a channel, and the derivative of each by psi.

    That of the Gaussian likelihood is still to be multiplied by the likelihood, of all channels together.
    """
    if GAUSSIAN:
        if ANNEALED:  # the deviation lies in memory and changes between steps
            w = tl.load(width)
            likelihood = tl.exp(-0.5 * (x - psi) * (x - psi) / (w * w)) * (0.3989422804014327 / w)
            slope = (x - psi) / (w * w)
        else:
            likelihood = tl.exp(-0.5 * (x - psi) * (x - psi) / (WIDTH * WIDTH)) * (0.3989422804014327 / WIDTH)
            slope = (x - psi) / (WIDTH * WIDTH)
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
    eta, x, coming, width, psi, gamma, delta, sums, B, K, L,
    PRIOR: tl.constexpr, CONSTANT: tl.constexpr, WIDTH: tl.constexpr, ANNEALED: tl.constexpr, WEIGHT: tl.constexpr,
    GAUSSIAN: tl.constexpr, COMING: tl.constexpr, C: tl.constexpr, KB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b, k, i, inside, at = tile(K, L, KB, BLOCK)
    logs = tl.zeros([KB, BLOCK], dtype=eta.dtype.element_ty)
    likelihood, divergence = logs + 1.0, logs
    missed = tl.zeros([1, BLOCK], dtype=eta.dtype.element_ty)
    for c in tl.static_range(C):
        v = tl.load(eta + at * C + c, mask=inside, other=0.0)
        frame = tl.load(x + (b * C + c) * L + i, mask=i < L, other=0.0)
        if not GAUSSIAN:
            v = 1.0 / (1.0 + tl.exp(-v))
        tl.store(psi + at * C + c, v, mask=inside)
        part, _, log, _, kl, _ = _pixel_terms(frame, v, width, PRIOR, WIDTH, ANNEALED, GAUSSIAN)
        likelihood, logs, divergence = likelihood * part, logs + log, divergence + kl + CONSTANT
        largest = tl.max(tl.where(k < K, v, float("-inf")), axis=0)[None, :]
        largest = tl.where(i < L, largest, 0.5)
        _, _, log, _, _, _ = _pixel_terms(frame, largest, width, PRIOR, WIDTH, ANNEALED, GAUSSIAN)
        missed -= log
    likelihood = tl.where(inside, likelihood + _E_STEP, 0.0)
    g = likelihood / tl.where(i < L, tl.sum(likelihood, axis=0)[None, :], 1.0)
    tl.store(gamma + at, g, mask=inside)
    if COMING:
        for c in tl.static_range(C):
            if C > 1:  # else it is the psi that was made above
                v = tl.load(eta + at * C + c, mask=inside, other=0.0)
                if not GAUSSIAN:
                    v = 1.0 / (1.0 + tl.exp(-v))
            frame = tl.load(coming + (b * C + c) * L + i, mask=i < L, other=0.0)
            tl.store(delta + at * C + c, g * (frame - v), mask=inside)
    intra = -tl.sum(tl.sum(tl.where(inside, g * logs, 0.0), axis=1), axis=0)
    inter = tl.sum(tl.sum(tl.where(inside, (1.0 - g) * divergence, 0.0), axis=1), axis=0)
    bound = tl.sum(tl.sum(tl.where(i < L, missed, 0.0), axis=1), axis=0)
    row, part = tl.program_id(1) * B + b, tl.num_programs(1) * B  # of sums (4, programs of a sample, B)
    tl.store(sums + row, intra + WEIGHT * inter)
    tl.store(sums + part + row, intra)
    tl.store(sums + 2 * part + row, inter)
    tl.store(sums + 3 * part + row, bound)


@triton.jit
def _assignment_backward(
    psi, gamma, x, coming, width, g_psi, g_gamma, g_total, g_delta, g_eta, K, L,
    PRIOR: tl.constexpr, CONSTANT: tl.constexpr, WIDTH: tl.constexpr, ANNEALED: tl.constexpr, WEIGHT: tl.constexpr,
    GAUSSIAN: tl.constexpr, PSI: tl.constexpr, THROUGH: tl.constexpr, GAMMA: tl.constexpr, LOSS: tl.constexpr,
    COMING: tl.constexpr, C: tl.constexpr, KB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b, _, i, inside, at = tile(K, L, KB, BLOCK)
    g = tl.load(gamma + at, mask=inside, other=0.0)
    through = tl.zeros_like(g)
    likelihood = tl.zeros_like(g) + 1.0
    if LOSS:
        scale = tl.load(g_total + b)
    if THROUGH:  # back through gamma_k = P_k / sum P
        if GAMMA:
            through = tl.load(g_gamma + at, mask=inside, other=0.0)
        for c in tl.static_range(C):
            v = tl.load(psi + at * C + c, mask=inside, other=0.5)
            frame = tl.load(x + (b * C + c) * L + i, mask=i < L, other=0.0)
            part, _, log, _, kl, _ = _pixel_terms(frame, v, width, PRIOR, WIDTH, ANNEALED, GAUSSIAN)
            likelihood = likelihood * part
            if LOSS:
                through += scale * (-log - WEIGHT * (kl + CONSTANT))
            if COMING:
                frame = tl.load(coming + (b * C + c) * L + i, mask=i < L, other=0.0)
                through += tl.load(g_delta + at * C + c, mask=inside, other=0.0) * (frame - v)
        through = tl.where(inside, through, 0.0)
        total = tl.sum(tl.where(inside, likelihood + _E_STEP, 0.0), axis=0)[None, :]
        mean = tl.sum(g * through, axis=0)[None, :]
        through = (through - mean) / tl.where(i < L, total, 1.0)
        if GAUSSIAN:
            through = through * likelihood
    for c in tl.static_range(C):
        v = tl.load(psi + at * C + c, mask=inside, other=0.5)
        frame = tl.load(x + (b * C + c) * L + i, mask=i < L, other=0.0)
        _, slope, _, log_slope, _, kl_slope = _pixel_terms(frame, v, width, PRIOR, WIDTH, ANNEALED, GAUSSIAN)
        out = tl.zeros_like(v)
        if PSI:
            out = tl.load(g_psi + at * C + c, mask=inside, other=0.0)
        if COMING:
            out -= tl.load(g_delta + at * C + c, mask=inside, other=0.0) * g
        if LOSS:
            out += scale * (WEIGHT * (1.0 - g) * kl_slope - g * log_slope)
        if THROUGH:
            out += through * slope
        if not GAUSSIAN:
            out = out * v * (1.0 - v)
        tl.store(g_eta + at * C + c, out, mask=inside)


class Assignment(torch.autograd.Function):
    """One step's psi, gamma (B,K,1,H,W), total loss (B,), to watch only, intra, inter and bound (3,B), and delta."""

    @staticmethod
    def forward(ctx: Any, eta: Tensor, x: Tensor, numbers: dict[str, Any], through: bool, rows: tuple[Any, Any],
                coming: Tensor | None) -> tuple[Tensor | None, ...]:  # fmt: skip
        """From eta (B,K,C,H,W), of masked pixels (B,K,C+1,H,W), and the frame x (B,C,H,W) that they are to explain.

        A pixel's likelihood is the product over its channels. The numbers are PRIOR, WIDTH of the E-step (or a tensor
        () that may change between steps), inter-cluster WEIGHT; but for masked pixels CONSTANT of the divergence, and
        GAUSSIAN or not. Gradients may flow ``through`` gamma; with several channels, not of Bernoulli pixels. ``rows``
        give the memory for delta and the gradient of eta. Delta needs the ``coming`` noisy frame of the next step.
        """
        B, K, outputs, H, W = eta.shape
        C, L = x.shape[1], H * W
        eta, x = in_memory(eta), x.contiguous()
        psi, gamma = eta.new_empty(B, K, H, W, C), eta.new_empty(B, K, 1, H, W)
        out = made(psi)
        delta, coming = (None, None) if coming is None else (taken(rows[0], out), coming.contiguous())
        KB = triton.next_power_of_2(K)
        kernel, BLOCK, each = masked_forward, masked_block(KB, L), 1  # numbers of a thread
        if outputs == C:
            BLOCK = min(triton.next_power_of_2(L), max(32, PROGRAM // (KB * triton.next_power_of_2(C))))
            kernel, each = _assignment_forward, min(4 * KB, 32)  # about four pixels, of few components
        sums = eta.new_empty(4, triton.cdiv(L, BLOCK), B)
        annealed = isinstance(numbers["WIDTH"], Tensor)
        width = numbers["WIDTH"] if annealed else eta  # else it is not read
        settings = {**numbers, "WIDTH": 1.0 if annealed else numbers["WIDTH"], "ANNEALED": annealed, "C": C}
        kernel[(B, sums.shape[1])](
            eta, x, coming, width, psi, gamma, delta, sums, B, K, L, **settings, COMING=coming is not None, KB=KB,
            BLOCK=BLOCK, num_warps=warps(KB * BLOCK, each),
        )  # fmt: skip
        sums = sums.sum(dim=1) if sums.shape[1] > 1 else sums.view(4, B)
        total, watched = sums[0], sums[1:]
        ctx.save_for_backward(made(eta) if outputs > C else out, gamma, x, coming)
        ctx.set_materialize_grads(False)
        ctx.settings, ctx.through, ctx.rows, ctx.width = settings, through, rows[1], width if annealed else None
        if not through:
            ctx.mark_non_differentiable(gamma)
        return out, gamma, total, watched, None if delta is None else made(delta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_psi: Tensor | None, g_gamma: Tensor | None, g_total: Tensor | None, other: Any,
                 g_delta: Tensor | None) -> Any:  # fmt: skip
        refuse_watched(other)
        kept, gamma, x, coming = ctx.saved_tensors  # psi; of masked pixels, eta
        width = kept if ctx.width is None else ctx.width
        B, K, outputs, H, W = kept.shape
        KB = triton.next_power_of_2(K)
        kernel, BLOCK, each = masked_backward, masked_block(KB, H * W), 1
        if x.shape[1] == outputs:
            kernel, BLOCK, each = _assignment_backward, max(32, min(256, PROGRAM // KB)), 8
        g_total = g_total.contiguous() if g_total is not None else None
        g_psi, g_delta = (None if part is None else in_memory(part) for part in (g_psi, g_delta))
        g_gamma = g_gamma.contiguous() if g_gamma is not None and ctx.through else None
        g_eta = taken(ctx.rows, kept)
        kernel[(B, triton.cdiv(H * W, BLOCK))](
            in_memory(kept), gamma, x, coming, width, g_psi, g_gamma, g_total, g_delta, g_eta, K, H * W, **ctx.settings,
            PSI=g_psi is not None, THROUGH=ctx.through, GAMMA=g_gamma is not None, LOSS=g_total is not None,
            COMING=g_delta is not None, KB=KB, BLOCK=BLOCK, num_warps=warps(KB * BLOCK, each),
        )  # fmt: skip
        return made(g_eta), None, None, None, None, None
