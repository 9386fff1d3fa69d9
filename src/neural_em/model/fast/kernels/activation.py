"""Bias, layer norm, scale and offset, non-linearity: one kernel each way."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.networks import EPSILON

LARGEST = 32768  # numbers of one sample that one program can hold
_EPSILON = tl.constexpr(EPSILON)
ELU, RELU, SIGMOID = (tl.constexpr(i) for i in range(3))
TANH = tl.constexpr(4)
KINDS = {"elu": 0, "relu": 1, "sigmoid": 2, "identity": 3, "tanh": 4}


def row_fits(x: Tensor, phases: bool) -> bool:
    """Whether a sample of x (N,C) or (N,C,H,W) is small enough for these kernels."""
    C = x.shape[1] // 4 if phases else x.shape[1]
    return triton.next_power_of_2(C) * triton.next_power_of_2(x[0].numel() // C) <= LARGEST


@triton.jit
def _places(P, C, WIDTH, PB: tl.constexpr, CB: tl.constexpr, PHASES: tl.constexpr):
    """Where a tile (PB,CB) of one sample lies in the input, and where in the output, whose phases are interleaved."""
    p = tl.arange(0, PB)[:, None]
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
    source, target, c, inside = _places(P, C, WIDTH, PB, CB, PHASES)
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
        z = tl.where(z < 0, 0.0, z)  # not a number stays that
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
def _activation_backward(
    gradient, g_state, x, bias, scale, offset, mean, deviation, gx, parts, G, S, R, P, C, WIDTH,
    KIND: tl.constexpr, BIAS: tl.constexpr, AFFINE: tl.constexpr, PHASES: tl.constexpr, STATE: tl.constexpr,
    PB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    source, target, c, inside = _places(P, C, WIDTH, PB, CB, PHASES)
    v = tl.load(x + n * P * C + source, mask=inside, other=0.0).to(mean.dtype.element_ty)
    if BIAS:
        v += tl.load(bias + c, mask=c < C, other=0.0)
    r = tl.load(deviation + n)
    h = tl.where(inside, (v - tl.load(mean + n)) * r, 0.0)
    z = h
    if AFFINE:
        s = tl.load(scale + c, mask=c < C, other=0.0)
        z = h * s + tl.load(offset + c, mask=c < C, other=0.0)
    g = tl.load(gradient + n * G + target, mask=inside, other=0.0).to(mean.dtype.element_ty)
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
    channel = tl.arange(0, CB)
    along, total = tl.sum(g * h, axis=0), tl.sum(g, axis=0)
    if AFFINE:  # this sample's part of the gradients of scale and offset
        tl.store(parts + n * R * C + channel, along, mask=channel < C)
        tl.store(parts + (n * R + 1) * C + channel, total, mask=channel < C)
        each = tl.load(scale + channel, mask=channel < C, other=0.0)
        along, total, g = along * each, total * each, g * s
    a, b = tl.sum(total, axis=0) / (P * C), tl.sum(along, axis=0) / (P * C)
    g = tl.where(inside, (g - a - h * b) * r, 0.0)
    if STATE:
        state = 1.0 / (1.0 + tl.exp(-v))
        g += tl.load(g_state + n * S + source, mask=inside, other=0.0).to(g.dtype) * state * (1.0 - state)
    tl.store(gx + n * P * C + source, g, mask=inside)
    if BIAS:
        tl.store(parts + (n * R + 2) * C + channel, tl.sum(g, axis=0), mask=channel < C)


class Activation(torch.autograd.Function):
    """Bias, layer norm, affine, non-linearity of images in channels-last memory, or of vectors.

    The parameters' gradients go to a tape, each sample's part on its own (N,3,C): scale, offset, bias.
    """

    @staticmethod
    def forward(ctx: Any, tape: Any, rows: tuple[Any, ...], kind: str, phases: bool, x: Tensor, scale: Tensor | None,
                offset: Tensor | None, bias: Tensor | None, with_state: bool) -> Any:  # fmt: skip
        """Of x (N,C) or (N,C,H,W); with phases, of (N,4*C,H,W) whose channels are (2,2,C), to (N,C,2H,2W).

        ``rows`` give the memory that the output and, in the backward pass, the gradients of the input and of the
        parameters are written to. If it is wanted, a recurrent layer's state, the sigmoid of x as it is, comes second.
        """
        N = x.shape[0]
        x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()
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
        ctx.tape, ctx.rows, ctx.sizes, ctx.settings = tape, rows[1:], (N, P, C, width), settings
        return (y, state) if with_state else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, g_state: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """The gradient of x; the parameters' to the tape."""
        x, scale, offset, bias, mean, deviation = ctx.saved_tensors
        N, P, C, width = ctx.sizes
        gradient, g_state = _rows(gradient), None if g_state is None else _rows(g_state)
        gx: Tensor = ctx.rows[0].take(tuple(x.shape), x)
        like = mean if P > 1 else x  # a vector has as many parts as numbers: they may be as coarse
        parts = gx if scale is None else ctx.rows[1].take((N, 2 + (bias is not None), C), like)
        _activation_backward[(N,)](
            gradient, g_state, x, bias, scale, offset, mean, deviation, gx, parts,
            gradient.stride(0), 0 if g_state is None else g_state.stride(0), parts.shape[1], P, C, width,
            **ctx.settings,
        )  # fmt: skip
        if scale is not None and ctx.tape is not None:
            ctx.tape.add(parts)
        return None, None, None, None, gx, None, None, None, None


def _rows(x: Tensor) -> Tensor:
    """Each sample in one piece: images with their channels last, vectors as they are if they lie in longer rows."""
    if x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x if x.stride(1) == 1 else x.contiguous()
