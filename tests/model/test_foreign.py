"""What the fast path does not know computes through `accelerate` what it computes without it, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from neural_em import NeuralEMError, randomness
from neural_em.model import ModelConfig, NeuralEM, mixture
from neural_em.model.distributions import DISTRIBUTIONS, Bernoulli, Gaussian
from neural_em.model.em import Info
from neural_em.model.fast import FastNeuralEM, accelerate
from neural_em.model.fast.linear import Linear
from neural_em.model.m_step import M_STEPS, GradientMStep, RecurrentMStep
from neural_em.model.networks import (
    ACTIVATIONS,
    Activation,
    Convolution,
    Decoder,
    Dense,
    Encoder,
    UpConvolution,
)

SMALL = ModelConfig(height=8, width=8, theta_size=5, convolutions=(2, 3), hidden=6)
SINGLE = ModelConfig(
    m_step="gradient", height=8, width=8, theta_size=5, convolutions=(), hidden=0, layer_norm=False, step_size=0.5
)


def bent(x: Tensor) -> Tensor:
    """Something that no layer norm takes back."""
    return x + torch.sin(2 * x)


def inputs(model: NeuralEM) -> tuple[Tensor, Tensor, Tensor]:
    c = model.config
    shape = (4, 2, c.channels, c.height, c.width)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, *model.draw(x, 3, randomness.keys(0, torch.arange(2)))


def results(model: NeuralEM, network: NeuralEM) -> list[Tensor]:
    """States and losses of all steps, the gradients, and single steps without gradients."""
    x, x_noisy, gamma = inputs(model)
    out = network.unroll(x, 3, x_noisy=x_noisy, gamma=gamma)
    gradients = torch.autograd.grad(out.loss, list(model.parameters()))
    with torch.no_grad():
        state, info = network.step(network.start(x[0], 3, gamma), x_noisy[0], x[1])
        state, info = network.step(state, x_noisy[1], x[2])
    return [part.detach() for part in (*out, *gradients, *state[:3], *info)]


def assert_same(model: NeuralEM) -> None:
    for ours, theirs in zip(results(model, accelerate(model)), results(model, model), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def assert_foreign(model: NeuralEM, known: NeuralEM) -> None:
    """That it computes what it does without the fast path, and not what a known model of its weights would."""
    assert_same(model)
    losses = [float(results(each, each)[7]) for each in (model, known)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-8)


def made(config: ModelConfig = SMALL, kind: type[NeuralEM] = NeuralEM) -> NeuralEM:
    return kind(config, seed=1).double()


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


@pytest.mark.parametrize("what", ["forward hook", "function"])
@pytest.mark.parametrize("place", ["encoder", "decoder.dense", "decoder.convolutions", ""])
def test_a_network_with_more_to_it_than_its_class(what: str, place: str) -> None:
    model = made()
    part = model.m_step.get_submodule(place)
    if place:
        SPECIAL[what](part)
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


# distributions


@dataclass(frozen=True)
class Laplace:
    """Pixels whose error counts by its size."""

    width: float = 0.3

    def mean(self, eta: Tensor) -> Tensor:
        return eta.sigmoid()

    def likelihood(self, x: Tensor, psi: Tensor) -> Tensor:
        return torch.exp(-(x - psi).abs() / self.width) / (2 * self.width)

    def log_probability(self, x: Tensor, psi: Tensor) -> Tensor:
        return -(x - psi).abs()

    def kl_from_prior(self, psi: Tensor) -> Tensor:
        return psi.abs() + torch.exp(-psi.abs()) - 1


class Sharp(Gaussian):
    def log_probability(self, x: Tensor, psi: Tensor) -> Tensor:
        return 3 * super().log_probability(x, psi)


class Bright(Bernoulli):
    def kl_from_prior(self, psi: Tensor) -> Tensor:
        return 2 * super().kl_from_prior(psi)


@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize("kind", [Laplace, Sharp, Bright])
def test_another_distribution(kind: type, through: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DISTRIBUTIONS, "mine", lambda config: kind())
    options = {"height": 8, "width": 8, "theta_size": 5, "hidden": 6, "gamma_gradient": through}
    model = made(ModelConfig(convolutions=(2, 3), distribution="mine", **options))
    assert_foreign(model, made(ModelConfig(convolutions=(2, 3), **options)))


# M-steps


class Momentum(nn.Module):
    """Takes a gradient through its decoder, and says nothing of it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.decoder = Decoder(3, config.channels, config.height, config.width, (2,), 4, True)
        self.rate = nn.Parameter(torch.full((6,), 0.5))

    def forward(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        B, K, M = theta.shape
        place, speed = theta.reshape(B * K, M).chunk(2, dim=1)
        _, pullback = torch.func.vjp(lambda p: self.decoder(p.sigmoid()), place)
        speed = 0.9 * speed + self.rate[:3] * pullback(delta.flatten(0, 1))[0]
        place = place + speed + 0.1 * self.rate[3:]
        eta = self.decoder(place.sigmoid()).unflatten(0, (B, K))
        return torch.cat([place, speed], dim=1).reshape(B, K, M), eta


class Climbing(RecurrentMStep):
    """A recurrent step and a gradient step in one; inherits what the recurrent one says of itself."""

    def forward(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        theta, eta = super().forward(theta, delta)
        flat = theta.flatten(0, 1)
        _, pullback = torch.func.vjp(self.decoder, flat)
        flat = flat + 0.1 * pullback(delta.flatten(0, 1))[0]
        return flat.view_as(theta), eta + self.decoder(flat).unflatten(0, delta.shape[:2])


class Damped(GradientMStep):
    def pullback(self, theta: Tensor, delta: Tensor) -> Tensor:
        return 0.5 * super().pullback(theta, delta)


class Plain(nn.Module):
    """Has known layers, says that it only calls them, and may have fast ones."""

    differentiated_twice = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = (config.channels, config.height, config.width)
        self.encoder = Encoder(*size, (2, 3), 6, True)
        self.keep = nn.Parameter(torch.full((config.theta_size, 1), 0.5))
        self.layers = nn.Sequential(Dense(6, config.theta_size), nn.Tanh())
        self.decoder = Decoder(config.theta_size, *size, (2, 3), 6, True)

    def forward(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        theta = theta * self.keep[:, 0] + self.layers(self.encoder(delta.flatten(0, 1))).view_as(theta)
        return theta, self.decoder(theta.flatten(0, 1)).unflatten(0, delta.shape[:2])


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type, ModelConfig], NeuralEM]]:
    def build(kind: type, config: ModelConfig) -> NeuralEM:
        monkeypatch.setitem(M_STEPS, "mine", kind)
        return made(ModelConfig(**{**vars(config), "m_step": "mine", "step_size": None}))

    return build


@pytest.mark.parametrize(("kind", "theta"), [(Momentum, 6), (Climbing, 5), (Damped, 5), (Plain, 5)])
def test_another_m_step(kind: type, theta: int, registered: Callable[[type, ModelConfig], NeuralEM]) -> None:
    model = registered(kind, ModelConfig(**{**vars(SINGLE if kind is Damped else SMALL), "theta_size": theta}))
    assert type(model.m_step) is kind
    assert_same(model)
    assert bool(accelerate(model).layers) == (kind is Plain)


@pytest.mark.parametrize("name", ["decoder", "decoder.dense", "decoder.convolutions", "decoder.dense.0"])
def test_the_gradient_step_through_something_else_than_one_layer(name: str) -> None:
    """Of which the closed form knows nothing."""
    model = made(SINGLE)
    kinds = {"decoder": Flipped, "decoder.dense.0": Other}
    model.m_step.get_submodule(name).__class__ = kinds.get(name, Chain)
    assert_foreign(model, made(SINGLE))


# models


class Tempered(NeuralEM):
    """Assigns pixels less sharply."""

    def assign(self, eta: Tensor, x: Tensor, losses: bool = True) -> tuple[Tensor, Tensor, Info]:
        psi, gamma, info = super().assign(eta, x, losses)
        gamma = gamma.sqrt() / gamma.sqrt().sum(dim=1, keepdim=True)
        return psi, gamma, info._replace(total=mixture.intra_loss(self.distribution, x, psi, gamma))


class Lenient(NeuralEM):
    """Looks at the error otherwise."""

    def difference(self, x: Tensor, psi: Tensor, gamma: Tensor) -> Tensor:
        return bent(super().difference(x, psi, gamma))


class Otherwise(NeuralEM):
    """Has pixels of its own."""

    @property
    def distribution(self) -> Gaussian:
        return Gaussian(deviation=0.5)


@pytest.mark.parametrize("kind", [Tempered, Lenient, Otherwise])
def test_another_model(kind: type[NeuralEM]) -> None:
    model = made(kind=kind)
    assert_foreign(model, made())
    assert accelerate(model) is model
    with pytest.raises(NeuralEMError, match=rf"^dtype=.*bfloat16 is not for a {kind.__name__}, which the fast path"):
        accelerate(model, torch.bfloat16)


def test_a_function_put_into_one_model() -> None:
    model = made()
    model.difference = lambda x, psi, gamma: bent(NeuralEM.difference(model, x, psi, gamma))
    assert_foreign(model, made())


# gradients that the written-out ones do not have


@pytest.mark.parametrize("config", [SMALL, ModelConfig(**{**vars(SMALL), "distribution": "gaussian"})])
def test_the_gradient_of_a_frame(config: ModelConfig) -> None:
    model = made(config)
    x, x_noisy, gamma = inputs(model)
    found = []
    for network in (model, accelerate(model)):
        frames = [x_noisy[0].clone().requires_grad_(), x[1].clone().requires_grad_()]
        total = network.step(network.start(x[0], 3, gamma), *frames, check=False)[1].total.sum()
        found.append(torch.autograd.grad(total, frames))
    for ours, theirs in zip(found[1], found[0], strict=True):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("loss", ["intra", "inter", "upper_bound"])
def test_a_loss_that_is_only_watched_gives_no_gradient_in_silence(loss: str) -> None:
    model = made()
    x, x_noisy, gamma = inputs(model)
    out = accelerate(model).unroll(x, 3, x_noisy=x_noisy, gamma=gamma)
    with pytest.raises(NeuralEMError, match=r"^only the total loss has a gradient on the fast path"):
        (out.loss + getattr(out, loss).sum()).backward()
