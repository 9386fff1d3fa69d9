"""Random numbers that belong to a sample: a pure function of its key, the same on every device.

A key is a 64-bit integer made from a seed and whatever names the sample (split, index, epoch). The numbers under a
key are SplitMix64's stream from it, computed with integer tensor operations, so neither the batch a sample is in,
nor the process or device that holds it, changes what is drawn for it.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as a signed integer
_FIRST = -4658895280553007687  # SplitMix64's two multipliers
_SECOND = -7723592293110705685
_BLOCK = 1 << 16  # numbers made at a time on a CPU: stays in its cache


def keys(seed: int, *words: int | Tensor, device: torch.device | str = "cpu") -> Tensor:
    """One 64-bit key for every combination of words: integers, or integer tensors that broadcast together."""
    key = _mix(torch.tensor(_signed(seed), dtype=torch.int64, device=device))
    for word in words:
        key = fold(key, word.to(device=device, dtype=torch.int64) if isinstance(word, Tensor) else word)
    return key


def fold(key: Tensor, word: int | Tensor) -> Tensor:
    """Keys below a key: one for every word, an integer or an integer tensor that broadcasts against it."""
    return _mix((key ^ (word if isinstance(word, Tensor) else _signed(word))) + _GOLDEN)


def uniform(key: Tensor, count: int, stream: int = 0) -> Tensor:
    """Uniform numbers in [0, 1) with 24 random bits: float32 of shape (*key.shape, count)."""
    start = _mix((key + stream + 1) * _GOLDEN).reshape(-1, 1)
    pairs = (count + 1) // 2
    out = torch.empty(start.shape[0], 2 * pairs, device=key.device, dtype=torch.float32)
    block = pairs * start.shape[0] if key.is_cuda else max(1, _BLOCK // max(1, pairs))
    steps = torch.arange(1, pairs + 1, device=key.device) * _GOLDEN
    for first in range(0, start.shape[0], block):
        bits = _mix(start[first : first + block] + steps)
        rows = out[first : first + block]
        rows[:, :pairs] = (bits >> 40) & 0xFFFFFF  # one 64-bit word holds two numbers
        rows[:, pairs:] = (bits >> 8) & 0xFFFFFF
    return out.mul_(2.0**-24)[:, :count].reshape(*key.shape, count)


def normal(key: Tensor, count: int, stream: int = 0, uniform: Callable[[Tensor, int, int], Tensor] = uniform) -> Tensor:
    """Standard normal numbers by the Box-Muller transform: float32 of shape (*key.shape, count).

    ``uniform`` draws the uniform numbers; another way to make the same ones may be faster.
    """
    half = (count + 1) // 2
    u = uniform(key, 2 * half, stream)
    radius = torch.sqrt(-2.0 * torch.log1p(-u[..., :half]))
    angle = (2.0 * math.pi) * u[..., half:]
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)[..., :count]


def integers(key: Tensor, count: int, high: int | Tensor, stream: int = 0) -> Tensor:
    """Integers in [0, high): int64 of shape (*key.shape, count); ``high`` broadcasts against it."""
    return (uniform(key, count, stream).to(torch.float64) * high).to(torch.int64)


def permutation(key: Tensor, length: int) -> Tensor:
    """A random order of 0 .. length - 1 under one key (a tensor with no dimensions)."""
    steps = torch.arange(1, length + 1, device=key.device) * _GOLDEN
    return torch.argsort(_mix(key + steps), stable=True)


def _mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser; torch shifts arithmetically, so the sign's copies are masked away."""
    bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * _FIRST
    bits ^= (bits >> 27) & 0x1FFFFFFFFF
    bits *= _SECOND
    bits ^= (bits >> 31) & 0x1FFFFFFFF
    return bits


def _signed(word: int) -> int:
    """Any Python integer as the signed 64-bit integer with the same low bits."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >= 1 << 63 else word
