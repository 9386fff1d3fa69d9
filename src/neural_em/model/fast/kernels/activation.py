"""Bias, layer norm, scale and offset, non-linearity: one kernel each way."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.networks import EPSILON

LARGEST = 32768  # numbers of one sample that one program can hold
WHOLE, CHUNK = 4096, 2048  # on the way back a program holds a sample of so many at once, and of a larger one chunks
_EPSILON = tl.constexpr(EPSILON)
ELU, RELU, SIGMOID = (tl.constexpr(i) for i in range(3))
TANH = tl.constexpr(4)
KINDS = {"elu": 0, "relu": 1, "sigmoid": 2, "identity": 3, "tanh": 4}


def row_fits(x: Tensor, phases: bool) -> bool:
    """Whether a sample of x (N,C) or (N,C,H,W) is small enough for these kernels."""
    C = x.shape[1] // 4 if phases else x.shape[1]
    return triton.next_power_of_2(C) * triton.next_power_of_2(x[0].numel() // C) <= LARGEST


@triton.jit
def _places(start, P, C, WIDTH, PB: tl.constexpr, CB: tl.constexpr, PHASES: tl.constexpr):
    """Where a tile (PB,CB) of one sample, from the pixel ``start`` on, lies in the input and in the output.

    The output's phases are interleaved.
    """
    p = start + tl.arange(0, PB)[:, None]
    c = tl.arange(0, CB)[None, :]
    inside = (p < P) & (c < C)
    q = p
    if PHASES:  # p = (i * WIDTH + j) * 4 + 2 a + b goes to row 2 i + a, column 2 j + b
        phase = p % 4
        pixel = p // 4
        q = (2 * (pixel // WIDTH) + phase // 2) * (2 * WIDTH) + 2 * (pixel % WIDTH) + phase % 2
    return p * C + c, q * C + c, c, inside


@triton.jit
def _activation_forward(
    x, bias, scale, offset, y, state, mean, deviation, P, C, WIDTH,
    KIND: tl.constexpr, BIAS: tl.constexpr, AFFINE: tl.constexpr, PHASES: tl.constexpr, STATE: tl.constexpr,
    PB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    source, target, c, inside = _places(0, P, C, WIDTH, PB, CB, PHASES)
    v = tl.load(x + n * P * C + source, mask=inside, other=0.0).to(mean.dtype.element_ty)
    if BIAS:
        v += tl.load(bias + c, mask=c < C, other=0.0)
        v = tl.where(inside, v, 0.0)
    m = tl.sum(tl.sum(v, axis=1), axis=0) / (P * C)
    centred = tl.where(inside, v - m, 0.0)
    r = 1.0 / tl.sqrt(tl.sum(tl.sum(centred * centred, axis=1), axis=0) / (P * C) + _EPSILON)
    z = centred * r
    if AFFINE:
        z = z * tl.load(scale + c, mask=c < C, other=0.0) + tl.load(offset + c, mask=c < C, other=0.0)
    if KIND == ELU:
        z = tl.where(z > 0, z, tl.exp(z) - 1.0)
    elif KIND == RELU:
        z = tl.where(z > 0, z, 0.0)
    elif KIND == SIGMOID:
        z = 1.0 / (1.0 + tl.exp(-z))
    elif KIND == TANH:
        z = 2.0 / (1.0 + tl.exp(-2.0 * z)) - 1.0
    tl.store(y + n * P * C + target, z, mask=inside)
    if STATE:
        tl.store(state + n * P * C + source, 1.0 / (1.0 + tl.exp(-v)), mask=inside)
    tl.store(mean + n, m)
    tl.store(deviation + n, r)


@triton.jit
def _gradient_at(
    start, n, gradient, x, bias, scale, offset, m, r, P, C, WIDTH,
    KIND: tl.constexpr, BIAS: tl.constexpr, AFFINE: tl.constexpr, PHASES: tl.constexpr,
    PB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Of a sample's pixels from ``start`` on: where they lie, x, x normalised, and the gradient before scale."""
    source, target, c, inside = _places(start, P, C, WIDTH, PB, CB, PHASES)
    v = tl.load(x + n * P * C + source, mask=inside, other=0.0).to(m.dtype)
    if BIAS:
        v += tl.load(bias + c, mask=c < C, other=0.0)
    h = tl.where(inside, (v - m) * r, 0.0)
    z = h
    if AFFINE:
        z = h * tl.load(scale + c, mask=c < C, other=0.0) + tl.load(offset + c, mask=c < C, other=0.0)
    g = tl.load(gradient + n * P * C + target, mask=inside, other=0.0).to(m.dtype)
    if KIND == ELU:
        g = tl.where(z > 0, g, g * tl.exp(z))
    elif KIND == RELU:
        g = tl.where(z > 0, g, 0.0)
    elif KIND == SIGMOID:
        z = 1.0 / (1.0 + tl.exp(-z))
        g = g * z * (1.0 - z)
    elif KIND == TANH:
        z = 2.0 / (1.0 + tl.exp(-2.0 * z)) - 1.0
        g = g * (1.0 - z * z)
    return source, inside, v, h, g


@triton.jit
def _activation_backward(
    gradient, g_state, x, bias, scale, offset, mean, deviation, gx, parts, R, P, C, WIDTH,
    KIND: tl.constexpr, BIAS: tl.constexpr, AFFINE: tl.constexpr, PHASES: tl.constexpr, STATE: tl.constexpr,
    WHOLE: tl.constexpr, PB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    m, r = tl.load(mean + n), tl.load(deviation + n)
    channel = tl.arange(0, CB)
    if WHOLE:
        source, inside, v, h, g = _gradient_at(
            0, n, gradient, x, bias, scale, offset, m, r, P, C, WIDTH, KIND, BIAS, AFFINE, PHASES, PB, CB
        )  # fmt: skip
        along, total = tl.sum(g * h, axis=0), tl.sum(g, axis=0)
    else:  # a few pixels at a time, read twice: so many programs fit side by side, and some compute while others wait
        along_each = tl.zeros((PB, CB), m.dtype)
        total_each = tl.zeros((PB, CB), m.dtype)
        for start in range(0, P, PB):
            _, _, _, h, g = _gradient_at(
                start, n, gradient, x, bias, scale, offset, m, r, P, C, WIDTH, KIND, BIAS, AFFINE, PHASES, PB, CB
            )  # fmt: skip
            along_each += g * h
            total_each += g
        along, total = tl.sum(along_each, axis=0), tl.sum(total_each, axis=0)
    s = 1.0
    if AFFINE:  # this sample's part of the gradients of scale and offset
        tl.store(parts + n * R * C + channel, along, mask=channel < C)
        tl.store(parts + (n * R + 1) * C + channel, total, mask=channel < C)
        each = tl.load(scale + channel, mask=channel < C, other=0.0)
        along, total, s = along * each, total * each, each[None, :]
    a, b = tl.sum(total, axis=0) / (P * C), tl.sum(along, axis=0) / (P * C)
    if WHOLE:
        g = tl.where(inside, (g * s - a - h * b) * r, 0.0)
        if STATE:
            state = 1.0 / (1.0 + tl.exp(-v))
            g += tl.load(g_state + n * P * C + source, mask=inside, other=0.0).to(g.dtype) * state * (1.0 - state)
        tl.store(gx + n * P * C + source, g, mask=inside)
        if BIAS:
            tl.store(parts + (n * R + 2) * C + channel, tl.sum(g, axis=0), mask=channel < C)
    else:
        bias_each = tl.zeros((PB, CB), m.dtype)
        for start in range(0, P, PB):
            source, inside, _, h, g = _gradient_at(
                start, n, gradient, x, bias, scale, offset, m, r, P, C, WIDTH, KIND, BIAS, AFFINE, PHASES, PB, CB
            )  # fmt: skip
            g = tl.where(inside, (g * s - a - h * b) * r, 0.0)
            tl.store(gx + n * P * C + source, g, mask=inside)
            bias_each += g
        if BIAS:
            tl.store(parts + (n * R + 2) * C + channel, tl.sum(bias_each, axis=0), mask=channel < C)


class Activation(torch.autograd.Function):
    """Bias, layer norm, affine, non-linearity of images in channels-last memory, or of vectors.

    The parameters' gradients go to a tape, each sample's part on its own (N,3,C): scale, offset, bias.
    """

    @staticmethod
    def forward(ctx: Any, tape: Any, rows: tuple[Any, Any], kind: str, phases: bool, x: Tensor, scale: Tensor | None,
                offset: Tensor | None, bias: Tensor | None, with_state: bool) -> Any:  # fmt: skip
        """Of x (N,C) or (N,C,H,W); with phases, of (N,4*C,H,W) whose channels are (2,2,C), to (N,C,2H,2W).

        ``rows`` give the memory that the output and, in the backward pass, the input's gradient are written to. If
        it is wanted, a recurrent layer's state, the sigmoid of x as it is, comes second.
        """
        N = x.shape[0]
        image = x.dim() == 4
        x = x.contiguous(memory_format=torch.channels_last) if image else x.contiguous()
        C = x.shape[1] // 4 if phases else x.shape[1]
        P, width = x[0].numel() // C, x.shape[-1]
        shape = (N, C, 2 * x.shape[2], 2 * x.shape[3]) if phases else tuple(x.shape)
        y: Tensor = rows[0].take(shape, x)
        exact = torch.promote_types(x.dtype, torch.float32)  # sums of bfloat16 numbers are float32
        mean, deviation = (torch.empty(N, device=x.device, dtype=exact) for _ in range(2))
        PB, CB = triton.next_power_of_2(P), triton.next_power_of_2(C)
        settings = {"KIND": KINDS[kind], "BIAS": bias is not None, "AFFINE": scale is not None, "PHASES": phases,
                    "STATE": with_state, "PB": PB, "CB": CB,
                    "num_warps": max(1, min(32, PB * CB // (512 if P == 1 else 1024)))}  # fmt: skip
        state = torch.empty_like(x) if with_state else None
        _activation_forward[(N,)](x, bias, scale, offset, y, state, mean, deviation, P, C, width, **settings)
        ctx.save_for_backward(x, scale, offset, bias, mean, deviation)
        ctx.tape, ctx.rows, ctx.sizes, ctx.settings = tape, rows[1], (N, P, C, width), settings
        return (y, state) if with_state else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, g_state: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """The gradient of x; the parameters' to the tape."""
        x, scale, offset, bias, mean, deviation = ctx.saved_tensors
        N, P, C, width = ctx.sizes
        image = x.dim() == 4
        gradient = gradient.contiguous(memory_format=torch.channels_last) if image else gradient.contiguous()
        gx: Tensor = ctx.rows.take(tuple(x.shape), x)
        parts = mean.new_empty(N, 2 + (bias is not None), C) if scale is not None else gx
        settings, CB = ctx.settings, ctx.settings["CB"]
        whole = P == 1 or settings["PB"] * CB <= WHOLE
        if not whole:
            settings = {**settings, "PB": max(1, CHUNK // CB), "num_warps": 8}
        _activation_backward[(N,)](
            gradient, None if g_state is None else g_state.contiguous(), x, bias, scale, offset, mean, deviation, gx,
            parts, parts.shape[1], P, C, width, **settings, WHOLE=whole,
        )  # fmt: skip
        if scale is not None and ctx.tape is not None:
            ctx.tape.add(parts)
        return None, None, None, None, gx, None, None, None, None
