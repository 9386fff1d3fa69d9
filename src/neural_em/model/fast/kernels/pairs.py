"""Pairs of components: one row for each component k and each other one j, from what each gives and back to it.

Of K components the others of k are numbered 0 to K - 2; number j is component j, or j + 1 from k on.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.fast.kernels.layout import warps

LARGEST = 8192  # numbers of all pairs of one component that a program can hold


def pairs_fit(K: int, M: int) -> bool:
    """Whether the rows of a component's pairs are small enough for these kernels; a single one has no pairs."""
    return K > 1 and triton.next_power_of_2(K - 1) * triton.next_power_of_2(M) <= LARGEST


@triton.jit
def _tile(K, M, JB: tl.constexpr, MB: tl.constexpr):
    """A program's sample and component, the others (JB,1), the numbers m (1,MB), and which of these exist."""
    n = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, JB)[:, None]
    m = tl.arange(0, MB)[None, :]
    return n // K, n % K, j, m, (j < K - 1) & (m < M)


@triton.jit
def _join(halves, bias, pairs, K, M, EXACT: tl.constexpr, JB: tl.constexpr, MB: tl.constexpr):
    b, k, j, m, there = _tile(K, M, JB, MB)
    own = tl.load(halves + (b * K + k) * 2 * M + m, mask=m < M, other=0.0).to(EXACT)
    own += tl.load(bias + m, mask=m < M, other=0.0).to(EXACT)
    other = tl.load(halves + (b * K + j + (j >= k)) * 2 * M + M + m, mask=there, other=0.0).to(EXACT)
    tl.store(pairs + ((b * K + k) * (K - 1) + j) * M + m, own + other, mask=there)


@triton.jit
def _part(gradient, halves, K, M, EXACT: tl.constexpr, JB: tl.constexpr, MB: tl.constexpr):
    b, k, j, m, there = _tile(K, M, JB, MB)
    own = tl.load(gradient + ((b * K + k) * (K - 1) + j) * M + m, mask=there, other=0.0).to(EXACT)
    seen_by = j + (j >= k)  # and k is at its place for each of them
    seen = tl.load(gradient + ((b * K + seen_by) * (K - 1) + k - (k > seen_by)) * M + m, mask=there, other=0.0)
    row = halves + (b * K + k) * 2 * M + m
    tl.store(row, tl.sum(own, axis=0)[None, :], mask=m < M)
    tl.store(row + M, tl.sum(seen.to(EXACT), axis=0)[None, :], mask=m < M)


@triton.jit
def _heed(effect, logits, out, K, M, EXACT: tl.constexpr, JB: tl.constexpr, MB: tl.constexpr):
    b, k, j, m, there = _tile(K, M, JB, MB)
    row = (b * K + k) * (K - 1) + j
    e = tl.load(effect + row * M + m, mask=there, other=0.0).to(EXACT)
    a = 1.0 / (1.0 + tl.exp(-tl.load(logits + row, mask=j < K - 1, other=0.0).to(EXACT)))
    tl.store(out + (b * K + k) * M + m, tl.sum(a * e, axis=0)[None, :], mask=m < M)


@triton.jit
def _heed_back(
    gradient, effect, logits, g_effect, g_logits, K, M, EXACT: tl.constexpr, JB: tl.constexpr, MB: tl.constexpr
):
    b, k, j, m, there = _tile(K, M, JB, MB)
    row = (b * K + k) * (K - 1) + j
    e = tl.load(effect + row * M + m, mask=there, other=0.0).to(EXACT)
    a = 1.0 / (1.0 + tl.exp(-tl.load(logits + row, mask=j < K - 1, other=0.0).to(EXACT)))
    g = tl.load(gradient + (b * K + k) * M + m, mask=m < M, other=0.0).to(EXACT)
    tl.store(g_effect + row * M + m, a * g, mask=there)
    tl.store(g_logits + row, (a * (1.0 - a)) * tl.sum(g * e, axis=1)[:, None], mask=j < K - 1)


def _settings(K: int, M: int) -> dict[str, Any]:
    JB, MB = triton.next_power_of_2(K - 1), triton.next_power_of_2(M)
    return {"JB": JB, "MB": MB, "num_warps": warps(JB * MB, 16)}


def _exact(like: Tensor) -> Any:
    """The type of sums."""
    return tl.float64 if like.dtype == torch.float64 else tl.float32


def join(halves: Tensor, bias: Tensor) -> Tensor:
    """Of what each component gives as itself and as another one (B,K,2M), and a bias (M,): all pairs (B,K,K-1,M)."""
    B, K, M = halves.shape[0], halves.shape[1], halves.shape[2] // 2
    pairs = halves.new_empty(B, K, K - 1, M)
    _join[(B * K,)](
        halves.contiguous(), bias.contiguous(), pairs, K, M, EXACT=_exact(halves), **_settings(K, M)
    )  # fmt: skip
    return pairs


def part(gradient: Tensor) -> Tensor:
    """The gradient of what each component gives (B,K,2M), from that of the pairs: the transpose of `join`."""
    B, K, _, M = gradient.shape
    halves = gradient.new_empty(B, K, 2 * M)
    _part[(B * K,)](gradient.contiguous(), halves, K, M, EXACT=_exact(gradient), **_settings(K, M))
    return halves


class Heeded(torch.autograd.Function):
    """The sum over all others of their effects (B,K,K-1,M), each weighted by the sigmoid of a logit (B,K,K-1)."""

    @staticmethod
    def forward(ctx: Any, effect: Tensor, logits: Tensor) -> Tensor:
        B, K, _, M = effect.shape
        effect, logits, out = effect.contiguous(), logits.contiguous(), effect.new_empty(B, K, M)
        _heed[(B * K,)](effect, logits, out, K, M, EXACT=_exact(effect), **_settings(K, M))
        ctx.save_for_backward(effect, logits)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        effect, logits = ctx.saved_tensors
        B, K, _, M = effect.shape
        g_effect, g_logits = torch.empty_like(effect), torch.empty_like(logits)
        _heed_back[(B * K,)](
            gradient.contiguous(), effect, logits, g_effect, g_logits, K, M,
            EXACT=_exact(effect), **_settings(K, M),
        )  # fmt: skip
        return g_effect, g_logits
