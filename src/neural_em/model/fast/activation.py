"""The fast twin of layer norm and non-linearity."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_em.model.fast.convolutions import interleave
from neural_em.model.fast.gathering import Rows, Share, Tape, both_ways
from neural_em.model.networks import EPSILON, Activation, activate

IN_PLACE = {"elu": F.elu_, "relu": F.relu_, "sigmoid": torch.sigmoid_}  # their gradients need the result only


class FastActivation(nn.Module):
    """Bias and phases of the convolution before it, layer norm, non-linearity: one kernel where there are kernels."""

    def __init__(self, layer: Activation, kernels: Any, bias: nn.Parameter | None, phases: bool) -> None:
        super().__init__()
        self.kind, self.scale, self.offset, self.bias = layer.kind, layer.scale, layer.offset, bias
        self.kernels, self.phases = kernels, phases
        self.tape: Tape | None = None
        self.rows = (Rows(1), Rows(1))
        self.parts: tuple[Tensor, ...] = ()

    def prepare(self, steps: int) -> None:
        """Makes the parameters ready for an unroll of so many steps."""
        self.rows = both_ways(steps)
        self.parts = tuple(part for part in (self.scale, self.offset, self.bias) if part is not None)
        self.tape = None
        if self.kernels and self.scale is not None and torch.is_grad_enabled() and self.scale.requires_grad:
            self.tape = Tape(lambda parts: tuple(parts.sum(dim=0)))
            self.parts = Share.apply(self.tape, *self.parts)

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,C) or (N,C,H,W)."""
        if not self.kernels or self.scale is None or not self.kernels.row_fits(x, self.phases):
            return self.plain(x)
        scale, offset, bias = (*self.parts, None)[:3]
        return self.kernels.Activation.apply(self.tape, self.rows, self.kind, self.phases, x, scale, offset, bias)

    def plain(self, x: Tensor) -> Tensor:
        """The same with PyTorch's own layer norm, whose scales are one for each number of a sample."""
        if self.scale is not None and x.dtype != self.scale.dtype:
            return self.plain(x.to(self.scale.dtype)).to(x.dtype)
        x = interleave(x) if self.phases else x
        x = x if self.bias is None else x + self.bias.reshape(-1, 1, 1)
        if self.scale is None or self.offset is None:
            return activate(x, None, None, self.kind)
        rows = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
        pixels = rows[0].numel() // rows.shape[-1]
        scale, offset = (part.repeat(pixels).reshape(rows.shape[1:]) for part in (self.scale, self.offset))
        rows = IN_PLACE[self.kind](F.layer_norm(rows, rows.shape[1:], scale, offset, EPSILON))
        return rows.permute(0, 3, 1, 2) if x.dim() == 4 else rows
