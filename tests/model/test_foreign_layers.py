"""Layers and networks that the fast path does not know compute through `accelerate` what they do without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from neural_em import NeuralEMError
from neural_em.model.fast import FastNeuralEM, accelerate
from neural_em.model.fast.linear import Linear
from neural_em.model.networks import (
    ACTIVATIONS,
    Activation,
    Convolution,
    Decoder,
    Dense,
    Encoder,
    UpConvolution,
)
from tests.model.foreign import SINGLE, assert_foreign, assert_same, bent, made, results

# layers: each is put into the place of one of the package's, with its parameters


class Other(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return bent(super().forward(x))


class Leaky(Activation):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.1 * x


class Dilated(Convolution):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, stride=2, padding=3, dilation=2)


class Nearest(UpConvolution):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).roll(1, dims=2)


class Negative(Encoder):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(-x)


class Flipped(Decoder):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(2)


class Chain(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return bent(super().forward(x))


class Inspecting(nn.Sequential):
    """Uses its layers one by one, and what comes between them."""

    def forward(self, x: Tensor) -> Tensor:
        first, activation, second = self
        between = first(x)
        return second(activation(between) + 0.1 * between)


class Bent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return bent(x)


CLASSES: dict[str, tuple[str, type[nn.Module]]] = {
    "dense": ("recurrence", Other),
    "dense in a chain": ("decoder.dense.0", Other),
    "activation": ("output", Leaky),
    "activation after a convolution": ("encoder.convolutions.1", Leaky),
    "activation after an up-convolution": ("decoder.convolutions.1", Leaky),
    "first convolution": ("encoder.convolutions.0", Dilated),
    "second convolution": ("encoder.convolutions.2", Dilated),
    "up-convolution before an activation": ("decoder.convolutions.0", Nearest),
    "last up-convolution": ("decoder.convolutions.2", Nearest),
    "encoder": ("encoder", Negative),
    "decoder": ("decoder", Flipped),
    "chain": ("decoder.dense", Chain),
    "chain that uses its layers one by one": ("decoder.convolutions", Inspecting),
}


@pytest.mark.parametrize("case", CLASSES)
def test_a_class_made_from_a_known_one(case: str) -> None:
    name, kind = CLASSES[case]
    model = made()
    model.m_step.get_submodule(name).__class__ = kind
    assert_foreign(model, made())


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("chain", ["encoder.convolutions", "decoder.convolutions"])
def test_a_foreign_layer_among_known_ones(chain: str, place: int) -> None:
    """In particular between a convolution and the activation that would put its phases in place."""
    model = made()
    model.m_step.get_submodule(chain).insert(place, Bent())
    assert_foreign(model, made())
    assert not accelerate(model).covered  # so a GPU does not replay it: what it does in Python is done in every step


def spectral(layer: nn.Module) -> None:
    nn.utils.parametrizations.weight_norm(layer)
    with torch.no_grad():
        scale = layer.parametrizations.weight.original0
        scale.mul_(torch.linspace(0.5, 1.5, scale.numel()).view_as(scale) if scale.numel() > 1 else 2.0)


SPECIAL: dict[str, Callable[[nn.Module], object]] = {
    "forward hook": lambda layer: layer.register_forward_hook(lambda module, arguments, out: bent(out)),
    "forward pre-hook": lambda layer: layer.register_forward_pre_hook(lambda module, x: (bent(x[0]),)),
    "parametrization": spectral,
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "function": lambda layer: setattr(layer, "forward", lambda x: bent(type(layer).forward(layer, x))),
}
PLACES = ["recurrence", "decoder.convolutions.0", "decoder.convolutions.2", "encoder.convolutions.0"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", SPECIAL)
def test_a_layer_with_more_to_it_than_its_class(what: str, place: str) -> None:
    model = made()
    SPECIAL[what](model.m_step.get_submodule(place))
    assert_foreign(model, made())
    assert not accelerate(model).covered


@pytest.mark.parametrize("what", ["forward hook", "function"])
@pytest.mark.parametrize("place", ["encoder", "decoder.dense", "decoder.convolutions", ""])
def test_a_network_with_more_to_it_than_its_class(what: str, place: str) -> None:
    model = made()
    part = model.m_step.get_submodule(place)
    if place:
        SPECIAL[what](part)
        assert not accelerate(model).covered
    else:
        part.register_forward_hook(lambda module, arguments, out: (bent(out[0]), out[1]))
    assert_foreign(model, made())


def test_a_backward_hook_is_called() -> None:
    model, seen = made(), []
    model.m_step.recurrence.register_full_backward_hook(lambda *arguments: seen.append(1))
    results(model, accelerate(model))
    assert len(seen) == 3  # once a step


def test_another_non_linearity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACTIVATIONS, "tanh", torch.tanh)
    model = made()
    for part in model.m_step.modules():
        if isinstance(part, Activation):
            part.kind = "tanh"
    assert_foreign(model, made())


def test_a_layer_that_is_given_more_than_vectors() -> None:
    """A fully connected layer and an activation on (N,rows,features), as many as there are rows."""

    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.unflatten(1, (3, 2))

    model = made()
    torch.manual_seed(0)
    chain = nn.Sequential(Dense(5, 6), Rows(), Dense(2, 3), Activation(3, "elu"), nn.Flatten(), Dense(9, 12))
    chain.append(Activation(12, "relu"))
    for parameter in chain.parameters():
        nn.init.normal_(parameter)
    model.m_step.decoder.dense = chain.double()
    model.m_step.decoder.shape = (2, 2, 3)
    assert_same(model)


def test_layers_around_foreign_ones_are_still_fast() -> None:
    model = made()
    model.m_step.encoder.__class__ = Negative
    fast = accelerate(model)
    assert isinstance(fast, FastNeuralEM)
    assert sum(isinstance(layer, Linear) for layer in fast.layers) == 5  # recurrence and decoder
    with pytest.raises(NeuralEMError, match=r"^dtype=.*bfloat16 is not for a model that keeps some of its plain"):
        accelerate(model, torch.bfloat16)


@pytest.mark.parametrize("name", ["decoder", "decoder.dense", "decoder.convolutions", "decoder.dense.0"])
def test_the_gradient_step_through_something_else_than_one_layer(name: str) -> None:
    """Of which the closed form knows nothing."""
    model = made(SINGLE)
    kinds = {"decoder": Flipped, "decoder.dense.0": Other}
    model.m_step.get_submodule(name).__class__ = kinds.get(name, Chain)
    assert_foreign(model, made(SINGLE))
