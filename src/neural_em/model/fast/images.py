"""Chains of fast layers whose images are small enough to stay on one multiprocessor of a GPU from end to end."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neural_em.model.fast.activation import FastActivation
from neural_em.model.fast.convolutions import FastConvolution, FastFirst, FastLast, FastUpConvolution

ENCODER = (FastFirst, FastActivation, FastConvolution, FastActivation)
DECODER = (FastUpConvolution, FastActivation, FastLast)


class FastImages(nn.Sequential):
    """The outer two convolutions and activations of an encoder or of a decoder as one kernel each way.

    The layers keep their parameters, tapes and memory, and are used one by one for what the kernels are not made for.
    """

    def __init__(self, layers: Sequence[nn.Module], kernels: Any) -> None:
        super().__init__(*layers)
        self.kernels, self.encodes = kernels.images, len(layers) == len(ENCODER)
        self.packed: tuple[Tensor, ...] | None = None  # the weights as the kernels read them, during an unroll

    def hold(self, steps: int) -> None:
        """Forgets the weights, which the layers' own `hold` may have changed."""
        self.packed = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the products."""
        first: Any = self[0]
        dtype: torch.dtype = first.dtype or first.layer.weight.dtype
        return dtype

    def fits(self, x: Tensor) -> bool:
        """Whether x (N,C,H,W), the type of the products and the GPU are what the kernels are made for."""
        first: Any = self[0]
        types = (torch.float32,) if self.encodes else (torch.float32, self.dtype)
        if first.layer.weight.dtype != torch.float32 or x.dtype not in types or x.dim() != 4 or not len(x):
            return False
        channels, side = (1, x.shape[2] // 4) if self.encodes else (self.kernels.SMALL, x.shape[2])
        size = (channels, 4 * side, 4 * side) if self.encodes else (channels, side, side)
        if x.shape[1:] != size or not 0 < side <= self.kernels.LARGEST:
            return False
        usable: bool = self.kernels.usable(x.device, self.dtype, self.encodes, side, len(x))
        return usable

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,C,H,W), at once or layer by layer."""
        if not self.fits(x):
            return super().forward(x)
        layers: Any = list(self)
        held = [layer.held or layer.made_ready() for layer in layers]
        parameters = [part for parts, _ in held for part in parts]
        function = self.kernels.ThroughEncoder if self.encodes else self.kernels.ThroughDecoder
        weights = self.packed or self.kernels.packed(function.places, self.dtype, held[0][0][0], held[2][0][0])
        if layers[0].held:
            self.packed = weights
        rows = tuple(layer.rows or layer.memory(1) for layer in layers[1::2])
        kept = torch.is_grad_enabled() and any(each.requires_grad for each in (x, *parameters))
        used = self.kernels.Layers(weights, tuple(tape for _, tape in held), rows, kept)
        y: Tensor = function.apply(used, x, *parameters)
        return y


def chain(layers: Sequence[Any], kernels: Any) -> nn.Sequential:
    """Fast layers one after another; as one what an encoder begins or a decoder ends with, if there are kernels."""
    if kernels:
        middle, small = kernels.images.MIDDLE, kernels.images.SMALL
        first, last = layers[: len(ENCODER)], layers[-len(DECODER) :]
        if _made_of(first, ENCODER, "elu", [(middle, 1), (small, middle)]):
            layers = [FastImages(first, kernels), *layers[len(ENCODER) :]]
        elif _made_of(last, DECODER, "relu", [(middle, small), (1, middle)]):
            layers = [*layers[: -len(DECODER)], FastImages(last, kernels)]
    return nn.Sequential(*layers)


def _made_of(layers: Sequence[Any], kinds: tuple[type, ...], kind: str, sizes: list[tuple[int, int]]) -> bool:
    """Whether these are such layers, normalised, with weights of these sizes."""
    if tuple(type(layer) for layer in layers) != kinds:
        return False
    norms = all(each.layer.kind == kind and each.layer.scale is not None for each in layers[1::2])
    return norms and [tuple(layer.layer.weight.shape[:2]) for layer in layers[::2]] == sizes
