"""Sums over many rows, in two stages: enough programs to fill a GPU, then one row of all theirs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUMBERS = 4096  # of a program's tile
_PROGRAMS = 1024  # about as many as it takes
_FEW = 256  # rows that need no second stage


@triton.jit
def _column_sums(x, sums, N, C, STRIDE, EACH, RB: tl.constexpr, CB: tl.constexpr):
    c = tl.program_id(0) * CB + tl.arange(0, CB)[None, :]
    first = tl.program_id(1).to(tl.int64) * EACH
    last = tl.minimum(first + EACH, N)
    total = tl.zeros([RB, CB], dtype=sums.dtype.element_ty)
    for row in range(0, EACH, RB):
        n = first + row + tl.arange(0, RB)[:, None]
        total += tl.load(x + n * STRIDE + c, mask=(n < last) & (c < C), other=0.0).to(total.dtype)
    c = tl.program_id(0) * CB + tl.arange(0, CB)
    tl.store(sums + tl.program_id(1) * C + c, tl.sum(total, axis=0), mask=c < C)


def column_sums(x: Tensor) -> Tensor:
    """The sums over N of x (N,C), whose rows may lie apart; of bfloat16 numbers in float32."""
    if x.stride(1) != 1:
        x = x.contiguous()
    (N, C), few = x.shape, len(x) <= _FEW
    CB = min(16 if few and C <= 16 * _PROGRAMS else 128, triton.next_power_of_2(C))
    RB, columns = _NUMBERS // CB, triton.cdiv(C, CB)
    parts = 1 if few else max(1, min(_FEW, _PROGRAMS // columns))
    each = triton.cdiv(N, parts * RB) * RB
    parts = triton.cdiv(N, each)
    sums = x.new_empty(parts, C, dtype=torch.promote_types(x.dtype, torch.float32))
    _column_sums[columns, parts](x, sums, N, C, x.stride(0), each, RB=RB, CB=CB)
    return sums[0] if parts == 1 else column_sums(sums)
