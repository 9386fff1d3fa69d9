"""From features to an image of twice the size, by one product: each pixel's features make its whole patch.

The patches are then moved to where they lie in the image and added up, inside the program: the features are read once,
and not once for each of their nine neighbours as in `edges`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_ROWS = 256  # small pixels that one program reads, if eight of the image's rows are not more


@triton.jit
def _fold(
    y, weight, bias, x, H, W, h, w, F, BAND,
    C: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
    BIAS: tl.constexpr, PB: tl.constexpr, TB: tl.constexpr, FB: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    above = tl.program_id(1) * BAND - 1  # the row over this program's band; it reads that and the one below, too
    p = tl.arange(0, PB)[:, None]
    i, j = above + p // w, p % w
    f = tl.arange(0, FB)
    there = (i >= 0) & (i < h) & (p // w < BAND + 2)
    features = tl.load(y + (n * h * w + i * w + j) * F + f[None, :], mask=there & (f < F)[None, :], other=0.0)
    tap = tl.arange(0, TB)[None, :]
    # tap (d,e) of small pixel (k,m) is the image's (2k - PAD + d, 2m - PAD + e): where phase (a,b) of (i,j) finds it
    d, e = tap // K - PAD + 8, tap % K - PAD + 8
    up, left = 4 - d // 2, 4 - e // 2
    found = (tap < K * K) & (j + left >= 0) & (j + left < w) & (p // w + up >= 0) & (p // w + up < BAND + 2)
    source = tl.where(found, p + up * w + left, 0)
    mine = (i >= above + 1) & (i <= above + BAND) & (i < h)
    for c in tl.static_range(C):
        taps = tl.load(weight + (tap * C + c) * F + f[:, None], mask=(tap < K * K) & (f < F)[:, None], other=0.0)
        if HALF:
            taps = taps.to(tl.bfloat16)
        patches = tl.dot(features, taps, input_precision=PRECISION)
        moved = tl.where(found, tl.gather(patches, source, 0), 0.0)
        for phase in tl.static_range(4):
            belongs = (d % 2 == phase // 2) & (e % 2 == phase % 2)
            total = tl.sum(tl.where(belongs, moved, 0.0), axis=1)[:, None]
            if BIAS:
                total += tl.load(bias + c)
            tl.store(x + ((n * H + 2 * i + phase // 2) * W + 2 * j + phase % 2) * C + c, total, mask=mine)


def fold(y: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, settings: dict[str, Any]) -> None:
    """Fills images x (N,C,2h,2w) from y (N,F,h,w), both channels last in memory, and weight (K*K*C,F)."""
    N, F, h, w = y.shape
    PB = max(_ROWS, triton.next_power_of_2(8 * w))
    band = min(PB // w - 2, h)
    _fold[(N, triton.cdiv(h, band))](
        y, weight, bias, x, 2 * h, 2 * w, h, w, F, band, C=x.shape[1], **settings, BIAS=bias is not None, PB=PB,
        TB=max(16, triton.next_power_of_2(settings["K"] ** 2)), FB=max(16, triton.next_power_of_2(F)), num_warps=4,
    )  # fmt: skip
