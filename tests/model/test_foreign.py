"""What the fast path does not know computes through `accelerate` what it computes without it, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from neural_em import NeuralEMError
from neural_em.model import ModelConfig, NeuralEM, mixture
from neural_em.model.distributions import DISTRIBUTIONS, Bernoulli, Gaussian
from neural_em.model.em import Info
from neural_em.model.fast import accelerate
from neural_em.model.m_step import M_STEPS, GradientMStep, RecurrentMStep
from neural_em.model.networks import Decoder, Dense, Encoder
from tests.model.foreign import SINGLE, SMALL, assert_foreign, assert_same, bent, inputs, made

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
