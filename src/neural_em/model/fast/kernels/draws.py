"""The keyed random numbers of `randomness.py`, the same to the last bit, in one kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)
_UNIT = tl.constexpr(2.0**-24)
_BLOCK = 512


@triton.jit
def _mix(bits):
    bits = (bits ^ (bits >> 30)) * _FIRST
    bits = (bits ^ (bits >> 27)) * _SECOND
    return bits ^ (bits >> 31)


@triton.jit(do_not_specialize=["stream"])  # a 1 would arrive as a constant, which has no type to convert
def _uniform(keys, out, stream, pairs, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + row).to(tl.uint64, bitcast=True)
    start = _mix((key + (stream + 1).to(tl.uint64)) * _GOLDEN)
    bits = _mix(start + (i + 1).to(tl.uint64) * _GOLDEN)
    first = ((bits >> 40) & 0xFFFFFF).to(tl.int32).to(tl.float32)
    second = ((bits >> 8) & 0xFFFFFF).to(tl.int32).to(tl.float32)
    tl.store(out + row * 2 * pairs + i, first * _UNIT, mask=i < pairs)
    tl.store(out + row * 2 * pairs + pairs + i, second * _UNIT, mask=i < pairs)


def uniform(key: Tensor, count: int, stream: int = 0) -> Tensor:
    """What `randomness.uniform` gives."""
    key = key.contiguous()
    pairs = (count + 1) // 2
    out = torch.empty(key.numel(), 2 * pairs, device=key.device, dtype=torch.float32)
    if out.numel():
        _uniform[(key.numel(), triton.cdiv(pairs, _BLOCK))](key, out, stream, pairs, BLOCK=_BLOCK, num_warps=4)
    return out[:, :count].reshape(*key.shape, count)
