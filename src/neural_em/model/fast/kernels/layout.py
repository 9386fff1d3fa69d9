"""How images lie in memory for the kernels: all channels of a pixel together, as convolutions read and write them."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor


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
