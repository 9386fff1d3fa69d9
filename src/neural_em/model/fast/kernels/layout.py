"""How images lie in memory for the kernels: all channels of a pixel together, as convolutions read and write them."""

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neural_em.model.fast import switches

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # Triton before 3.4
    gdc_wait = None


def _overlap() -> bool:
    """Whether kernels may start before the one in front of them has ended: on Hopper and later."""
    if not switches.PDL or gdc_wait is None or os.environ.get("TRITON_INTERPRET") == "1":
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


OVERLAP = _overlap()
LAUNCH: dict[str, Any] = {"launch_pdl": True} if OVERLAP else {}  # for every launch of a kernel that waits `in_turn`

if OVERLAP:

    @triton.jit
    def in_turn():
        """Before a kernel's first read or write: waits for the one in front of it, and lets the next one start."""
        gdc_wait()
        gdc_launch_dependents()

else:

    @triton.jit
    def in_turn():
        """Nothing: kernels start when the one in front of them has ended."""


def in_memory(images: Tensor) -> Tensor:
    """Images (B,K,C,H,W) as the kernels read them, (B,K,H,W,C)."""
    B, K, C, H, W = images.shape
    return images.contiguous().view(B, K, H, W, 1) if C == 1 else images.permute(0, 1, 3, 4, 2).contiguous()


def made(images: Tensor) -> Tensor:
    """What a kernel filled, (B,K,H,W,C), as (B,K,C,H,W)."""
    B, K, H, W, C = images.shape
    return images.view(B, K, 1, H, W) if C == 1 else images.permute(0, 1, 4, 2, 3)


def taken(rows: Any, like: Tensor) -> Tensor:
    """Memory (B,K,H,W,C) for a kernel to fill, for images like these (B,K,C,H,W)."""
    B, K, C, H, W = like.shape
    memory: Tensor = rows.take((B, K, H, W, C), like)
    return memory


@triton.jit
def tile(K, L, KB: tl.constexpr, BLOCK: tl.constexpr):
    """A program's sample b, its components k (KB,1) and pixels i (1,BLOCK), which of these exist, and their places."""
    b = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, KB)[:, None]
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    return b, k, i, (k < K) & (i < L), (b * K + k) * L + i


def warps(numbers: int, each: int) -> int:
    """Warps of a program, for so many numbers in each thread."""
    return max(1, min(16, numbers // (32 * each)))
