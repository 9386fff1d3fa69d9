"""Frames, E-step, losses and the next step's delta of `Masked` pixels: the kernels behind `Assignment`.

Each pixel of eta (B,K,H,W,C+1) is a colour and the log-odds that the object covers it.
"""

import triton
import triton.language as tl

from neural_em.model.fast.kernels.layout import in_turn, tile
from neural_em.model.mixture import EPSILON

_E_STEP = tl.constexpr(EPSILON)


def masked_block(components: int, pixels: int) -> int:
    """Pixels of a program: few, so that a thread has one number of each kind; a sample has at most 65,535 programs."""
    return max(8, 256 // components, triton.next_power_of_2(pixels) >> 15)


@triton.jit
def _sigmoid(z):
    """Sigmoid of z, and log(1 + exp(-|z|))."""
    e = tl.exp(-tl.abs(z))
    return tl.where(z < 0.0, e, 1.0) / (1.0 + e), tl.log(1.0 + e)


@triton.jit
def _mixed(odds, object_, ground):
    """Log-probability of a pixel at these distances from object and ground, and the object's share in it."""
    _, rest = _sigmoid(odds)
    object_ = tl.minimum(odds, 0.0) - rest - object_
    ground = tl.minimum(-odds, 0.0) - rest - ground
    share, rest = _sigmoid(object_ - ground)
    return tl.maximum(object_, ground) + rest, share


@triton.jit
def _scale(width, WIDTH: tl.constexpr, ANNEALED: tl.constexpr):
    """What makes a distance of a squared difference: the E-step's deviation lies in memory where it changes."""
    if ANNEALED:
        w = tl.load(width)
        scale = 0.5 / (w * w)
    else:
        scale = tl.full([], 0.5 / (WIDTH * WIDTH), width.dtype.element_ty)  # a bare number would become float32
    return scale


@triton.jit
def masked_forward(
    eta, x, coming, width, psi, gamma, delta, sums, B, K, L,
    PRIOR: tl.constexpr, WIDTH: tl.constexpr, ANNEALED: tl.constexpr, WEIGHT: tl.constexpr, COMING: tl.constexpr,
    C: tl.constexpr, KB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    in_turn()
    b, k, i, inside, at = tile(K, L, KB, BLOCK)
    scale = _scale(width, WIDTH, ANNEALED)
    odds = tl.load(eta + at * (C + 1) + C, mask=inside, other=0.0)
    covered, _ = _sigmoid(odds)
    added, object_, missed = tl.zeros_like(odds), tl.zeros_like(odds), tl.zeros_like(odds)
    ground = tl.zeros([1, BLOCK], dtype=eta.dtype.element_ty)
    for c in tl.static_range(C):
        colour = tl.load(eta + at * (C + 1) + c, mask=inside, other=0.0)
        frame = tl.load(x + (b * C + c) * L + i, mask=i < L, other=0.0)
        said = PRIOR + covered * (colour - PRIOR)
        tl.store(psi + at * C + c, said, mask=inside)
        object_ += (frame - colour) * (frame - colour)
        added += (colour - PRIOR) * (colour - PRIOR)
        ground += (frame - PRIOR) * (frame - PRIOR)
        missed += 0.5 * (frame - said) * (frame - said)
    log, _ = _mixed(odds, object_ * scale, ground * scale)
    of_prior, _ = _mixed(odds, added * scale, 0.0)
    best = tl.max(tl.where(k < K, log, float("-inf")), axis=0)[None, :]
    likelihood = tl.where(inside, tl.exp(log - best) + _E_STEP, 0.0)
    g = likelihood / tl.where(i < L, tl.sum(likelihood, axis=0)[None, :], 1.0)
    tl.store(gamma + at, g, mask=inside)
    if COMING:
        for c in tl.static_range(C):
            said = PRIOR + covered * (tl.load(eta + at * (C + 1) + c, mask=inside, other=0.0) - PRIOR)
            frame = tl.load(coming + (b * C + c) * L + i, mask=i < L, other=0.0)
            tl.store(delta + at * C + c, g * (frame - said), mask=inside)
    farthest = tl.argmax(tl.where(k < K, covered * covered * added, -1.0), axis=0)[None, :]
    intra = -tl.sum(tl.sum(tl.where(inside, g * log, 0.0), axis=1), axis=0)
    inter = -tl.sum(tl.sum(tl.where(inside, (1.0 - g) * of_prior, 0.0), axis=1), axis=0)
    bound = tl.sum(tl.sum(tl.where(inside & (k == farthest), missed, 0.0), axis=1), axis=0)
    row, part = tl.program_id(1) * B + b, tl.num_programs(1) * B  # of sums (4, programs of a sample, B)
    tl.store(sums + row, intra + WEIGHT * inter)
    tl.store(sums + part + row, intra)
    tl.store(sums + 2 * part + row, inter)
    tl.store(sums + 3 * part + row, bound)


@triton.jit
def masked_backward(
    eta, gamma, x, coming, width, g_psi, g_gamma, g_total, g_delta, g_eta, K, L,
    PRIOR: tl.constexpr, WIDTH: tl.constexpr, ANNEALED: tl.constexpr, WEIGHT: tl.constexpr, PSI: tl.constexpr,
    THROUGH: tl.constexpr, GAMMA: tl.constexpr, LOSS: tl.constexpr, COMING: tl.constexpr, C: tl.constexpr,
    KB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    in_turn()
    b, k, i, inside, at = tile(K, L, KB, BLOCK)
    scale = _scale(width, WIDTH, ANNEALED)
    g = tl.load(gamma + at, mask=inside, other=0.0)
    odds = tl.load(eta + at * (C + 1) + C, mask=inside, other=0.0)
    covered, _ = _sigmoid(odds)
    added, object_, through = tl.zeros_like(g), tl.zeros_like(g), tl.zeros_like(g)
    ground = tl.zeros([1, BLOCK], dtype=eta.dtype.element_ty)
    for c in tl.static_range(C):
        colour = tl.load(eta + at * (C + 1) + c, mask=inside, other=0.0)
        frame = tl.load(x + (b * C + c) * L + i, mask=i < L, other=0.0)
        object_ += (frame - colour) * (frame - colour)
        added += (colour - PRIOR) * (colour - PRIOR)
        ground += (frame - PRIOR) * (frame - PRIOR)
        if THROUGH and COMING:
            frame = tl.load(coming + (b * C + c) * L + i, mask=i < L, other=0.0)
            lost = frame - PRIOR - covered * (colour - PRIOR)
            through += tl.load(g_delta + at * C + c, mask=inside, other=0.0) * lost
    log, of_object = _mixed(odds, object_ * scale, ground * scale)
    of_prior, on_prior = _mixed(odds, added * scale, 0.0)
    by_log, by_kl = tl.zeros_like(g), tl.zeros_like(g)  # the gradient by log-probability, and by divergence
    if LOSS:
        weight = tl.load(g_total + b)
        by_log, by_kl = -weight * g, weight * WEIGHT * (1.0 - g)
    if THROUGH:  # back through gamma_k = P_k / sum P
        if GAMMA:
            through += tl.load(g_gamma + at, mask=inside, other=0.0)
        if LOSS:
            through += weight * (WEIGHT * of_prior - log)
        through = tl.where(inside, through, 0.0)
        best = tl.max(tl.where(k < K, log, float("-inf")), axis=0)[None, :]
        likelihood = tl.where(inside, tl.exp(log - best), 0.0)
        total = tl.sum(tl.where(inside, likelihood + _E_STEP, 0.0), axis=0)[None, :]
        total = tl.where(i < L, total, 1.0)
        by_log += (through - tl.sum(g * through, axis=0)[None, :]) / total * likelihood
    by_odds = by_log * (of_object - covered) + by_kl * (covered - on_prior)
    by_object, by_added = 2.0 * scale * by_log * of_object, 2.0 * scale * by_kl * on_prior
    for c in tl.static_range(C):
        colour = tl.load(eta + at * (C + 1) + c, mask=inside, other=0.0)
        frame = tl.load(x + (b * C + c) * L + i, mask=i < L, other=0.0)
        by_psi = tl.zeros_like(g)
        if PSI:
            by_psi = tl.load(g_psi + at * C + c, mask=inside, other=0.0)
        if COMING:
            by_psi -= tl.load(g_delta + at * C + c, mask=inside, other=0.0) * g
        by_odds += by_psi * (colour - PRIOR) * covered * (1.0 - covered)
        out = by_psi * covered + by_object * (frame - colour) + by_added * (colour - PRIOR)
        tl.store(g_eta + at * (C + 1) + c, out, mask=inside)
    tl.store(g_eta + at * (C + 1) + C, by_odds, mask=inside)
