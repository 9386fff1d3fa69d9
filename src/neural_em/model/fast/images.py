"""Chains of fast layers whose images are small enough to stay on one multiprocessor of a GPU from end to end."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neural_em.model.fast.activation import FastActivation
from neural_em.model.fast.convolutions import FastConvolution, FastFirst, FastLast, FastUpConvolution
from neural_em.model.fast.gathering import StepMemory, memory_there_and_back

ENCODER = (FastFirst, FastActivation, FastConvolution, FastActivation)
DECODER = (FastUpConvolution, FastActivation, FastLast)


class FastImages(nn.Sequential):
    """The outer two convolutions and activations of an encoder or of a decoder as one kernel each way.

    The layers keep their parameters, tapes and memory, and are used one by one for what the kernels are not made for.
    """

    def __init__(self, layers: Sequence[nn.Module], kernels: Any) -> None:
        super().__init__(*layers)
        self.kernels, self.encodes = kernels, len(layers) == len(ENCODER)
        self.packed: Any = None  # the weights as the kernels read them, during an unroll
        self.seen = StepMemory(1)  # for what a decoder reads

    def hold(self, steps: int) -> None:
        """Forgets the weights, which the layers' own `hold` may have changed; makes room for what a decoder reads."""
        self.packed, self.seen = None, memory_there_and_back(max(steps, 1))[0]

    @property
    def dtype(self) -> torch.dtype:
        """Of the products."""
        first: Any = self[0]
        dtype: torch.dtype = first.dtype or first.layer.weight.dtype
        return dtype

    def fits(self, x: Tensor) -> bool:
        """Whether x (N,C,H,W), the layers as they are now and the GPU are what the kernels are made for."""
        images = self.kernels.images
        types = (torch.float32,) if self.encodes else (torch.float32, self.dtype)
        if not suits(list(self), images, self.encodes) or x.dtype not in types or x.dim() != 4 or not len(x):
            return False
        channels, side = (1, x.shape[2] // 4) if self.encodes else (images.SMALL, x.shape[2])
        size = (channels, 4 * side, 4 * side) if self.encodes else (channels, side, side)
        if x.shape[1:] != size or not 0 < side <= images.LARGEST:
            return False
        usable: bool = images.usable(x.device, self.dtype, self.encodes, side, len(x))
        return usable

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,C,H,W), at once or layer by layer."""
        if not self.fits(x):
            return super().forward(x)
        layers, images = list[Any](self), self.kernels.images
        function = images.ThroughEncoder if self.encodes else images.ThroughDecoder
        held = [layer.held or layer.made_ready() for layer in layers]
        parameters = [part for parts, _ in held for part in parts]
        norms = [layer for layer in layers if isinstance(layer, FastActivation)]
        weights = self.packed
        if weights is None:
            as_they_are = [parts[0] for layer, (parts, _) in zip(layers, held, strict=True) if layer not in norms]
            weights = self.kernels.packed(function.places, images.operands(self.dtype), *as_they_are)
        if layers[0].held:
            self.packed = weights
        rows = tuple(layer.rows or layer.memory(1) for layer in norms)
        kept = torch.is_grad_enabled() and any(each.requires_grad for each in (x, *parameters))
        used = images.Layers(weights, self.dtype, self.seen, tuple(tape for _, tape in held), rows, kept)
        y: Tensor = function.apply(used, x, *parameters)
        return y


def chain(layers: Sequence[Any], kernels: Any) -> nn.Sequential:
    """Fast layers one after another; as one what an encoder begins or a decoder ends with, if there are kernels."""
    first, last = layers[: len(ENCODER)], layers[-len(DECODER) :]
    if kernels and suits(first, kernels.images, True):
        layers = [FastImages(first, kernels), *layers[len(ENCODER) :]]
    elif kernels and suits(last, kernels.images, False):
        layers = [*layers[: -len(DECODER)], FastImages(last, kernels)]
    return nn.Sequential(*layers)


def suits(layers: Sequence[Any], images: Any, encodes: bool) -> bool:
    """Whether the kernels are made for these layers: their types, weights, norms and non-linearity."""
    if tuple(type(layer) for layer in layers) != (ENCODER if encodes else DECODER):
        return False
    weights, middle, small = [layer.layer.weight for layer in layers[::2]], images.MIDDLE, images.SMALL
    ends = [(middle, 1), (small, middle)] if encodes else [(middle, small), (1, middle)]
    vectors = [(each.layer.scale, each.layer.offset, each.before.bias) for each in layers[1::2]]
    return (
        all(weight.dtype == torch.float32 for weight in weights)
        and [tuple(weight.shape) for weight in weights] == [(*size, 4, 4) for size in ends]
        and all(part is not None for each in vectors for part in each)
        and all(each.layer.kind == ("elu" if encodes else "relu") for each in layers[1::2])
    )
