"""Components, sizes and steps are free."""

import dataclasses

import numpy as np
import pytest
import torch

from neural_em import NeuralEM, randomness
from neural_em.model import preset
from tests.model.tiny_em import TINIES, TINY, assignment, build, frames
from tests.tiny import NETWORKS

pytestmark = pytest.mark.usefixtures("one_thread")


def test_components_are_chosen_at_call_time():
    model, x = build(TINY), frames(TINY)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.unroll(x, components=3).loss.backward()
    optimizer.step()
    for K in (1, 2, 5, 9, np.int64(4)):
        assert model.unroll(x, components=K).gamma.shape == (3, 2, K, 1, 4, 6)


SIZES = [(1, 1, 1), (1, 2, 3), (3, 5, 7), (2, 9, 1), (4, 17, 11)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_preset_builds_for_any_size_and_number_of_components(name, size):
    C, H, W = size
    config = dataclasses.replace(preset(name), channels=C, height=H, width=W)
    model, x = NeuralEM(config), torch.rand(3, 2, *size, generator=torch.Generator().manual_seed(0))
    for K in (1, 3):
        out = model.unroll(x, K, generator=torch.Generator().manual_seed(1))
        assert out.psi.shape == (2, 2, K, *size)
        torch.testing.assert_close(out.gamma.sum(2), torch.ones(2, 2, 1, H, W))
        model.zero_grad()
        out.loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert K == 1 or None not in gradients  # a single component has no pairs
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients if gradient is not None)
        assert any(bool((parameter.grad != 0).any()) for parameter in model.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_one_component_is_a_recurrent_autoencoder(name):
    """It owns every pixel exactly, so nothing is left for the inter-cluster loss, and the bound is the loss."""
    config = dataclasses.replace(preset(name), height=11, width=10)
    model, x = NeuralEM(config), torch.rand(3, 2, config.channels, 11, 10)
    assert bool((model.start(x[0], 1).gamma == 1).all())
    assert bool((model.draw(x, 1, torch.tensor([1, 2]))[1] == 1).all())
    out = model.unroll(x, 1)
    assert bool((out.gamma == 1).all())
    assert bool((out.inter == 0).all())
    if config.distribution != "masked":  # whose bound is of frames, without masks
        torch.testing.assert_close(out.intra, out.upper_bound)
    torch.testing.assert_close(out.total, out.intra)


def test_steps_are_free():
    model, x = build(TINY), frames(TINY, T=5)
    x_noisy, gamma = frames(TINY, T=5, seed=1), assignment(TINY)
    whole = model.unroll(x, 3, x_noisy=x_noisy, gamma=gamma)
    short = model.unroll(x, 3, steps=2, x_noisy=x_noisy, gamma=gamma)
    assert short.psi.shape[0] == 2
    assert torch.equal(short.psi, whole.psi[:2])
    assert torch.equal(short.total, whole.total[:2])
    image = model.unroll(x[:1], 3)
    assert image.psi.shape[0] == TINY.steps
    assert model.unroll(x[:1], 3, steps=7).psi.shape[0] == 7


@pytest.mark.parametrize("name", TINIES)
def test_stepping_a_stream_is_the_unroll(name):
    config = TINIES[name]
    model, x, gamma = build(config), frames(config, T=4), assignment(config)
    out = model.unroll(x, 3, x_noisy=x, gamma=gamma)
    state = model.start(x[0], 3, gamma=gamma)
    for t in range(4):
        state, info = model.step(state, x[t], x[t + 1])
        for field in ("theta", "psi", "gamma"):
            assert torch.equal(getattr(state, field), getattr(out, field)[t])
        for field in ("total", "intra", "inter", "upper_bound"):
            assert getattr(info, field).shape == (2,)
            torch.testing.assert_close(getattr(info, field).mean(), getattr(out, field)[t])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", TINIES)
def test_draws_and_unroll_are_the_same_on_a_gpu(name):
    config = TINIES[name]
    model, x = build(config), frames(config, T=3, B=6)
    keys = randomness.keys(3, torch.arange(6))
    drawn, out = model.draw(x, 3, keys), []
    for device in ("cpu", "cuda"):
        model, x = model.to(device), x.to(device)
        x_noisy, gamma = model.draw(x, 3, keys)
        assert torch.equal(x_noisy.cpu(), drawn[0])
        torch.testing.assert_close(gamma.cpu(), drawn[1], rtol=1e-5, atol=1e-6)
        out.append(model.unroll(x, 3, x_noisy=x_noisy, gamma=drawn[1].to(device)))
    for a, b in zip(*out, strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=1e-6, atol=1e-8)
