"""The two M-steps: N-EM climbs Q, by the general product and by the authors' closed form; RNN-EM by numpy."""

import itertools

import numpy as np
import pytest
import torch

from neural_em import NeuralEM
from neural_em.model import ModelConfig, NoiseConfig
from neural_em.model.m_step import GradientMStep, RecurrentMStep

SINGLE = {"convolutions": (), "hidden": 0, "layer_norm": False}
DEEP = {"convolutions": (3, 4), "hidden": 6, "layer_norm": False}
NORMALISED = {"convolutions": (3,), "hidden": 6, "layer_norm": True}
DECODERS = {"single layer": SINGLE, "convolutions": DEEP, "layer norm": NORMALISED}


@pytest.fixture(autouse=True)
def _one_thread():
    """Layers this small are ten times slower on threads that wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def n_em(decoder, distribution="bernoulli", seed=0, channels=2, size=(5, 6), rate=None):
    """A model in float64 with random weights (biases too), and no noise."""
    config = ModelConfig(
        m_step="gradient", channels=channels, height=size[0], width=size[1], theta_size=7, distribution=distribution,
        noise=NoiseConfig(), gamma_gradient=True, **decoder,
    )  # fmt: skip
    model = NeuralEM(config, seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.2)
        if rate is not None:
            model.m_step.learning_rate.fill_(rate)
    return model


def problem(model, seed, K=3, B=2):
    """A frame, assignments and a theta somewhere."""
    r = np.random.default_rng(seed)
    c = model.config
    x = r.random((B, c.channels, c.height, c.width))
    x = x.round() if c.distribution == "bernoulli" else x
    gamma = r.dirichlet(np.ones(K), (B, 1, c.height, c.width)).transpose(0, 4, 1, 2, 3)
    theta = r.normal(0, 1.5, (B, K, c.theta_size))
    return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in (x, gamma, theta))


def decode(model, theta):
    B, K, M = theta.shape
    return model.distribution.mean(model.m_step.decode(theta.reshape(B * K, M)).unflatten(0, (B, K)))


def expected_log_likelihood(model, x, gamma, theta):
    """Q by its definition: sum of gamma log P(x | psi(theta)), with probabilities that are not clipped."""
    psi, x = decode(model, theta), x.unsqueeze(1)
    if model.config.distribution == "bernoulli":
        log_probability = x * psi.log() + (1 - x) * (1 - psi).log()
    else:
        log_probability = -0.5 * (x - psi) ** 2
    return (gamma * log_probability).sum()


@pytest.mark.parametrize("distribution", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_gradient_step_follows_the_gradient_of_q(decoder, distribution):
    """The direction is autograd's of Q as defined, and central differences of Q agree."""
    model = n_em(DECODERS[decoder], distribution, rate=0.3)
    x, gamma, theta = problem(model, 1)
    theta.requires_grad_(True)
    (gradient,) = torch.autograd.grad(expected_log_likelihood(model, x, gamma, theta), theta)
    with torch.no_grad():
        delta = gamma * (x.unsqueeze(1) - decode(model, theta))
        new, eta = model.m_step(theta, delta)
        torch.testing.assert_close(new - theta, 0.3 * gradient, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(model.distribution.mean(eta), decode(model, new))
        direction = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        ahead, behind = (expected_log_likelihood(model, x, gamma, theta + h * direction).item() for h in (1e-6, -1e-6))
    assert (ahead - behind) / 2e-6 == pytest.approx((gradient * direction).sum().item(), rel=1e-5)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_paper_writes_the_same_step_by_psi(decoder):
    """Theirs is v = gamma d log P / d psi, theta += eta v^T (d psi / d theta), with the Jacobian of psi written out."""
    model = n_em(DECODERS[decoder], rate=0.7)
    x, gamma, theta = problem(model, 2, K=2, B=1)
    psi = decode(model, theta)
    v = gamma * (x.unsqueeze(1) / psi - (1 - x.unsqueeze(1)) / (1 - psi))
    jacobian = torch.func.jacrev(lambda theta: decode(model, theta))(theta)  # (*psi.shape, *theta.shape)
    expected = theta + 0.7 * torch.tensordot(v, jacobian, dims=5)
    new, _ = model.m_step(theta, gamma * (x.unsqueeze(1) - psi))
    torch.testing.assert_close(new, expected)


@pytest.mark.parametrize("distribution", ["bernoulli", "gaussian"])
def test_the_single_tied_layer_gives_the_authors_closed_form(distribution):
    """Theta += lr s(theta) (1 - s(theta)) * W^T delta; psi = s(W s(theta)), W^T in the authors' pixel order."""
    model = n_em(SINGLE, distribution, rate=-0.4, channels=3)
    assert dict(model.m_step.named_parameters()).keys() == {"learning_rate", "decoder.dense.0.weight"}
    x, gamma, theta = problem(model, 3)
    delta = gamma * (x.unsqueeze(1) - 0.3)  # any delta, not only that of psi(theta)
    new, eta = model.m_step(theta, delta)
    W = model.m_step.decoder.dense[0].weight.detach().numpy()  # (H*W*C, M)
    s = 1 / (1 + np.exp(-theta.numpy()))
    flat = delta.numpy().transpose(0, 1, 3, 4, 2).reshape(*theta.shape[:2], -1)
    expected = theta.numpy() - 0.4 * s * (1 - s) * (flat @ W)
    np.testing.assert_allclose(new.detach().numpy(), expected, atol=1e-12)
    images = (1 / (1 + np.exp(-expected))) @ W.T
    images = images.reshape(*theta.shape[:2], 5, 6, 3).transpose(0, 1, 4, 2, 3)
    np.testing.assert_allclose(eta.detach().numpy(), images, atol=1e-12)


@pytest.mark.parametrize("distribution", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_small_step_never_lowers_q(decoder, distribution):
    """The paper's guarantee, with the gain of a first-order step: rate * |dQ / d theta|^2."""
    rate = 1e-6
    for seed in range(25):
        model = n_em(DECODERS[decoder], distribution, seed, rate=rate)
        x, gamma, theta = problem(model, seed)
        with torch.no_grad():
            before = expected_log_likelihood(model, x, gamma, theta)
            new, _ = model.m_step(theta, gamma * (x.unsqueeze(1) - decode(model, theta)))
            gain = (expected_log_likelihood(model, x, gamma, new) - before).item()
            slope = ((new - theta) / rate).square().sum().item()
        assert gain > 0, seed
        assert gain == pytest.approx(rate * slope, rel=1e-2), seed


@pytest.mark.parametrize("distribution", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_steps_with_fixed_gamma_climb_q_all_the_way(decoder, distribution):
    model = n_em(DECODERS[decoder], distribution, seed=9, rate=1e-3)
    x, gamma, theta = problem(model, 9)
    values = []
    with torch.no_grad():
        for _ in range(60):
            values.append(expected_log_likelihood(model, x, gamma, theta).item())
            theta, _ = model.m_step(theta, gamma * (x.unsqueeze(1) - decode(model, theta)))
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(values))
    assert values[-1] > values[0]


@pytest.mark.parametrize("distribution", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("decoder", ["single layer", "convolutions"])
def test_whole_em_steps_climb_the_likelihood(decoder, distribution):
    """Through NeuralEM.step on a still image: M-step and E-step in turn never lower log P(x), as EM promises.

    The E-step's Gaussian must be the M-step's (deviation 1) for the bound to be the same one.
    """
    deviation = {"e_step_deviation": 1.0}
    model = n_em(DECODERS[decoder] | deviation, distribution, seed=4, channels=1, rate=2e-3)
    x, gamma, _ = problem(model, 4)
    values = []
    with torch.no_grad():
        state, _ = model.step(model.start(x, 3, gamma), x, x)  # from here on psi is theta's
        for _ in range(40):
            likelihood = model.distribution.likelihood(x.unsqueeze(1), state.psi)
            values.append(likelihood.mean(1).log().sum().item())
            state, _ = model.step(state, x, x)
    assert all(b >= a - 1e-7 * abs(a) for a, b in itertools.pairwise(values))
    assert values[-1] > values[0]


@pytest.mark.parametrize("decoder", DECODERS)
def test_gradients_flow_through_the_gradient_step(decoder):
    model = n_em(DECODERS[decoder], rate=0.5, size=(2, 2), channels=1)
    x, gamma, theta = problem(model, 5, K=2, B=1)
    delta = gamma * (x.unsqueeze(1) - 0.4)
    names, parameters = zip(*model.m_step.named_parameters(), strict=True)
    parameters = tuple(parameter.detach().clone().requires_grad_(True) for parameter in parameters)

    def step(theta, delta, *parameters):
        return torch.func.functional_call(model.m_step, dict(zip(names, parameters, strict=True)), (theta, delta))

    assert torch.autograd.gradcheck(step, (theta.requires_grad_(True), delta.requires_grad_(True), *parameters))


def test_the_step_works_without_gradients():
    model = n_em(DEEP)
    x, gamma, theta = problem(model, 6)
    with torch.inference_mode():
        a = model.m_step(theta, gamma * x.unsqueeze(1))
    b = model.m_step(theta, gamma * x.unsqueeze(1))
    assert b[0].requires_grad
    torch.testing.assert_close(a[0], b[0].detach())


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_recurrent_step_by_numpy(layer_norm):
    """The layer is a = W [input; state] + b, next state s(a), and the decoder reads s(LN(a))."""
    config = ModelConfig(channels=1, height=2, width=3, theta_size=4, convolutions=(), hidden=0, layer_norm=layer_norm)
    step = RecurrentMStep(config).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in step.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    p = {name: parameter.detach().numpy() for name, parameter in step.named_parameters()}
    r = np.random.default_rng(0)
    theta, delta = r.random((2, 3, 4)), r.normal(size=(2, 3, 1, 2, 3))
    new, eta = step(torch.from_numpy(theta), torch.from_numpy(delta))
    a = np.concatenate([delta.reshape(6, 6), theta.reshape(6, 4)], 1) @ p["recurrence.weight"].T + p["recurrence.bias"]
    np.testing.assert_allclose(new.detach().numpy().reshape(6, 4), 1 / (1 + np.exp(-a)), atol=1e-12)
    if layer_norm:
        a = (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-12)
        a = a * p["output.scale"] + p["output.offset"]
    expected = (1 / (1 + np.exp(-a))) @ p["decoder.dense.0.weight"].T + p["decoder.dense.0.bias"]
    np.testing.assert_allclose(eta.detach().numpy().reshape(6, 6), expected, atol=1e-12)


def test_the_components_do_not_see_each_other_in_the_m_step():
    for step in (RecurrentMStep, GradientMStep):
        model = NeuralEM(ModelConfig(
            m_step="recurrent" if step is RecurrentMStep else "gradient", height=4, width=4, theta_size=5,
            convolutions=(2,), hidden=3,
        )).double()  # fmt: skip
        assert type(model.m_step) is step
        theta, delta = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(2, 3, 1, 4, 4, dtype=torch.float64)
        whole = model.m_step(theta, delta)
        alone = model.m_step(theta[:1, 2:], delta[:1, 2:])
        for a, b in zip(whole, alone, strict=True):
            torch.testing.assert_close(a[:1, 2:], b)
