"""A step of Adam on one large parameter, as PyTorch's own makes it, by enough programs to fill a GPU."""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUMBERS = 2048  # of a program


@triton.jit
def _adam(
    weight, gradient, mean, square, step, rate, N,
    RATE: tl.constexpr, KEEP: tl.constexpr, SQUARE: tl.constexpr, LOG_KEEP: tl.constexpr, LOG_SQUARE: tl.constexpr,
    EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    steps = tl.load(step).to(tl.float64)
    seen, seen_square = 1.0 - tl.exp(steps * LOG_KEEP), 1.0 - tl.exp(steps * LOG_SQUARE)
    if RATE is None:  # it lies in memory and changes between steps
        size = (tl.load(rate).to(tl.float64) / seen).to(weight.dtype.element_ty)
    else:
        size = (RATE / seen).to(weight.dtype.element_ty)
    root = tl.sqrt(seen_square).to(weight.dtype.element_ty)
    g = tl.load(gradient + i, mask=inside)
    m = tl.load(mean + i, mask=inside) * KEEP + (1.0 - KEEP) * g
    v = tl.load(square + i, mask=inside) * SQUARE + (1.0 - SQUARE) * g * g
    tl.store(mean + i, m, mask=inside)
    tl.store(square + i, v, mask=inside)
    w = tl.load(weight + i, mask=inside) - size * m / (tl.sqrt(v) / root + EPSILON)
    tl.store(weight + i, w, mask=inside)


def adam(weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any], moves: bool = True) -> None:
    """Moves the weight, with what the optimizer keeps for it and its settings.

    All are in one piece; the state's ``step`` is this one's number. If nothing is to move, the kernel is only compiled.
    """
    # no number lies below zero; and Triton, which compiles apart for multiples of 16, takes -n for one where n is
    count = weight.numel() if moves else -weight.numel()
    rate, (keep, square) = group["lr"], group["betas"]
    varies = isinstance(rate, Tensor)
    with torch.cuda.device_of(weight):  # which need not be the current one
        _adam[max(1, triton.cdiv(count, _NUMBERS)),](
            weight, gradient, state["exp_avg"], state["exp_avg_sq"], state["step"], rate if varies else weight, count,
            RATE=None if varies else rate, KEEP=keep, SQUARE=square, LOG_KEEP=math.log(keep),
            LOG_SQUARE=math.log(square), EPSILON=group["eps"], BLOCK=_NUMBERS, num_warps=8,
        )  # fmt: skip
