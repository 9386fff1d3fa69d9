"""Pixel distributions against torch.distributions, scipy and hand calculation."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Normal, kl_divergence

from neural_em.model.distributions import CLIP, Bernoulli, Gaussian

PSI = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
X = torch.linspace(0, 1, 7, dtype=torch.float64).unsqueeze(1)


def test_bernoulli_log_probability_of_binary_pixels_is_that_of_torch():
    for x in (0.0, 1.0):
        expected = TorchBernoulli(probs=PSI).log_prob(torch.tensor(x, dtype=torch.float64))
        torch.testing.assert_close(Bernoulli().log_probability(torch.full_like(PSI, x), PSI), expected)


def test_bernoulli_log_probability_of_grey_pixels_is_minus_the_cross_entropy():
    expected = -torch.nn.functional.binary_cross_entropy(
        PSI.expand(7, 25), X.expand(7, 25).contiguous(), reduction="none"
    )
    torch.testing.assert_close(Bernoulli().log_probability(X, PSI), expected)


def test_bernoulli_likelihood_is_linear_in_the_pixel():
    assert Bernoulli().likelihood(torch.tensor(1.0), torch.tensor(0.3)).item() == pytest.approx(0.3)
    assert Bernoulli().likelihood(torch.tensor(0.0), torch.tensor(0.3)).item() == pytest.approx(0.7)
    assert Bernoulli().likelihood(torch.tensor(0.5), torch.tensor(0.3)).item() == pytest.approx(0.5)


@pytest.mark.parametrize(("x", "psi"), [(0.0, 1.0), (1.0, 0.0)])
def test_a_bernoulli_pixel_that_cannot_be_costs_the_clip_and_no_more(x, psi):
    log_probability = Bernoulli().log_probability(torch.tensor(x), torch.tensor(psi))
    assert log_probability.item() == pytest.approx(math.log(1e-6), rel=1e-6)
    assert CLIP == 1e-6


@pytest.mark.parametrize("prior", [0.0, 1e-3, 0.25, 0.5, 0.9, 1.0])
def test_bernoulli_kl_is_that_of_torch(prior):
    p = torch.tensor(prior, dtype=torch.float64)
    expected = kl_divergence(TorchBernoulli(probs=p, validate_args=False), TorchBernoulli(probs=PSI))
    torch.testing.assert_close(Bernoulli(prior).kl_from_prior(PSI), expected, rtol=1e-9, atol=1e-12)


def test_bernoulli_kl_from_a_prior_of_zero_is_minus_log_of_one_minus_psi():
    torch.testing.assert_close(Bernoulli(0.0).kl_from_prior(PSI), -torch.log1p(-PSI))
    assert Bernoulli(0.0).kl_from_prior(torch.tensor(1.0)).item() == pytest.approx(-math.log(1e-6), rel=1e-6)


@pytest.mark.parametrize("prior", [0.2, 0.5, 0.7])
def test_bernoulli_kl_is_zero_at_the_prior_alone(prior):
    kl = Bernoulli(prior).kl_from_prior(torch.cat([PSI, torch.tensor([prior], dtype=torch.float64)]))
    assert abs(float(kl[-1])) < 1e-12
    assert bool((kl[:-1][(PSI - prior).abs() > 1e-9] > 0).all())


@pytest.mark.parametrize("deviation", [0.1, 0.25, 1.0, 3.0])
def test_gaussian_likelihood_is_the_density_of_scipy_with_a_deviation_not_a_variance(deviation):
    expected = scipy.stats.norm.pdf(X.numpy(), loc=PSI.numpy(), scale=deviation)
    np.testing.assert_allclose(Gaussian(0.0, deviation).likelihood(X, PSI).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("deviation", [0.1, 2.0])
def test_gaussian_loss_has_unit_deviation_whatever_the_e_steps_is(deviation):
    constant = 0.5 * math.log(2 * math.pi)
    expected = Normal(PSI, 1.0).log_prob(X) + constant
    torch.testing.assert_close(Gaussian(0.0, deviation).log_probability(X, PSI), expected)


@pytest.mark.parametrize("prior", [0.0, 0.3, -1.5])
def test_gaussian_kl_is_that_of_torch(prior):
    p = torch.tensor(prior, dtype=torch.float64)
    expected = kl_divergence(Normal(p, 1.0), Normal(PSI, 1.0))
    torch.testing.assert_close(Gaussian(prior).kl_from_prior(PSI), expected)


@pytest.mark.parametrize("distribution", [Bernoulli(), Gaussian()])
def test_the_gradient_by_the_natural_parameter_is_x_minus_psi(distribution):
    eta = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    x = torch.linspace(0, 1, 13, dtype=torch.float64)
    psi = distribution.mean(eta)
    (gradient,) = torch.autograd.grad(distribution.log_probability(x, psi).sum(), eta)
    torch.testing.assert_close(gradient, (x - psi).detach())
