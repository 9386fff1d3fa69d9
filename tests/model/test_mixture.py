"""The spatial mixture against hand calculation and explicit loops."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch

from neural_em.model.distributions import Bernoulli, Gaussian
from neural_em.model.mixture import e_step, inter_loss, intra_loss, pixel_likelihood, upper_bound


def random_mixture(seed, B=2, K=3, C=2, H=3, W=4):
    r = np.random.default_rng(seed)
    gamma = r.dirichlet(np.ones(K), (B, 1, H, W)).transpose(0, 4, 1, 2, 3)
    arrays = r.random((B, C, H, W)), r.uniform(0.05, 0.95, (B, K, C, H, W)), gamma
    return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)


def test_e_step_by_hand():
    likelihood = torch.tensor([0.3, 0.1, 0.0], dtype=torch.float64).reshape(1, 3, 1, 1, 1)
    expected = np.array([0.3 + 1e-6, 0.1 + 1e-6, 1e-6]) / (0.4 + 3e-6)
    np.testing.assert_allclose(e_step(likelihood).flatten().numpy(), expected, rtol=1e-12)


def test_e_step_shares_a_pixel_that_no_component_explains():
    np.testing.assert_allclose(e_step(torch.zeros(1, 4, 1, 2, 2)).numpy(), 0.25, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma_sums_to_one(dtype):
    """Of likelihoods over sixty orders of magnitude, and of zeros among them."""
    exponent = torch.from_numpy(np.random.default_rng(0).uniform(-38, 20, (50, 5, 1, 4, 4)))
    likelihood = torch.where(exponent > -30, 10**exponent, 0).to(dtype)
    gamma = e_step(likelihood)
    assert bool((gamma >= 0).all())
    torch.testing.assert_close(gamma.sum(1), torch.ones(50, 1, 4, 4, dtype=dtype))


def test_one_component_owns_everything_exactly():
    assert bool((e_step(torch.rand(2, 1, 1, 5, 5)) == 1).all())


@pytest.mark.parametrize("rule", ["product", "sum"])
@pytest.mark.parametrize("distribution", [Bernoulli(), Gaussian(0.0, 0.25)])
def test_the_likelihood_of_a_pixel_over_its_channels_by_a_loop(distribution, rule):
    x, psi, _ = random_mixture(1, C=3)
    likelihood = pixel_likelihood(distribution, x, psi, rule)
    B, K, C, H, W = psi.shape
    assert likelihood.shape == (B, K, 1, H, W)
    for b, k, i, j in itertools.product(range(B), range(K), range(H), range(W)):
        channels = []
        for c in range(C):
            value, mean = float(x[b, c, i, j]), float(psi[b, k, c, i, j])
            bernoulli = value * mean + (1 - value) * (1 - mean)
            gaussian = scipy.stats.norm.pdf(value, mean, 0.25)
            channels.append(bernoulli if isinstance(distribution, Bernoulli) else gaussian)
        expected = math.prod(channels) if rule == "product" else sum(channels)
        assert float(likelihood[b, k, 0, i, j]) == pytest.approx(expected, rel=1e-12)


def test_channel_rules_by_hand():
    """One pixel of three channels under two components: 0.9 * 0.8 * 0.5 = 0.36, 0.9 + 0.8 + 0.5 = 2.2."""
    x = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64).reshape(1, 3, 1, 1)
    psi = torch.tensor([[0.9, 0.2, 0.5], [0.1, 0.5, 0.5]], dtype=torch.float64).reshape(1, 2, 3, 1, 1)
    product = pixel_likelihood(Bernoulli(), x, psi).flatten()
    np.testing.assert_allclose(product.numpy(), [0.36, 0.025], rtol=1e-12)
    total = pixel_likelihood(Bernoulli(), x, psi, "sum").flatten()
    np.testing.assert_allclose(total.numpy(), [2.2, 1.1], rtol=1e-12)


def test_both_rules_agree_on_one_channel():
    x, psi, _ = random_mixture(2, C=1)
    product, total = (pixel_likelihood(Gaussian(), x, psi, rule) for rule in ("product", "sum"))
    assert torch.equal(product, total)


def test_the_losses_by_a_loop():
    x, psi, gamma = random_mixture(3)
    B, K, C, H, W = psi.shape
    prior = 0.2
    intra, inter, bound = np.zeros(B), np.zeros(B), np.zeros(B)
    for b, c, i, j in itertools.product(range(B), range(C), range(H), range(W)):
        value = float(x[b, c, i, j])
        for k in range(K):
            mean, share = float(psi[b, k, c, i, j]), float(gamma[b, k, 0, i, j])
            intra[b] -= share * (value * math.log(mean) + (1 - value) * math.log(1 - mean))
            kl = prior * math.log(prior / mean) + (1 - prior) * math.log((1 - prior) / (1 - mean))
            inter[b] += (1 - share) * kl
        best = max(float(psi[b, k, c, i, j]) for k in range(K))
        bound[b] -= value * math.log(best) + (1 - value) * math.log(1 - best)
    distribution = Bernoulli(prior)
    np.testing.assert_allclose(intra_loss(distribution, x, psi, gamma).numpy(), intra, rtol=1e-12)
    np.testing.assert_allclose(inter_loss(distribution, psi, gamma).numpy(), inter, rtol=1e-12)
    np.testing.assert_allclose(upper_bound(distribution, x, psi).numpy(), bound, rtol=1e-12)


def test_gaussian_losses_by_hand():
    """One pixel x = 0.5, components at 1 and 0.25 with shares 0.75 and 0.25, prior 0."""
    x = torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64)
    psi = torch.tensor([1.0, 0.25], dtype=torch.float64).reshape(1, 2, 1, 1, 1)
    gamma = torch.tensor([0.75, 0.25], dtype=torch.float64).reshape(1, 2, 1, 1, 1)
    g = Gaussian()
    assert intra_loss(g, x, psi, gamma).item() == pytest.approx(0.75 * 0.125 + 0.25 * 0.03125)
    assert inter_loss(g, psi, gamma).item() == pytest.approx(0.25 * 0.5 + 0.75 * 0.03125)
    assert upper_bound(g, x, psi).item() == pytest.approx(0.125)


def test_one_component_has_no_inter_cluster_loss():
    x, psi, _ = random_mixture(4, K=1)
    gamma = torch.ones(2, 1, 1, 3, 4, dtype=torch.float64)
    assert bool((inter_loss(Bernoulli(), psi, gamma) == 0).all())
    torch.testing.assert_close(intra_loss(Bernoulli(), x, psi, gamma), upper_bound(Bernoulli(), x, psi))


def test_with_its_posterior_the_e_step_makes_the_bound_touch_the_likelihood():
    """EM's identity: sum_k gamma (log p_k - log gamma) = log sum_k p_k, where gamma is the posterior."""
    x, psi, _ = random_mixture(5, C=3)
    p = pixel_likelihood(Gaussian(), x, psi)
    gamma = e_step(p)
    touched = (gamma * (p.log() - gamma.log())).sum(1)
    torch.testing.assert_close(touched, p.sum(1).log(), rtol=0, atol=5e-4)  # the E-step's 1e-6 beside p
