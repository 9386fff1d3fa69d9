"""The fast twin of layer norm and non-linearity."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_em.model.fast.convolutions import interleave
from neural_em.model.fast.gathering import SharedParameters, StepMemory, Tape, memory_there_and_back
from neural_em.model.networks import EPSILON, Activation, UpConvolution, activate

Ready = tuple[tuple[Tensor, ...], Tape | None, tuple[StepMemory, StepMemory]]
# their gradients need the result only
IN_PLACE = {"elu": F.elu_, "relu": F.relu_, "sigmoid": torch.sigmoid_, "tanh": torch.tanh_}


class FastActivation(nn.Module):
    """The twin of an activation: one kernel where there are kernels.

    The phases of an up-convolution before it are put in place here; the kernel also adds a convolution's bias.
    """

    layer: Any  # the plain one
    before: Any  # the plain convolution before it

    def __init__(self, layer: Activation, kernels: Any, before: nn.Module | None) -> None:
        super().__init__()
        vars(self).update(layer=layer, before=before)  # not as modules: their parameters are not the twin's own
        self.kernels, self.phases = kernels, type(before) is UpConvolution
        self.adds_bias = absorbs(layer, before, kernels)
        self.held: Ready | None = None  # what `made_ready` gave, during an unroll

    def hold(self, steps: int) -> None:
        """Makes the kernels' parameters ready for an unroll of so many steps; for none, they are so at each use."""
        self.held = self.made_ready(steps) if self.kernels and steps else None

    def made_ready(self, steps: int = 1) -> Ready:
        """Scale, offset and bias, the tape for their gradients, if those are wanted, and memory for all steps."""
        bias, tape = self.before.bias if self.adds_bias else None, None
        parts = tuple(part for part in (self.layer.scale, self.layer.offset, bias) if part is not None)
        if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
            tape = Tape(lambda each: tuple(each.sum(dim=0)))
            parts = SharedParameters.apply(tape, *parts)
        return parts, tape, memory_there_and_back(steps)

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,C) or (N,C,H,W); what else an activation may be given is left to the plain one."""
        if x.dim() not in (2, 4):
            return self.layer(x)
        if not self.kernels or self.layer.scale is None or not self.kernels.row_fits(x, self.phases):
            return self.plain(x)
        parts, tape, rows = self.held or self.made_ready()
        scale, offset, bias = (*parts, None)[:3]
        return self.kernels.Activation.apply(tape, rows, self.layer.kind, self.phases, x, scale, offset, bias, False)

    def with_state(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of (N,C), a recurrent layer's: what it gives, and its next state, the sigmoid of x."""
        if not self.kernels or self.layer.scale is None or x.dim() != 2 or not self.kernels.row_fits(x, False):
            return self(x), torch.sigmoid(x)
        (scale, offset, *_), tape, rows = self.held or self.made_ready()
        y, state = self.kernels.Activation.apply(tape, rows, self.layer.kind, False, x, scale, offset, None, True)
        return y, state

    def plain(self, x: Tensor) -> Tensor:
        """The same with PyTorch's own layer norm, whose scales are one for each number of a sample."""
        scale, offset, kind = self.layer.scale, self.layer.offset, self.layer.kind
        if scale is not None and x.dtype != scale.dtype:
            return self.plain(x.to(scale.dtype)).to(x.dtype)
        x = interleave(x) if self.phases else x
        x = x + self.before.bias.reshape(-1, 1, 1) if self.adds_bias else x
        if scale is None or offset is None:
            return activate(x, None, None, kind)
        rows = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
        pixels = rows[0].numel() // rows.shape[-1]
        scale, offset = (part.repeat(pixels).reshape(rows.shape[1:]) for part in (scale, offset))
        rows = IN_PLACE[kind](F.layer_norm(rows, rows.shape[1:], scale, offset, EPSILON))
        return rows.permute(0, 3, 1, 2) if x.dim() == 4 else rows


def absorbs(layer: Activation, before: nn.Module | None, kernels: Any) -> bool:
    """Whether the bias of the convolution before it is added in the activation's kernel."""
    return before is not None and kernels is not None and layer.scale is not None
