"""Objects of any colour: each component says where its object is and which colour it has."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit, logsumexp
from scipy.stats import norm
from torch import Tensor

from neural_em import ModelConfig, NeuralEM, NeuralEMError, randomness
from neural_em.model import NoiseConfig
from neural_em.model.distributions import Bernoulli, Gaussian, Masked
from neural_em.model.fast import accelerate
from neural_em.model.mixture import e_step, inter_loss, intra_loss, pixel_likelihood, upper_bound
from neural_em.model.window import one_coloured

C, H, W, K = 3, 6, 5, 3
CONFIG = ModelConfig(
    channels=C, height=H, width=W, theta_size=4, convolutions=(2, 3), hidden=6, distribution="masked", prior="median",
    e_step_deviation=0.2, noise=NoiseConfig("masked-uniform", 0.2, True), steps=3, window=0.6,
)  # fmt: skip


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_pixel_is_the_objects_or_the_grounds():
    """Against a mixture of two normal densities, written with scipy."""
    x, psi, s, prior = drawn(2, 1, C, H, W), drawn(2, K, C + 1, H, W, seed=1), 0.3, 0.1
    m = expit(psi[:, :, -1].numpy())
    densities = [norm.logpdf(x.numpy(), mean, s).sum(axis=2) for mean in (psi[:, :, :-1].numpy(), prior)]
    expected = logsumexp([np.log(m) + densities[0], np.log(1 - m) + densities[1]], axis=0)
    constant = C * math.log(s * math.sqrt(2 * math.pi))
    found = Masked(prior, s).log_probability(x, psi)
    np.testing.assert_allclose(found[:, :, 0].numpy(), expected + constant, rtol=1e-12, atol=1e-12)
    at_prior = norm.logpdf(prior, psi[:, :, :-1].numpy(), s).sum(axis=2) + constant  # the ground's own is then 0
    kl = -logsumexp([np.log(m) + at_prior, np.log(1 - m)], axis=0)
    np.testing.assert_allclose(Masked(prior, s).kl_from_prior(psi)[:, :, 0].numpy(), kl, rtol=1e-12, atol=1e-12)


def test_white_objects_on_black_are_binary_pixels():
    """With one known colour and next to no deviation, likelihoods, losses and predictions are Bernoulli's."""
    x = (drawn(2, 1, H, W) > 0).double()
    odds = drawn(2, K, 1, H, W, seed=1)
    masked, said = Masked(0.0, 0.05), torch.cat([torch.ones_like(odds), odds], dim=2)
    binary, psi = Bernoulli(), torch.sigmoid(odds)
    gammas = [e_step(pixel_likelihood(d, x, p)) for d, p in ((masked, said), (binary, psi))]
    torch.testing.assert_close(*gammas, rtol=0, atol=1e-5)  # of the E-step's epsilon each has another share
    torch.testing.assert_close(masked.frame(said), psi)
    gamma = gammas[1]
    torch.testing.assert_close(intra_loss(masked, x, said, gamma), intra_loss(binary, x, psi, gamma))
    torch.testing.assert_close(inter_loss(masked, said, gamma), inter_loss(binary, psi, gamma))


def test_the_better_of_two_components_wins_a_pixel_that_neither_expects():
    """Both are all but impossible, far below the E-step's epsilon: a tie would leave nobody to learn the pixel."""
    psi = torch.tensor([[0.4, 5.0], [0.2, 5.0]], dtype=torch.float64).reshape(1, 2, 2, 1, 1)
    gamma = e_step(pixel_likelihood(Masked(0.0, 0.05), torch.ones(1, 1, 1, 1, dtype=torch.float64), psi))
    assert gamma[0, 0].item() > 0.999
    tied = e_step(pixel_likelihood(Gaussian(0.0, 0.05), torch.ones(1, 1, 1, 1, dtype=torch.float64), psi[:, :, :1]))
    assert tied[0, 0].item() < 0.51


def test_what_a_component_predicts_is_its_colour_where_its_mask_is_and_the_prior_elsewhere():
    psi = torch.tensor([0.9, 0.2, 0.5, 0.0], dtype=torch.float64).reshape(1, 1, 4, 1, 1).repeat(1, 1, 1, 1, 3)
    psi[..., -1, :, :] = torch.tensor([30.0, -30.0, 0.0])
    frame = Masked(0.1, 0.2).frame(psi)
    assert frame.shape == (1, 1, 3, 1, 3)
    expected = [[0.9, 0.1, 0.5], [0.2, 0.1, 0.15], [0.5, 0.1, 0.3]]
    np.testing.assert_allclose(frame[0, 0, :, 0].numpy(), expected, atol=1e-9)


def test_one_colour_is_the_mean_of_the_networks_and_the_masks_stay():
    eta = drawn(2, K, C + 1, H, W)
    found = one_coloured(eta)
    np.testing.assert_array_equal(found[:, :, -1].numpy(), eta[:, :, -1].numpy())
    expected = eta[:, :, :-1].numpy().mean(axis=(-2, -1), keepdims=True)
    np.testing.assert_allclose(found[:, :, :-1].numpy(), np.broadcast_to(expected, (2, K, C, H, W)), rtol=1e-12)


def test_a_model_of_one_colour_predicts_shades_of_one():
    """Away from the prior all pixels of a component lie on a line, from the ground's colour to its own."""
    model = NeuralEM(replace(CONFIG, one_colour=True, noise=NoiseConfig("none")), seed=2).double()
    x = torch.rand(3, 2, C, H, W, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        state = model.start(x[0], K, generator=torch.Generator().manual_seed(1))
        state, _ = model.step(state, x[0], x[1])
    added = (state.psi - state.prior.unsqueeze(1)).flatten(3)  # (B,K,C,pixels)
    assert torch.linalg.matrix_rank(added, rtol=1e-9).unique().tolist() == [1]


@pytest.mark.parametrize("m_step", ["recurrent", "relational"])
@pytest.mark.parametrize("gamma_gradient", [False, True])
@pytest.mark.parametrize("one_colour", [False, True])
def test_the_fast_path_is_the_plain_one(m_step, gamma_gradient, one_colour):
    config = replace(CONFIG, m_step=m_step, gamma_gradient=gamma_gradient, one_colour=one_colour)
    x = torch.rand(4, 2, C, H, W, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    results = []
    for twin in (lambda model: model, accelerate):
        model = NeuralEM(config, seed=1).double()
        x_noisy, gamma = model.draw(x, K, randomness.keys(0, torch.arange(2)))
        out = twin(model).unroll(x, K, x_noisy=x_noisy, gamma=gamma)
        out.loss.backward()
        results.append([*(part.detach() for part in out), *(parameter.grad for parameter in model.parameters())])
    assert results[0][1].shape == (3, 2, K, C, H, W)
    for ours, theirs in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_components_in_another_order_give_the_same_in_that_order():
    model = NeuralEM(CONFIG, seed=2).double()
    x = torch.rand(3, 2, C, H, W, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x_noisy, gamma = model.draw(x, K, randomness.keys(0, torch.arange(2)))
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        one = model.unroll(x, K, x_noisy=x_noisy, gamma=gamma)
        other = model.unroll(x, K, x_noisy=x_noisy, gamma=gamma[:, order])
    torch.testing.assert_close(other.psi, one.psi[:, :, order])
    torch.testing.assert_close(other.loss, one.loss)


def test_the_ground_does_not_matter_where_the_prior_is_its_median():
    """All colours moved together: predictions move with them, and nothing else changes."""
    model = NeuralEM(replace(CONFIG, noise=NoiseConfig("none")), seed=2).double()
    x = 0.5 * torch.rand(3, 2, C, H, W, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gamma = model.draw(x, K, randomness.keys(0, torch.arange(2)))[1]
    with torch.no_grad():
        one, other = (model.unroll(x + shift, K, gamma=gamma) for shift in (0.0, 0.3))
    torch.testing.assert_close(other.psi, one.psi + 0.3)
    torch.testing.assert_close(other.gamma, one.gamma)


def test_the_error_counts_the_component_farthest_from_the_ground():
    """A dark object on a bright ground: the largest psi would be that of the component that predicts nothing."""
    x, psi = torch.full((1, 1, 1, 1), 0.2), torch.tensor([0.3, 0.8]).reshape(1, 2, 1, 1, 1)
    assert upper_bound(Gaussian(), x, psi).item() == pytest.approx(0.5 * 0.6**2)
    assert upper_bound(Gaussian(), x, psi, prior=0.8).item() == pytest.approx(0.5 * 0.1**2)


@pytest.mark.parametrize("prior", [0.0, "median", "background"])
@pytest.mark.parametrize(("channels", "components"), [(1, 1), (1, 2), (3, 4)])
def test_rollouts_with_any_prior_and_any_number_of_channels_and_components(prior, channels, components):
    model = NeuralEM(replace(CONFIG, prior=prior, channels=channels), seed=1)
    x = torch.rand(3, 2, channels, H, W, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        state = model.start(x[0], components, generator=torch.Generator().manual_seed(1))
        for t in range(2):
            state, info = model.step(state, x[t], x[t + 1])
        for step in model.rollout(state, 3, generator=torch.Generator().manual_seed(2)):
            assert bool(torch.isfinite(step.state.psi).all())
            torch.testing.assert_close(step.state.gamma.sum(dim=1), torch.ones(2, 1, H, W))
    assert info.upper_bound.shape == (2,)


def test_without_a_frame_the_component_that_predicts_a_pixel_keeps_it():
    """Two components with the same object add up to more than either says; the empty one must not get a third of it."""
    model = NeuralEM(replace(CONFIG, prior=0.0, channels=1, e_step_deviation=0.05, window=None), seed=1)
    state = model.start(torch.zeros(1, 1, H, W), 3)
    psi = torch.stack([torch.full((1, 1, H, W), value) for value in (0.9, 0.8, 0.0)], dim=1)
    gamma = model.reassign(state._replace(psi=psi)).gamma
    assert gamma[0, 2].max().item() < 1e-3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"m_step": "gradient"}, "model.m_step=gradient is not for model.distribution=masked"),
        ({"channel_rule": "sum"}, "model.channel_rule=sum is not for model.distribution=masked"),
    ],
)
def test_what_does_not_go_with_masks_is_refused(changes, said):
    with pytest.raises(NeuralEMError, match=f"^{said}"):
        replace(CONFIG, window=None, **changes)


def test_one_colour_is_for_masks():
    with pytest.raises(NeuralEMError, match=r"^model\.one_colour=true is for model\.distribution=masked"):
        ModelConfig(distribution="gaussian", one_colour=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_probabilities_are_the_same_with_and_without_gradients(dtype):
    odds = torch.tensor([-2000.0, -90, -5, 0, 5, 90, 2000], dtype=dtype).reshape(-1, 1, 1, 1)
    psi = torch.cat([torch.linspace(-3, 3, 7, dtype=dtype).reshape(-1, 1, 1, 1), odds], dim=1)
    pixels, x = Masked(0.0, 0.1), torch.tensor([0.0, 0.4, 2.0], dtype=dtype).reshape(3, 1, 1, 1, 1)
    with torch.no_grad():
        without = pixels.log_probability(x, psi)
    on = odds - 50 * (x - psi[:, :1]).square()  # by hand: log(exp(on) + exp(off)) - log(1 + exp(odds))
    off = (-50 * x.square()).expand_as(on)
    by_hand = logsumexp(torch.stack([on, off]).numpy(), axis=0) - np.logaddexp(0, odds.numpy())
    torch.testing.assert_close(without, pixels.log_probability(x, psi), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(without, torch.as_tensor(by_hand, dtype=dtype), rtol=1e-6, atol=1e-4)
