"""Large products in 16-bit floats, where TF32 is good enough: they have as many bits, and products are faster."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.model.fast.gathering import StepMemory, Tape
from neural_em.model.fast.graphs import products

SCALE = 16.0  # of a weight; its input is divided by it: weights to 4,000, inputs to a million


class InHalves(torch.autograd.Function):
    """One use of a fully connected layer in 16-bit floats, which sums in float32; the input's gradient is as usual."""

    @staticmethod
    def forward(
        ctx: Any, tape: Tape | None, seen: StepMemory, halves: Tensor, x: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.tape, (weight, *bias) = tape, parameters
        kept = seen.take(tuple(x.shape), halves)
        half(x, 1 / SCALE, kept.data)  # written apart: what other steps keep in this memory must not seem changed
        ctx.save_for_backward(kept, weight)
        y = wide_product(kept, halves.T)
        return y + bias[0] if bias else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if ctx.tape is not None:
            ctx.tape.add(x, gradient)
        wanted = ctx.needs_input_grad
        back = gradient @ weight if wanted[3] else None
        return (None, None, None, back) + (None,) * (len(wanted) - 4)


def in_halves(weight: Tensor, least: int) -> bool:
    """Whether its products are made from 16-bit floats: of no fewer than so many numbers, on a GPU in TF32."""
    large = weight.is_cuda and weight.dtype == torch.float32 and weight.numel() >= least
    allowed = large and not torch.version.hip and products()[0] == "tf32"
    return allowed and torch.cuda.get_device_capability(weight.device) >= (8, 0)  # older ones have no TF32


def half(x: Tensor, factor: float | Tensor, out: Tensor | None = None) -> Tensor:
    """A multiple of x in 16 bits."""
    return torch.mul(x.detach(), factor, out=torch.empty_like(x, dtype=torch.float16) if out is None else out)


def powered(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """A gradient in 16 bits, and the power of two that brings it into their small range."""
    largest = torch.linalg.vector_norm(gradient, torch.inf)
    power = torch.exp2((14 - torch.frexp(largest).exponent.clamp(-80, 128)).to(largest.dtype))
    return half(gradient, power), power


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices, or of many; of 16-bit numbers in float32."""
    if a.dtype.itemsize > 2:
        return a @ b
    if not a.is_cuda:
        return a.float() @ b.float()
    return torch.mm(a, b, torch.float32) if a.dim() == 2 else torch.bmm(a, b, torch.float32)
