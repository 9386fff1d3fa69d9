"""What is random in an unroll: the noise and the start, drawn inside it, outside it, or from the samples' keys."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats
import torch

from neural_em import NeuralEM, randomness
from neural_em.model import ModelConfig, NoiseConfig, State

TINY = ModelConfig(height=4, width=6, theta_size=5, convolutions=(2,), hidden=4)


def build(config):
    return NeuralEM(config).double()


def frames(config, T=3, B=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    size = (config.channels, config.height, config.width)
    return torch.rand(T + 1, B, *size, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(("kind", "changed"), [("bit-flips", 0.3), ("masked-uniform", 0.3), ("none", 0.0)])
def test_a_single_image_has_fresh_noise_at_each_step(kind, changed):
    """With one component the network's input is x_noisy - psi, which tells the noise; the target stays clean."""
    config = ModelConfig(height=20, width=20, theta_size=3, convolutions=(), hidden=0, noise=NoiseConfig(kind, 0.3))
    model, inputs = build(config), []
    model.m_step.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[1].detach()))
    x = frames(config, T=0, B=4).clamp(0.05, 0.95)
    out = model.unroll(x, 1, steps=6, generator=torch.Generator().manual_seed(3))
    psi = torch.cat([torch.zeros_like(out.psi[:1]), out.psi[:-1].detach()])
    hits = torch.stack([(delta + p)[:, 0] - x[0] for delta, p in zip(inputs, psi, strict=True)]).abs() > 1e-9
    count = hits.numel()
    if kind == "none":
        assert not bool(hits.any())
        return
    assert scipy.stats.binomtest(int(hits.sum()), count, changed).pvalue > 1e-4
    both = int((hits[0] & hits[1]).sum())  # independent between steps: p * p of the pixels are hit twice
    assert scipy.stats.binomtest(both, count // 6, changed**2).pvalue > 1e-4
    bound = -(x[0] * out.psi[-1, :, 0].log() + (1 - x[0]) * (1 - out.psi[-1, :, 0]).log()).sum() / 4
    torch.testing.assert_close(out.upper_bound[-1], bound.detach())


def test_what_is_drawn_in_an_unroll_can_be_drawn_outside_and_replayed():
    model, x = build(TINY), frames(TINY)
    out = model.unroll(x, 3, generator=torch.Generator().manual_seed(11))
    generator = torch.Generator().manual_seed(11)
    x_noisy = model.add_noise(x[:3], generator)
    gamma = model.start(x[0], 3, generator=generator).gamma
    again = model.unroll(x, 3, x_noisy=x_noisy, gamma=gamma)
    for a, b in zip(out, again, strict=True):
        assert torch.equal(a, b)
    other = model.unroll(x, 3, generator=torch.Generator().manual_seed(12))
    assert not torch.equal(other.gamma, out.gamma)


def test_a_replay_uses_no_randomness():
    model, x = build(TINY), frames(TINY)
    before = torch.get_rng_state()
    model.unroll(x, 3, x_noisy=x[:3], gamma=torch.full((2, 3, 1, 4, 6), 1 / 3, dtype=torch.float64))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_start_is_zero_but_for_gamma():
    model = build(dataclasses.replace(TINY, height=40, width=50))
    state = model.start(torch.rand(3, 1, 40, 50, dtype=torch.float64), 2, generator=torch.Generator().manual_seed(0))
    assert isinstance(state, State)
    assert not bool(state.theta.any())
    assert not bool(state.psi.any())
    assert half_normal_share(state.gamma[:, 0]) > 1e-3


def half_normal_share(gamma):
    """P-value that gamma = |a| / (|a| + |b|) of two standard normals: |a| / |b| is half-Cauchy."""
    return scipy.stats.kstest(gamma.flatten().numpy(), lambda g: 2 / math.pi * np.arctan(g / (1 - g))).pvalue


KEYS = randomness.keys(3, torch.arange(6))


@pytest.mark.parametrize("kind", ["bit-flips", "masked-uniform", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_belong_to_the_key(kind, dtype):
    """Neither the rest of the batch nor the length of the sequence changes what is drawn for a sample."""
    config = dataclasses.replace(TINY, channels=2, noise=NoiseConfig(kind, 0.3))
    model, x = NeuralEM(config).to(dtype), frames(config, T=5, B=6, dtype=dtype)
    x_noisy, gamma = model.draw(x, 3, KEYS)
    assert x_noisy.shape == (5, 6, 2, 4, 6)
    assert gamma.shape == (6, 3, 1, 4, 6)
    assert x_noisy.dtype == gamma.dtype == dtype
    some = [4, 0, 2]
    part, start = model.draw(x[:, some], 3, KEYS[some], steps=2)
    assert torch.equal(part, x_noisy[:2, some])
    assert torch.equal(start, gamma[some])
    torch.testing.assert_close(gamma.sum(1), torch.ones(6, 1, 4, 6, dtype=dtype))
    assert model.unroll(x, 3, x_noisy=x_noisy, gamma=gamma).psi.dtype == dtype
    other, other_start = model.draw(x, 3, KEYS + 1)
    assert torch.equal(other, x_noisy) == (kind == "none")
    assert not torch.equal(other_start, gamma)


def test_draws_in_both_precisions_hit_the_same_pixels():
    model, x = NeuralEM(TINY), frames(TINY, T=5, B=6)
    single, double = model.draw(x.float(), 3, KEYS)[0], model.double().draw(x, 3, KEYS)[0]
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-6)


@pytest.mark.parametrize("single_image", [False, True])
def test_the_statistics_of_the_draws(single_image):
    config = dataclasses.replace(TINY, height=20, width=20, noise=NoiseConfig("bit-flips", 0.2))
    keys = randomness.keys(1, torch.arange(20))
    x = torch.zeros(1 if single_image else 11, 20, 1, 20, 20, dtype=torch.float64)
    noisy, gamma = build(config).draw(x, 2, keys, steps=10)
    assert scipy.stats.binomtest(int(noisy.sum()), noisy.numel(), 0.2).pvalue > 1e-4
    for a, b in ((noisy[:-1], noisy[1:]), (noisy[:, :-1], noisy[:, 1:]), (noisy[..., :-1], noisy[..., 1:])):
        assert scipy.stats.binomtest(int((a * b).sum()), a.numel(), 0.04).pvalue > 1e-4  # independent neighbours
    assert half_normal_share(gamma[:, 0]) > 1e-3
    config = dataclasses.replace(config, noise=NoiseConfig("masked-uniform", 0.4), distribution="gaussian")
    noisy, _ = build(config).draw(x - 1, 2, keys, steps=10)
    hit = noisy[noisy >= 0]
    assert scipy.stats.binomtest(hit.numel(), noisy.numel(), 0.4).pvalue > 1e-4
    assert scipy.stats.kstest(hit.numpy(), "uniform").pvalue > 1e-4
