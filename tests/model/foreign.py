"""Models with parts that the fast path does not know, and what they compute through it and without it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from neural_em import randomness
from neural_em.model import ModelConfig, NeuralEM
from neural_em.model.fast import accelerate

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
