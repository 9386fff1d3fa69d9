"""The fast twin of a whole model: fast layers in place of the plain ones, fused E-step and losses on a GPU."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neural_em.errors import refuse
from neural_em.model.em import Info, NeuralEM, State, Unrolled
from neural_em.model.fast import closed_form
from neural_em.model.fast.activation import FastActivation
from neural_em.model.fast.convolutions import (
    FastConvolution,
    FastFirst,
    FastLast,
    FastOutput,
    FastPatches,
    FastUpConvolution,
)
from neural_em.model.fast.gathering import Rows, both_ways
from neural_em.model.fast.linear import FastDense, Linear
from neural_em.model.m_step import GradientMStep
from neural_em.model.networks import Activation, Convolution, Dense, UpConvolution


class FastGradientMStep(GradientMStep):
    """N-EM with the closed form of the pullback through the paper's decoder, a single layer."""

    def pullback(self, theta: Tensor, delta: Tensor) -> Tensor:
        """s(theta) (1 - s(theta)) * W^T delta."""
        s = torch.sigmoid(theta)
        delta = delta.permute(0, 2, 3, 1).flatten(1)
        return s * (1 - s) * (delta @ self.decoder.dense.get_parameter("0.weight"))


class FastNeuralEM(NeuralEM):
    """A model with fast layers in place of the plain ones, on the same parameters.

    Args:
        model: the plain one.
        dtype: of the networks' activations and products on a GPU; that of the parameters where it is not given.
            Differences, E-step, losses and all sums keep the parameters' type.
    """

    def __init__(self, model: NeuralEM, dtype: torch.dtype | None = None) -> None:
        nn.Module.__init__(self)
        self.config = model.config
        self.m_step = copy.deepcopy(model.m_step, {id(p): p for p in model.parameters()})
        self.kernels = load_kernels() if next(model.parameters()).is_cuda else None
        self.rows = (Rows(1), Rows(1))  # memory for delta, and for the gradient of eta
        if not differentiated_twice(self.m_step):
            replace(self, self.kernels)
            if isinstance(self.m_step, GradientMStep):
                self.m_step.__class__ = FastGradientMStep
        elif dtype is not None:
            refuse("dtype", "none for N-EM through more than one layer, which keeps the plain layers", dtype)
        for module in self.modules():
            if isinstance(module, Linear) and dtype is not None and self.kernels:
                module.dtype = dtype

    def prepare(self, steps: int = 1) -> None:
        """Makes the layers' parameters ready for so many steps; again after they have changed."""
        self.rows = both_ways(steps)
        for module in self.modules():
            if isinstance(module, Linear | FastActivation):
                module.prepare(steps)

    def start(self, *arguments: Any, **options: Any) -> State:
        """The first state, everything ready for the steps that follow."""
        self.prepare()
        return super().start(*arguments, **options)

    def run(
        self, state: State, x: Tensor, x_noisy: Tensor, weights: Tensor, watched: Sequence[bool] | None = None
    ) -> Unrolled:
        """The loop, everything ready for its length."""
        self.prepare(len(x_noisy))
        return super().run(state, x, x_noisy, weights, watched)

    def uniform(self, keys: Tensor, count: int, stream: int = 0) -> Tensor:
        """The same numbers, in one kernel."""
        return self.kernels.uniform(keys, count, stream) if self.kernels else super().uniform(keys, count, stream)

    def difference(self, x: Tensor, psi: Tensor, gamma: Tensor) -> Tensor:
        """Delta, in one kernel, or two if it is normalised."""
        if not self.kernels or not self.kernels.fits(psi):
            return super().difference(x, psi, gamma)
        delta = self.kernels.MaskedDifference.apply(x, psi, gamma, self.rows[0])
        if self.config.normalize_input:
            flat = delta.flatten(0, 1)
            rows = (Rows(1), Rows(1))
            delta = self.kernels.Activation.apply(None, rows, "identity", False, flat, None, None, None).view_as(delta)
        return delta

    def assign(self, eta: Tensor, x: Tensor, losses: bool = True) -> tuple[Tensor, Tensor, Info]:
        """E-step and losses: one kernel each way, or their gradient written out."""
        eta = eta.to(x.dtype)
        if x.shape[1] > 1:
            return super().assign(eta, x, losses)
        config = self.config
        p = config.prior
        gaussian = config.distribution == "gaussian"
        entropy = 0.0 if gaussian else sum(q * math.log(q) for q in (p, 1 - p) if q > 0)
        numbers = {"PRIOR": p, "CONSTANT": entropy, "WIDTH": config.e_step_deviation, "WEIGHT": config.inter_weight,
                   "GAUSSIAN": gaussian}  # fmt: skip
        if self.kernels and self.kernels.fits(eta):
            parts = self.kernels.Assignment.apply(eta, x, numbers, config.gamma_gradient, self.rows[1])
        else:
            settings = (self.distribution, numbers, config.gamma_gradient, losses)
            parts = closed_form.Assignment.apply(eta, x, *settings)
        psi, gamma, total, watched = parts
        return psi, gamma, Info(total, *watched)


def differentiated_twice(m_step: nn.Module) -> bool:
    """Whether its step is a gradient through layers that training differentiates again, as only plain ones can be."""
    if not isinstance(m_step, GradientMStep):
        return False
    return len(m_step.decoder.convolutions) > 0 or len(m_step.decoder.dense) > 1


def replace(module: nn.Module, kernels: Any) -> None:
    """Puts the fast layers in place of the plain ones below the module; what it does not know stays as it is."""
    for name, child in module.named_children():
        setattr(module, name, replacement(child, kernels))


def replacement(module: nn.Module, kernels: Any) -> nn.Module:
    """The fast twin of a chain or of a single layer, or the module itself with such twins inside."""
    if type(module) is nn.Sequential:  # a class made from it may do something else
        return nn.Sequential(*replaced(list(module), kernels))
    if isinstance(module, Dense | Activation):
        return replaced([module], kernels)[0]
    replace(module, kernels)
    return module


def replaced(layers: list[nn.Module], kernels: Any) -> list[nn.Module]:
    """The fast twins of a chain of layers."""
    fast: list[nn.Module] = []
    bias, phases = None, False
    for i, layer in enumerate(layers):
        followed = i + 1 < len(layers) and isinstance(layers[i + 1], Activation)
        absorbed = followed and kernels is not None and layers[i + 1].scale is not None
        if isinstance(layer, Activation):
            fast.append(FastActivation(layer, kernels, bias, phases))
            bias, phases = None, False
        elif isinstance(layer, Dense):
            fast.append(FastDense(layer))
        elif kernels and isinstance(layer, UpConvolution) and not followed and layer.weight.shape[0] == 1:
            fast.append(FastLast(layer, kernels))
        elif kernels and isinstance(layer, Convolution) and absorbed and layer.weight.shape[1] == 1:
            bias = layer.bias
            fast.append(FastFirst(layer, kernels))
        elif kernels is None and isinstance(layer, Convolution) and layer.weight.shape[1] == 1:
            fast.append(FastPatches(layer))
        elif isinstance(layer, Convolution | UpConvolution):
            bias, phases = layer.bias if absorbed else None, isinstance(layer, UpConvolution)
            twin = (FastUpConvolution if phases else FastConvolution)(layer, bias=not absorbed)
            fast.append(FastOutput(twin) if phases and not followed else twin)
        else:
            fast.append(replacement(layer, kernels))
    return fast


@functools.cache
def load_kernels() -> Any:
    """The fused GPU kernels, or nothing and a word about it where they cannot be had."""
    try:
        from neural_em.model.fast import kernels
    except ImportError as error:
        warnings.warn(f"no fused GPU kernels, training is slower: {error}", stacklevel=2)
        return None
    return kernels


def accelerate(model: NeuralEM, dtype: torch.dtype | None = None) -> FastNeuralEM:
    """The fast twin of a model: the same numbers, the same parameters; training one trains the other.

    Args:
        model: the plain one.
        dtype: ``torch.bfloat16`` for faster, coarser products and activations on a GPU.
    """
    return FastNeuralEM(model, dtype)
