"""The fast twin of layer norm and non-linearity."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from neural_em.model.fast.convolutions import interleave
from neural_em.model.fast.gathering import StepMemory, memory_there_and_back
from neural_em.model.fast.linear import Twin, long_sum
from neural_em.model.networks import EPSILON, Activation, Dense, UpConvolution, activate


class Elu(torch.autograd.Function):
    """By exp, which on ARM takes little more than half of the time of PyTorch's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = torch.maximum(x, x.clamp(max=0).exp_().sub_(1))
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.ops.aten.elu_backward(gradient, 1, 1, 1, True, *ctx.saved_tensors)


def elu(x: Tensor) -> Tensor:
    """On a GPU in place; half precision is too coarse for exp."""
    return F.elu_(x) if x.is_cuda or x.dtype.itemsize < 4 else Elu.apply(x)


# their gradients need the result only
ACTIVATIONS = {"elu": elu, "relu": F.relu_, "sigmoid": torch.sigmoid_, "tanh": torch.tanh_}


class FastActivation(Twin):
    """The twin of an activation: one kernel where there are kernels.

    The phases of an up-convolution before it are put in place here; the kernel also adds the bias of what is before it.
    """

    before: Any  # the plain layer before it, if that is a known linear one

    def __init__(self, layer: Activation, kernels: Any, before: nn.Module | None) -> None:
        super().__init__(layer)
        vars(self)["before"] = before
        self.kernels, self.phases = kernels, type(before) is UpConvolution
        self.adds_bias = absorbs(layer, before, kernels)
        self.rows: tuple[StepMemory, ...] | None = None  # memory for what the kernels make in an unroll

    def hold(self, steps: int) -> None:
        super().hold(steps if self.kernels else 0)
        self.rows = self.memory(steps) if steps else None

    @staticmethod
    def memory(steps: int) -> tuple[StepMemory, ...]:
        """For outputs, and for the gradients of inputs and of parameters."""
        there, back = memory_there_and_back(steps)
        return there, back, memory_there_and_back(steps)[1]

    def ready(self) -> tuple[Tensor, ...]:
        """Scale, offset and bias."""
        bias = self.before.bias if self.adds_bias else None
        return tuple(part for part in (self.layer.scale, self.layer.offset, bias) if part is not None)

    def gradients(self, parts: tuple[Tensor, ...], each: Tensor) -> tuple[Tensor, ...]:
        """The sums over all samples' parts (N,3,C)."""
        return tuple(long_sum(each.flatten(1), self.kernels).view(each.shape[1:]))

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,C) or (N,C,H,W); what else an activation may be given is left to the plain one."""
        if x.dim() not in ((2,) if type(self.before) is Dense else (2, 4)):
            return self.layer(x)
        return self.fused(x) if self.fits(x) else self.plain(x)

    def with_state(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of (N,C), a recurrent layer's: what it gives, and its next state, the sigmoid of x."""
        return self.fused(x, True) if x.dim() == 2 and self.fits(x) else (self(x), torch.sigmoid(x))

    def fits(self, x: Tensor) -> bool:
        """Whether there is a kernel for x."""
        return bool(self.kernels and self.layer.scale is not None and self.kernels.row_fits(x, self.phases))

    def fused(self, x: Tensor, with_state: bool = False) -> Any:
        """Of x, in one kernel; see `kernels.Activation`."""
        parts, tape = self.held or self.made_ready()
        rows = self.rows or self.memory(1)
        given = (x, *parts, None)[:4]  # scale, offset, and the bias if it is added here
        return self.kernels.Activation.apply(tape, rows, self.layer.kind, self.phases, *given, with_state)

    def plain(self, x: Tensor) -> Tensor:
        """The same with PyTorch's own layer norm, whose scales are one for each number of a sample."""
        scale, offset, kind = self.layer.scale, self.layer.offset, self.layer.kind
        if scale is not None and x.dtype != scale.dtype:
            return self.plain(x.to(scale.dtype)).to(x.dtype)
        x = interleave(x) if self.phases else x
        bias = self.before.bias if self.adds_bias else None
        x = x if bias is None else x + bias.reshape(-1, *(1,) * (x.dim() - 2))
        if scale is None or offset is None:
            return activate(x, None, None, kind)
        rows = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
        scale, offset = (part.expand(rows.shape[1:]) for part in (scale, offset))
        rows = ACTIVATIONS[kind](F.layer_norm(rows, rows.shape[1:], scale, offset, EPSILON))
        return rows.permute(0, 3, 1, 2) if x.dim() == 4 else rows


def absorbs(layer: Activation, before: nn.Module | None, kernels: Any) -> bool:
    """Whether the bias of the layer before it is added in the activation's kernel."""
    return before is not None and before.bias is not None and kernels is not None and layer.scale is not None
