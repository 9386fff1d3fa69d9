"""The EM loop: against numpy, and by what must hold whatever the weights are."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from neural_em import NeuralEMError
from neural_em.model import ModelConfig
from tests.model.tiny_em import TINIES, TINY, assignment, build, frames

pytestmark = pytest.mark.usefixtures("one_thread")


# ---- against numpy


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def unroll_in_numpy(model, x, x_noisy, gamma):
    """The whole algorithm once more, for networks of a single layer, from the paper and the authors' conventions."""
    c = model.config
    p = {name: parameter.detach().numpy() for name, parameter in model.m_step.named_parameters()}
    T, (B, K) = len(x) - 1, gamma.shape[:2]
    theta, psi = np.zeros((B, K, c.theta_size)), np.zeros((B, K, c.channels, c.height, c.width))
    out = []
    for t in range(T):
        delta = gamma * (x_noisy[t][:, None] - psi)
        if c.normalize_input:
            mean, variance = delta.mean((2, 3, 4), keepdims=True), delta.var((2, 3, 4), keepdims=True)
            delta = (delta - mean) / np.sqrt(variance + 1e-12)
        flat = delta.transpose(0, 1, 3, 4, 2).reshape(B, K, -1)
        if c.m_step == "recurrent":
            theta = sigmoid(np.concatenate([flat, theta], 2) @ p["recurrence.weight"].T + p["recurrence.bias"])
            eta = theta @ p["decoder.dense.0.weight"].T + p["decoder.dense.0.bias"]
        else:
            W, s = p["decoder.dense.0.weight"], sigmoid(theta)
            theta = theta + p["learning_rate"] * s * (1 - s) * (flat @ W)
            eta = sigmoid(theta) @ W.T
        eta = eta.reshape(B, K, c.height, c.width, c.channels).transpose(0, 1, 4, 2, 3)
        target = x[t + 1][:, None]
        if c.distribution == "bernoulli":
            psi = sigmoid(eta)
            likelihood = np.where(target == 1, psi, 1 - psi)
            log_probability = target * np.log(psi) + (1 - target) * np.log(1 - psi)
            kl = c.prior * np.log(c.prior / psi) + (1 - c.prior) * np.log((1 - c.prior) / (1 - psi))
            best = psi.max(1)
            bound = -(x[t + 1] * np.log(best) + (1 - x[t + 1]) * np.log(1 - best))
        else:
            psi = eta
            likelihood = scipy.stats.norm.pdf(target, psi, c.e_step_deviation)
            log_probability, kl = -((target - psi) ** 2) / 2, (psi - c.prior) ** 2 / 2
            bound = (x[t + 1] - psi.max(1)) ** 2 / 2
        reduce = np.prod if c.channel_rule == "product" else np.sum
        gamma = reduce(likelihood, axis=2, keepdims=True) + 1e-6
        gamma = gamma / gamma.sum(1, keepdims=True)
        intra = -(gamma * log_probability).sum() / B
        inter = ((1 - gamma) * kl).sum() / B
        out.append((theta, psi, gamma, intra + c.inter_weight * inter, intra, inter, bound.sum() / B))
    return [np.stack(part) for part in zip(*out, strict=True)]


@pytest.mark.parametrize("m_step", ["recurrent", "gradient"])
@pytest.mark.parametrize("options", [
    {"distribution": "bernoulli", "prior": 0.3}, {"distribution": "bernoulli", "prior": 1e-3, "inter_weight": 0.0},
    {"distribution": "bernoulli", "prior": 0.5, "channel_rule": "sum"},
    {"distribution": "gaussian", "prior": 0.4, "e_step_deviation": 0.7, "inter_weight": 2.5},
    {"distribution": "gaussian", "normalize_input": True, "channel_rule": "sum"},
], ids=str)  # fmt: skip
def test_the_unroll_is_that_written_in_numpy(m_step, options):
    single_layer = {"convolutions": (), "hidden": 0, "layer_norm": False}
    config = ModelConfig(m_step=m_step, channels=2, height=3, width=4, theta_size=5, **single_layer, **options)
    model = build(config, seed=2)
    x = frames(config, T=4)
    x = x.round() if config.distribution == "bernoulli" else x
    x_noisy, gamma = frames(config, T=4, seed=7)[:4], assignment(config)
    out = model.unroll(x, components=3, x_noisy=x_noisy, gamma=gamma)
    expected = unroll_in_numpy(model, x.numpy(), x_noisy.numpy(), gamma.numpy())
    for name, array in zip(out._fields[:7], expected, strict=True):
        np.testing.assert_allclose(getattr(out, name).detach().numpy(), array, rtol=1e-9, atol=1e-12, err_msg=name)
    assert out.loss.item() == pytest.approx(expected[3].sum())


@pytest.mark.parametrize(("loss_steps", "weights"), [
    ("every", [1, 1, 1]), ("last", [0, 0, 1]), ((0.1, 0.0, 2.5), [0.1, 0.0, 2.5]), ((3,), None),
])  # fmt: skip
def test_the_loss_weighs_the_steps(loss_steps, weights):
    config = dataclasses.replace(TINY, loss_steps=loss_steps)
    x = frames(config)
    if weights is None:
        with pytest.raises(NeuralEMError, match=r"model\.loss_steps: expected 3 weights for 3 steps, got 1 weights"):
            build(config).unroll(x, 3)
        return
    out = build(config).unroll(x, 3, generator=torch.Generator().manual_seed(1))
    assert out.loss.item() == pytest.approx(float(out.total.detach().numpy() @ weights), rel=1e-14)


# ---- what holds for any weights


@pytest.mark.parametrize("name", TINIES)
@pytest.mark.parametrize("K", [1, 2, 5])
def test_shapes_and_gamma_sums_to_one(name, K):
    config = TINIES[name]
    T, B, C, H, W, M = 3, 2, config.channels, 4, 6, 5
    for seed in range(5):
        out = build(config, seed).unroll(frames(config, T, B), K, generator=torch.Generator().manual_seed(seed))
        assert out.theta.shape == (T, B, K, M)
        assert out.psi.shape == (T, B, K, C, H, W)
        assert out.gamma.shape == (T, B, K, 1, H, W)
        assert out.total.shape == out.intra.shape == out.inter.shape == out.upper_bound.shape == (T,)
        assert out.loss.shape == ()
        assert bool((out.gamma >= 0).all())
        torch.testing.assert_close(out.gamma.sum(2), torch.ones(T, B, 1, H, W, dtype=torch.float64))
        assert all(bool(torch.isfinite(part).all()) for part in out)


@pytest.mark.parametrize("name", TINIES)
def test_permuting_the_start_permutes_the_result(name):
    config, order = TINIES[name], [2, 0, 3, 1]
    model, x, gamma = build(config), frames(config), assignment(config, K=4)
    x_noisy = frames(config, seed=5)[:3]
    out = model.unroll(x, 4, x_noisy=x_noisy, gamma=gamma)
    other = model.unroll(x, 4, x_noisy=x_noisy, gamma=gamma[:, order])
    for field in ("theta", "psi", "gamma"):
        torch.testing.assert_close(getattr(other, field), getattr(out, field)[:, :, order], rtol=1e-8, atol=1e-10)
    assert not torch.allclose(out.theta, out.theta[:, :, order])  # the copies did differ
    for field in ("total", "intra", "inter", "upper_bound", "loss"):
        torch.testing.assert_close(getattr(other, field), getattr(out, field), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", TINIES)
def test_equal_starts_stay_equal(name):
    """The random start is the only thing that tells the copies apart."""
    config = TINIES[name]
    out = build(config).unroll(frames(config), 3, gamma=torch.full((2, 3, 1, 4, 6), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(out.psi, out.psi[:, :, :1].expand_as(out.psi), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(out.gamma, torch.full_like(out.gamma, 1 / 3))


@pytest.mark.parametrize("name", TINIES)
def test_a_sample_is_the_same_in_any_batch(name):
    config = TINIES[name]
    model, x, gamma = build(config), frames(config, B=3), assignment(config, B=3)
    x_noisy = frames(config, B=3, seed=2)[:3]
    out = model.unroll(x, 3, x_noisy=x_noisy, gamma=gamma)
    alone = model.unroll(x[:, 1:2], 3, x_noisy=x_noisy[:, 1:2], gamma=gamma[1:2])
    torch.testing.assert_close(alone.psi, out.psi[:, 1:2], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(alone.gamma, out.gamma[:, 1:2], rtol=1e-8, atol=1e-10)


class Loss(nn.Module):
    """The training loss of a replayed unroll, as a function of parameters and first assignment."""

    def __init__(self, model, x, x_noisy):
        super().__init__()
        self.model, self.x, self.x_noisy = model, x, x_noisy

    def forward(self, gamma):
        return self.model.unroll(self.x, gamma.shape[1], x_noisy=self.x_noisy, gamma=gamma).loss


@pytest.mark.parametrize("loss_steps", ["every", "last"])
@pytest.mark.parametrize("options", [
    {"m_step": "recurrent", "convolutions": (), "hidden": 0, "layer_norm": False},
    {"m_step": "recurrent", "convolutions": (2,), "hidden": 3, "layer_norm": True},
    {"m_step": "recurrent", "convolutions": (), "hidden": 3, "distribution": "gaussian", "normalize_input": True},
    {"m_step": "gradient", "convolutions": (), "hidden": 0, "layer_norm": False},
    {"m_step": "gradient", "convolutions": (2,), "hidden": 3, "layer_norm": True, "distribution": "gaussian"},
], ids=str)  # fmt: skip
def test_gradcheck_with_gradients_through_gamma(options, loss_steps):
    config = ModelConfig(height=2, width=2, theta_size=2, gamma_gradient=True, loss_steps=loss_steps, **options)
    loss = Loss(build(config, seed=6), frames(config, B=1), frames(config, B=1, seed=3)[:3])
    names, parameters = zip(*loss.named_parameters(), strict=True)
    parameters = [parameter.detach().clone().requires_grad_(True) for parameter in parameters]
    gamma = assignment(config, B=1, K=2).requires_grad_(True)

    def function(gamma, *parameters):
        return torch.func.functional_call(loss, dict(zip(names, parameters, strict=True)), (gamma,))

    assert torch.autograd.gradcheck(function, (gamma, *parameters), eps=1e-6, atol=1e-5)


def test_without_gradients_through_gamma_it_is_a_constant():
    """The gradients are those of a loop whose assignments were all written down beforehand."""
    config = dataclasses.replace(TINY, gamma_gradient=False, inter_weight=0.7)
    model, x, x_noisy, gamma = build(config), frames(config), frames(config, seed=4)[:3], assignment(config)
    out = model.unroll(x, 3, x_noisy=x_noisy, gamma=gamma)
    assert not out.gamma.requires_grad
    ours = torch.autograd.grad(out.loss, list(model.parameters()))
    given = [gamma, *out.gamma]
    theta, psi = torch.zeros(2, 3, 5, dtype=torch.float64), torch.zeros(2, 3, 1, 4, 6, dtype=torch.float64)
    loss = 0
    for t in range(3):
        theta, eta = model.m_step(theta, given[t] * (x_noisy[t].unsqueeze(1) - psi))
        psi, target = eta.sigmoid(), x[t + 1].unsqueeze(1)
        intra = -given[t + 1] * (target * psi.log() + (1 - target) * (1 - psi).log())
        loss = loss + (intra - 0.7 * (1 - given[t + 1]) * (1 - psi).log()).sum() / 2
    for a, b in zip(ours, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    through = build(dataclasses.replace(config, gamma_gradient=True))
    other = torch.autograd.grad(through.unroll(x, 3, x_noisy=x_noisy, gamma=gamma).loss, list(through.parameters()))
    assert any(not torch.allclose(a, b) for a, b in zip(ours, other, strict=True))


@pytest.mark.parametrize("name", TINIES)
def test_the_upper_bound_is_only_watched(name):
    config = TINIES[name]
    out = build(config).unroll(frames(config), 2)
    assert not out.upper_bound.requires_grad
    assert out.loss.requires_grad


def test_normalised_input_has_zero_mean_and_unit_deviation_for_each_component():
    config, seen = TINIES["rnn-em, gaussian"], []
    model = build(config)
    model.m_step.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[1].detach()))
    model.unroll(frames(config), 3)
    for delta in seen:
        flat = delta.flatten(2)
        torch.testing.assert_close(flat.mean(2), torch.zeros(2, 3, dtype=torch.float64), rtol=0, atol=1e-12)
        torch.testing.assert_close(flat.std(2, correction=0), torch.ones(2, 3, dtype=torch.float64))
