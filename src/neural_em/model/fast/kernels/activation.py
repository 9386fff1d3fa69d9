"""Bias, layer norm, scale and offset, non-linearity: one kernel each way."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.fast.kernels.layout import LAUNCH, in_turn
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
def _row(n, source, inside, P, C, ROW, WIDE: tl.constexpr):
    """Where a sample begins, and which of a tile's places are written; a wide row ends in zeros."""
    first, written = n * P * C, inside
    if WIDE:
        first, written = n * ROW, source < ROW
    return first, written


@triton.jit
def _activation_forward(
    x, bias, scale, offset, y, state, mean, deviation, P, C, WIDTH, ROW,
    KIND: tl.constexpr, BIAS: tl.constexpr, AFFINE: tl.constexpr, PHASES: tl.constexpr, STATE: tl.constexpr,
    WIDE: tl.constexpr, PB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    in_turn()
    n = tl.program_id(0).to(tl.int64)
    source, target, c, inside = _places(0, P, C, WIDTH, PB, CB, PHASES)
    first, written = _row(n, source, inside, P, C, ROW, WIDE)
    v = tl.load(x + first + source, mask=inside, other=0.0).to(mean.dtype.element_ty)
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
    if WIDE:
        z = tl.where(inside, z, 0.0)
    tl.store(y + first + target, z, mask=written)
    if STATE:
        s = 1.0 / (1.0 + tl.exp(-v))
        if WIDE:
            s = tl.where(inside, s, 0.0)
        tl.store(state + first + source, s, mask=written)
    tl.store(mean + n, m)
    tl.store(deviation + n, r)


@triton.jit
def _gradient_at(
    start, n, gradient, x, bias, scale, offset, m, r, P, C, WIDTH, ROW,
    KIND: tl.constexpr, BIAS: tl.constexpr, AFFINE: tl.constexpr, PHASES: tl.constexpr,
    WIDE: tl.constexpr, PB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """Of a sample's pixels from ``start`` on: where they lie, x, x normalised, and the gradient before scale."""
    source, target, c, inside = _places(start, P, C, WIDTH, PB, CB, PHASES)
    first, written = _row(n, source, inside, P, C, ROW, WIDE)
    v = tl.load(x + first + source, mask=inside, other=0.0).to(m.dtype)
    if BIAS:
        v += tl.load(bias + c, mask=c < C, other=0.0)
    h = tl.where(inside, (v - m) * r, 0.0)
    z = h
    if AFFINE:
        z = h * tl.load(scale + c, mask=c < C, other=0.0) + tl.load(offset + c, mask=c < C, other=0.0)
    g = tl.load(gradient + first + target, mask=inside, other=0.0).to(m.dtype)
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
    return first + source, inside, written, v, h, g


@triton.jit
def _activation_backward(
    gradient, g_state, x, bias, scale, offset, mean, deviation, gx, parts, R, P, C, WIDTH, ROW, STATE_ROW,
    KIND: tl.constexpr, BIAS: tl.constexpr, AFFINE: tl.constexpr, PHASES: tl.constexpr, STATE: tl.constexpr,
    WIDE: tl.constexpr, WHOLE: tl.constexpr, PB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    in_turn()
    n = tl.program_id(0).to(tl.int64)
    m, r = tl.load(mean + n), tl.load(deviation + n)
    channel = tl.arange(0, CB)
    if WHOLE:
        at, inside, written, v, h, g = _gradient_at(
            0, n, gradient, x, bias, scale, offset, m, r, P, C, WIDTH, ROW, KIND, BIAS, AFFINE, PHASES,
            WIDE, PB, CB,
        )  # fmt: skip
        along, total = tl.sum(g * h, axis=0), tl.sum(g, axis=0)
    else:  # a few pixels at a time, read twice: so many programs fit side by side, and some compute while others wait
        along_each = tl.zeros((PB, CB), m.dtype)
        total_each = tl.zeros((PB, CB), m.dtype)
        for start in range(0, P, PB):
            _, _, _, _, h, g = _gradient_at(
                start, n, gradient, x, bias, scale, offset, m, r, P, C, WIDTH, ROW, KIND, BIAS, AFFINE, PHASES,
                WIDE, PB, CB,
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
            there = g_state + (n * STATE_ROW + channel[None, :] if WIDE else at)
            g += tl.load(there, mask=inside, other=0.0).to(g.dtype) * state * (1.0 - state)
        tl.store(gx + at, g, mask=written)
        if BIAS:
            tl.store(parts + (n * R + 2) * C + channel, tl.sum(g, axis=0), mask=channel < C)
    else:
        bias_each = tl.zeros((PB, CB), m.dtype)
        for start in range(0, P, PB):
            at, inside, written, _, h, g = _gradient_at(
                start, n, gradient, x, bias, scale, offset, m, r, P, C, WIDTH, ROW, KIND, BIAS, AFFINE, PHASES,
                WIDE, PB, CB,
            )  # fmt: skip
            g = tl.where(inside, (g * s - a - h * b) * r, 0.0)
            tl.store(gx + at, g, mask=written)
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

        Rows x (N,R) that are wider than the scale (C,) end in zeros, and so does all that is made of them.

        ``rows`` give the memory that the output and, in the backward pass, the input's gradient are written to. If
        it is wanted, a recurrent layer's state, the sigmoid of x as it is, comes second.
        """
        N = x.shape[0]
        image = x.dim() == 4
        x = x.contiguous(memory_format=torch.channels_last) if image else x.contiguous()
        C = x.shape[1] // 4 if phases else x.shape[1]
        row = x.shape[1]
        wide = scale is not None and not image and row > scale.numel()
        if wide:
            assert scale is not None
            assert bias is None
            C = scale.numel()
        P, width = 1 if wide else x[0].numel() // C, x.shape[-1]
        shape = (N, C, 2 * x.shape[2], 2 * x.shape[3]) if phases else tuple(x.shape)
        y: Tensor = rows[0].take(shape, x)
        exact = torch.promote_types(x.dtype, torch.float32)  # sums of bfloat16 numbers are float32
        mean, deviation = (torch.empty(N, device=x.device, dtype=exact) for _ in range(2))
        PB, CB = triton.next_power_of_2(P), triton.next_power_of_2(row if wide else C)
        settings = {"KIND": KINDS[kind], "BIAS": bias is not None, "AFFINE": scale is not None, "PHASES": phases,
                    "STATE": with_state, "WIDE": wide, "PB": PB, "CB": CB,
                    "num_warps": max(1, min(32, PB * CB // (512 if P == 1 else 1024)))}  # fmt: skip
        state = torch.empty_like(x) if with_state else None
        _activation_forward[(N,)](
            x, bias, scale, offset, y, state, mean, deviation, P, C, width, row, **settings, **LAUNCH
        )
        ctx.save_for_backward(x, scale, offset, bias, mean, deviation)
        ctx.tape, ctx.rows, ctx.sizes, ctx.settings = tape, rows[1], (N, P, C, width), settings
        return (y, state) if with_state else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, g_state: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """The gradient of x; the parameters' to the tape."""
        x, scale, offset, bias, mean, deviation = ctx.saved_tensors
        (N, P, C, width), settings = ctx.sizes, ctx.settings
        image = x.dim() == 4
        gradient = gradient.contiguous(memory_format=torch.channels_last) if image else gradient.contiguous()
        if g_state is not None and not (settings["WIDE"] and g_state.stride(1) == 1):
            g_state = g_state.contiguous()
        gx: Tensor = ctx.rows.take(tuple(x.shape), x)
        parts = mean.new_empty(N, 2 + (bias is not None), C) if scale is not None else gx
        CB = settings["CB"]
        whole = P == 1 or settings["PB"] * CB <= WHOLE
        if not whole:
            settings = {**settings, "PB": max(1, CHUNK // CB), "num_warps": 8}
        _activation_backward[(N,)](
            gradient, g_state, x, bias, scale, offset, mean, deviation, gx, parts, parts.shape[1], P, C, width,
            x.shape[1], 0 if g_state is None else g_state.stride(0), **settings, WHOLE=whole, **LAUNCH,
        )  # fmt: skip
        if scale is not None and ctx.tape is not None:
            ctx.tape.add(parts)
        return None, None, None, None, gx, None, None, None, None
