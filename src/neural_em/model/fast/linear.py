"""Layers that are linear in their input and in their weight, and the fast twin of the fully connected one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from neural_em.model.fast.gathering import Share, Tape


class Use(torch.autograd.Function):
    """One use of a layer: gives the gradient of its input, and leaves its parameters' to the tape."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, layer: type[Linear], x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.tape, ctx.layer = tape, layer
        ctx.save_for_backward(x, parameters[0])
        return layer.product(x, *parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.tape.add(x, gradient)
        wanted = ctx.needs_input_grad
        back = ctx.layer.transpose(gradient, weight, x) if wanted[2] else None
        return (None, None, back) + (None,) * (len(wanted) - 3)


class Linear(nn.Module):
    """A layer that is linear in its input and in its weight; subclasses say how it is applied and transposed."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        self.dtype: torch.dtype | None = None  # of activations and products, where it is not the weight's
        self.tape: Tape | None = None
        self.parts: tuple[Tensor, ...] = ()

    def prepare(self, steps: int) -> None:
        """Makes the weights ready for an unroll of so many steps."""
        self.parts = self.ready()
        self.tape = None
        if torch.is_grad_enabled() and any(part.requires_grad for part in self.parts):
            self.tape = Tape(self.gradients)
            self.parts = Share.apply(self.tape, *self.parts)

    def ready(self) -> tuple[Tensor, ...]:
        """The weight, as it is applied, and the bias."""
        return self.typed(self.weight)

    def typed(self, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        """Weight and bias, if there is one, in the type of the products; the layer's own bias if none is given."""
        parts = (weight, self.bias if bias is None else bias)
        return tuple(part.to(self.dtype or part.dtype) for part in parts if part is not None)

    def forward(self, x: Tensor) -> Tensor:
        """The layer, on the tape if there is one."""
        x = x.to(self.parts[0].dtype)
        if self.tape is None:
            return self.product(x, *self.parts)
        return Use.apply(self.tape, type(self), x, *self.parts)

    @staticmethod
    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The layer's output."""
        raise NotImplementedError

    @staticmethod
    def transpose(gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """The gradient of the input, from that of the output."""
        raise NotImplementedError

    def gradients(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """The gradients of `ready()`, from the inputs and output gradients of one step or of all."""
        raise NotImplementedError


class FastDense(Linear):
    """Fully connected."""

    @staticmethod
    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """W x + b."""
        return F.linear(x, weight, bias)

    @staticmethod
    def transpose(gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """W^T g."""
        return gradient @ weight

    def gradients(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """The sums over all samples, of one step or of all, of g x^T and g."""
        weight = long_product(gradient, x)
        return (weight,) if self.bias is None else (weight, gradient.sum(0))


def long_product(a: Tensor, b: Tensor) -> Tensor:
    """The product a^T b of (N,p) and (N,q); many short ones side by side where N is far larger than p and q."""
    N = a.shape[0]
    parts = next((parts for parts in (256, 128, 64, 32) if N % parts == 0), 1)
    if not a.is_cuda or parts == 1 or max(a.shape[1], b.shape[1]) > N // 256:
        return a.T @ b
    return torch.bmm(a.reshape(parts, -1, a.shape[1]).transpose(1, 2), b.reshape(parts, -1, b.shape[1])).sum(0)
