"""Layers that are linear in their input and in their weight, and the fast twin of the fully connected one."""

import functools
import platform
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from neural_em.model.fast.gathering import SharedParameters, StepMemory, Tape, memory_there_and_back
from neural_em.model.fast.halves import SCALE, InHalves, half, in_halves, powered, wide_product
from neural_em.model.relational import Pairs, others

ON_ARM = platform.machine() in ("aarch64", "arm64")
_PACKING = ("_reorder_linear_weight", "_linear_pointwise")
PACKS = not ON_ARM and torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, op) for op in _PACKING)
LARGE = 1 << 20  # numbers in a weight


class Twin(nn.Module):
    """The fast twin of a layer: its parameters are the plain layer's, read whenever they are made ready."""

    layer: Any  # the plain one
    ready: Callable[[], tuple[Tensor, ...]]  # the parameters as they are applied, but for their type
    gradients: Callable[..., tuple[Tensor, ...]]  # of what `ready` gave, from that and what the uses left on the tape

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        vars(self)["layer"] = layer  # not as a module: its parameters are not the twin's own
        self.held: tuple[tuple[Tensor, ...], Tape | None] | None = None  # what `made_ready` gave, during an unroll

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "held": None}  # packed weights cannot be copied; a copy reads its own at each use

    def hold(self, steps: int) -> None:
        """Makes the parameters ready for an unroll of so many steps; for none, they are made ready at each use."""
        self.held = self.made_ready() if steps else None

    def increase(self, parts: tuple[Tensor, ...], total: tuple[Tensor, ...], *left: Tensor) -> None:
        """Adds the gradients of one more use to those of others."""
        for each, part in zip(total, self.gradients(parts, *left), strict=True):
            each.add_(part)

    def made_ready(self) -> tuple[tuple[Tensor, ...], Tape | None]:
        """The parameters as they are applied, and the tape for their gradients, if those are wanted."""
        parts, dtype = self.ready(), self.applied_as()
        applied = parts if dtype is None else tuple(part.detach().to(dtype) for part in parts)
        if not torch.is_grad_enabled() or not any(part.requires_grad for part in parts):
            return applied, None
        tape = Tape(functools.partial(self.gradients, applied), functools.partial(self.increase, applied))
        return SharedParameters.apply(tape, applied, *parts), tape

    def applied_as(self) -> torch.dtype | None:
        """The type that the parameters are turned into, if that is another than their own."""
        return None


class Linear(Twin):
    """The twin of a layer that is linear in its input and in its weight; subclasses say how to apply and transpose it.

    What follows may add the bias. The tape has inputs and output gradients.
    """

    more_axes = 0  # of the input than of the weight
    product: Callable[..., Tensor]  # of an input, a weight and a bias
    transpose: Callable[..., Tensor]  # the gradient of the input, from that of the output, the weight and the input

    def __init__(self, layer: nn.Module, bias: bool = True) -> None:
        super().__init__(layer)
        self.adds_bias = bias
        self.dtype: torch.dtype | None = None  # of activations and products, where it is not the weight's

    @staticmethod
    def seen(gradient: Tensor) -> Tensor:
        """The output's gradient, as `transpose` and `gradients` read it."""
        return gradient

    def ready(self) -> tuple[Tensor, ...]:
        """The weight and the bias."""
        return self.with_bias(self.layer.weight)

    def with_bias(self, weight: Tensor, phases: int = 1) -> tuple[Tensor, ...]:
        """The weight, and the bias if it is added here, repeated for each phase."""
        if not self.adds_bias or self.layer.bias is None:
            return (weight,)
        return weight, self.layer.bias if phases == 1 else self.layer.bias.expand(phases, -1).reshape(-1)

    def applied_as(self) -> torch.dtype | None:
        return self.dtype

    def forward(self, x: Tensor) -> Tensor:
        """The layer, on the tape if there is one; an input of another number of axes goes to the plain layer."""
        if x.dim() != self.layer.weight.dim() + self.more_axes:
            return self.layer(x)
        parts, tape = self.held or self.made_ready()
        x = x.to(parts[0].dtype)
        return self.product(x, *parts) if tape is None else Use.apply(tape, type(self), x, *parts)


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
        gradient = ctx.layer.seen(gradient)
        ctx.tape.add(x, gradient)
        wanted = ctx.needs_input_grad
        back = ctx.layer.transpose(gradient, weight, x) if wanted[2] else None
        return (None, None, back) + (None,) * (len(wanted) - 3)


class FastDense(Linear):
    """Fully connected.

    Where TF32 is good enough for a large weight, and a norm keeps its input in bounds, an unroll's products are made
    from 16-bit floats, on the way there and for the weight's gradient: they are about as exact and faster.
    """

    def __init__(self, layer: nn.Module, kernels: Any, bias: bool = True, bounded: bool = False) -> None:
        super().__init__(layer, bias)
        self.kernels, self.bounded = kernels, bounded
        self.halves: Tensor | None = None  # the weight in 16 bits, during an unroll
        self.inputs = StepMemory(1)  # for these in 16 bits

    def hold(self, steps: int) -> None:
        super().hold(steps)
        self.halves, self.inputs = None, StepMemory(1)
        if self.held and self.bounded and self.dtype is None and in_halves(self.layer.weight, LARGE):
            self.halves = half(self.held[0][0], SCALE)
            self.inputs = memory_there_and_back(steps)[0]

    def forward(self, x: Tensor) -> Tensor:
        if self.halves is None or self.held is None or x.dim() != 2:
            return super().forward(x)
        parts, tape = self.held
        return InHalves.apply(tape, self.inputs, self.halves, x, *parts)

    def pack(self) -> None:
        """Puts a large weight that is held without gradients in the order in which oneDNN reads it fastest (x86)."""
        assert self.held is not None
        weight, *bias = self.held[0]
        if PACKS and weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() > LARGE:
            self.held = (torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 8), *bias), None

    @staticmethod
    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.is_mkldnn:
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
            return packed
        few = 1 < len(x) <= 64 if ON_ARM else 8 < len(x) <= 48 and weight.numel() > LARGE
        if few and bias is not None and not x.is_cuda:  # with the larger matrix first it is faster, often twice
            return torch.addmm(bias.unsqueeze(1), weight, x.T).T.contiguous()
        return F.linear(x, weight, bias)

    @staticmethod
    def transpose(gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        return gradient @ weight

    def gradients(self, parts: tuple[Tensor, ...], x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """The sums over all samples, of one step or of all, of g x^T and g."""
        if x.dtype != parts[0].dtype:  # what `InHalves` left
            gradients, power = powered(gradient)
            weight = long_product(gradients, x) * (SCALE / power)
        else:
            weight = long_product(gradient, x)
        return (weight,) if len(parts) == 1 else (weight, long_sum(gradient, self.kernels))

    def increase(self, parts: tuple[Tensor, ...], total: tuple[Tensor, ...], *left: Tensor) -> None:
        x, gradient = left
        if x.dtype != total[0].dtype:
            return super().increase(parts, total, *left)
        torch.addmm(total[0], gradient.T, x, out=total[0])
        for bias in total[1:]:
            bias.add_(gradient.sum(0))


class FastPairs(Linear):
    """Fully connected from each component and each other one: (B,K,M) to (B,K,K-1,M)."""

    more_axes = 1
    product = staticmethod(Pairs.product)

    @staticmethod
    def of_components(gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients (B,K,M) of what a component gives as itself, and as another one."""
        j = torch.arange(gradient.shape[1], device=gradient.device).unsqueeze(1)
        seen_by = others(len(j), gradient.device)  # (K,K-1): all k that see j, each at its place for j
        return gradient.sum(dim=2), gradient[:, seen_by, j - (j > seen_by).to(j.dtype)].sum(dim=2)

    @classmethod
    def transpose(cls, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        (own, other), halves = cls.of_components(gradient), weight.chunk(2, dim=1)
        return own @ halves[0] + other @ halves[1]

    def gradients(self, parts: tuple[Tensor, ...], x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        own, other = (part.flatten(0, 1) for part in self.of_components(gradient))
        x = x.flatten(0, 1)
        return torch.cat([long_product(own, x), long_product(other, x)], dim=1), own.sum(0)


class FusedPairs(Linear):
    """The same with kernels for the pairs: one product, of both halves of the weight, and no other copy of a pair."""

    more_axes = 1

    def __init__(self, layer: nn.Module, kernels: Any) -> None:
        super().__init__(layer)
        self.kernels = kernels

    def ready(self) -> tuple[Tensor, ...]:
        """The halves of the weight under each other, and the bias."""
        return self.with_bias(torch.cat(self.layer.weight.chunk(2, dim=1)))

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or not self.kernels.pairs_fit(x.shape[1], x.shape[2]):
            return self.layer(x.to(self.layer.weight.dtype)).to(x.dtype)
        parts, tape = self.held or self.made_ready()
        return JoinedPairs.apply(self.kernels, tape, x.to(parts[0].dtype), *parts)

    def gradients(self, parts: tuple[Tensor, ...], x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        return long_product(gradient, x), long_sum(gradient[:, : x.shape[1]], self.kernels)


class JoinedPairs(torch.autograd.Function):
    """One use of fused pairs."""

    @staticmethod
    def forward(ctx: Any, kernels: Any, tape: Tape | None, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.kernels, ctx.tape = kernels, tape
        ctx.save_for_backward(x, weight)
        pairs: Tensor = kernels.join(x @ weight.T, bias)
        return pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        halves = ctx.kernels.part(gradient)
        if ctx.tape is not None:
            ctx.tape.add(x.flatten(0, 1), halves.flatten(0, 1))
        return None, None, halves @ weight, None, None


def constant(table: Any, like: Tensor) -> Tensor:
    """The table as a tensor, of the type and on the device of ``like``."""
    with torch.inference_mode(False):  # what is made in that mode cannot be trained with
        return torch.tensor(table, dtype=like.dtype, device=like.device)


def long_product(a: Tensor, b: Tensor) -> Tensor:
    """The product a^T b of (N,p) and (N,q); many short ones side by side where N is far larger than p and q."""
    N = a.shape[0]
    parts = next((parts for parts in (256, 128, 64, 32) if N % parts == 0), 1)
    if not a.is_cuda or parts == 1 or max(a.shape[1], b.shape[1]) > N // 256:
        return wide_product(a.T, b)
    a, b = (each.reshape(parts, -1, each.shape[1]) for each in (a, b))
    return wide_product(a.transpose(1, 2), b).sum(0)


def long_sum(x: Tensor, kernels: Any) -> Tensor:
    """The sum of (N,p) over N; of bfloat16 numbers in float32."""
    return kernels.column_sums(x) if kernels else x.sum(0)
