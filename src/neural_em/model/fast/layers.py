"""Which fast layer stands for which plain one, by what comes before and after it.

What is not known here, by its very class, stays as it is: a layer made from one of the package's, a layer with hooks.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from neural_em.errors import NeuralEMError
from neural_em.model.fast.activation import ACTIVATIONS, FastActivation, absorbs
from neural_em.model.fast.convolutions import (
    FastConvolution,
    FastDifferences,
    FastFirst,
    FastFolded,
    FastLast,
    FastPatches,
    FastUpConvolution,
)
from neural_em.model.fast.images import chain
from neural_em.model.fast.linear import FastDense, FastPairs, FusedPairs, Linear
from neural_em.model.m_step import GradientMStep, differentiated_twice
from neural_em.model.networks import Activation, Convolution, Decoder, Dense, Encoder, UpConvolution
from neural_em.model.relational import Interaction, Pairs

NETWORKS = (nn.Sequential, Encoder, Decoder, Interaction)
# what a module can have beyond its class: hooks, and a function of its own in place of its class's
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "forward")


class FastGradientMStep(GradientMStep):
    """N-EM with the closed form of the pullback through the paper's decoder, a single layer."""

    def pullback(self, theta: Tensor, delta: Tensor) -> Tensor:
        """s(theta) (1 - s(theta)) * W^T delta."""
        s = torch.sigmoid(theta)
        delta = delta.permute(0, 2, 3, 1).flatten(1)
        dense: Any = self.decoder.dense[0]
        return s * (1 - s) * (delta @ dense.layer.weight)


class FastInteraction(Interaction):
    """Components that see each other, with a kernel for what each heeds."""

    kernels: Any

    def forward(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The attention that is given back is empty where no hook may read it: nothing else on the fast path does."""
        B, K, M = theta.shape
        if self.attend is None or self._forward_hooks or not self.kernels.pairs_fit(K, M):
            return super().forward(theta)
        encoded = self.encode(theta.reshape(B * K, M)).view(B, K, M)
        core = self.core(self.pair(encoded).flatten(0, 2))
        effect = self.kernels.Heeded.apply(self.effect(core).view(B, K, K - 1, M), self.attend(core).view(B, K, K - 1))
        return encoded, effect, theta.new_empty(B, K, 0)


def as_built(module: object, *classes: type) -> bool:
    """Whether it is of one of these very classes, and nothing was hooked to it or put in place of its `forward`."""
    return type(module) in classes and not any(vars(module).get(name) for name in _HOOKS)


def known(layer: object) -> bool:
    """Whether there is a fast twin of the layer."""
    if as_built(layer, Activation):
        return layer.kind in ACTIVATIONS  # type: ignore[attr-defined]
    return as_built(layer, Dense, Pairs, Convolution, UpConvolution)


def fast_m_step(m_step: Any, kernels: Any, dtype: torch.dtype | None) -> nn.Module:
    """The M-step with fast layers in place of those that are known, or itself."""
    fast: nn.Module = m_step
    if as_built(m_step, GradientMStep) and single_layer(m_step.decoder):
        fast = with_fast_layers(m_step, kernels)
        fast.__class__ = FastGradientMStep
    elif as_built(m_step, type(m_step)) and not differentiated_twice(m_step):
        fast = with_fast_layers(m_step, kernels)
    if dtype is not None and any(list(child.parameters()) for child in fast.children()):  # fast ones have none
        raise NeuralEMError(f"dtype={dtype} is not for a model that keeps some of its plain layers")
    for each in fast.modules() if kernels else ():
        if isinstance(each, Linear):
            each.dtype = dtype
    return fast


def single_layer(decoder: Any) -> bool:
    """Whether it is the paper's decoder of N-EM, whose pullback can be written down."""
    if not as_built(decoder, Decoder) or not as_built(decoder.dense, nn.Sequential):
        return False
    last = as_built(decoder.convolutions, nn.Sequential) and not len(decoder.convolutions)
    return last and len(decoder.dense) == 1 and as_built(decoder.dense[0], Dense)


def with_fast_layers(module: nn.Module, kernels: Any) -> nn.Module:
    """A copy of the module, on the same parameters, with fast layers below it."""
    twin, features = copy.copy(module), last(module.convolutions) if type(module) is Encoder else None
    twin._modules = {
        name: replacement(child, kernels, features if name == "hidden" else None)
        for name, child in module._modules.items()
    }
    if kernels and type(module) is Interaction:
        vars(twin)["kernels"], twin.__class__ = kernels, FastInteraction
    return twin


def last(layers: Any) -> Any:
    """The activation that a chain ends with, if it does."""
    layer = layers[-1] if as_built(layers, nn.Sequential) and len(layers) else None
    return layer if type(layer) is Activation and known(layer) else None


def replacement(module: Any, kernels: Any, before: Any = None, after: Any = None) -> Any:
    """The fast twin of a layer, of a chain or of a network of these; of anything else, the module itself.

    In a chain a layer may share work with a known neighbour. Of what comes before a chain, only an activation counts,
    which keeps its output in bounds.
    """
    if known(module):
        return twin_of(module, before, after, kernels)
    if as_built(module, nn.Sequential):
        around = [
            before if type(before) is Activation else None,
            *(layer if known(layer) else None for layer in module),
            None,
        ]
        return chain([replacement(layer, kernels, around[i], around[i + 2]) for i, layer in enumerate(module)], kernels)
    return with_fast_layers(module, kernels) if as_built(module, *NETWORKS) else module


def twin_of(layer: Any, before: Any, after: Any, kernels: Any) -> nn.Module:
    """The fast twin of a known layer, by what comes before and after it, as far as that is known."""
    if type(layer) is Pairs:
        return FusedPairs(layer, kernels) if kernels else FastPairs(layer)
    if type(layer) is Activation:
        return FastActivation(layer, kernels, before if type(before) in (Dense, Convolution, UpConvolution) else None)
    followed, up = type(after) is Activation, type(layer) is UpConvolution
    absorbed = followed and absorbs(after, layer, kernels)
    if type(layer) is Dense:
        return FastDense(layer, kernels, not absorbed, type(before) is Activation and before.scale is not None)
    if kernels and up and not followed and layer.weight.shape[0] <= kernels.CHANNELS:
        return FastLast(layer, kernels)
    if absorbed and not up and before is None and layer.weight.shape[1] <= kernels.CHANNELS:
        return FastFirst(layer, kernels)
    if not kernels and not up and layer.weight.shape[1] == 1:
        return FastPatches(layer)
    on_arm = FastConvolution.by_products and not layer.weight.is_cuda
    if not kernels and on_arm and up and not followed and layer.weight.shape[0] == 1:
        return FastFolded(layer)
    if not kernels and on_arm and up and followed:
        return FastDifferences(layer, True, False)
    return FastUpConvolution(layer, not absorbed, not followed) if up else FastConvolution(layer, not absorbed)
