"""Gradients a few steps at a time: exact ones equal the whole unroll's; truncated ones are the segments' own."""

import pytest
import torch

from neural_em import randomness
from neural_em.model import ModelConfig, NeuralEM
from neural_em.model.fast import accelerate
from neural_em.training.step import segmented_gradients

SMALL = {"height": 8, "width": 8, "theta_size": 5, "hidden": 12, "convolutions": (4,)}


def gradients(model):
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found


def setting(**options):
    model = NeuralEM(ModelConfig(**SMALL | options), seed=3).double()
    x = (torch.rand(8, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0)) < 0.3).double()
    x_noisy, gamma = model.draw(x, 3, randomness.keys(1, torch.arange(2)))
    return model, x, x_noisy, gamma


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gamma_gradient": True, "loss_steps": "last"},
        {"m_step": "gradient", "convolutions": (), "hidden": 0, "layer_norm": False},
    ],
)
@pytest.mark.parametrize("length", [1, 3, 7, 20])
@pytest.mark.parametrize("engine", [lambda model: model, accelerate])
def test_segments_give_the_gradients_of_the_whole(options, length, engine):
    model, x, x_noisy, gamma = setting(**options)
    out = model.unroll(x, 3, x_noisy=x_noisy, gamma=gamma)
    out.loss.backward()
    whole = gradients(model)
    network = engine(model)
    loss = segmented_gradients(network, x, x_noisy, network.start(x[0], 3, gamma), 0.5, length, truncate=False)
    torch.testing.assert_close(loss, 0.5 * out.loss.detach(), rtol=1e-12, atol=0)
    for ours, theirs in zip(gradients(model), whole, strict=True):
        torch.testing.assert_close(ours, 0.5 * theirs, rtol=1e-9, atol=1e-12)


def test_truncated_segments_each_go_back_on_their_own():
    model, x, x_noisy, gamma = setting()
    state = model.start(x[0], 3, gamma)
    for t in range(7):  # by hand: a new graph every two steps
        if t % 2 == 0:
            state = type(state)(*(part.detach() for part in state[:3]))
        state, info = model.step(state, x_noisy[t], x[t + 1])
        info.total.mean().backward(retain_graph=True)
    expected = gradients(model)
    segmented_gradients(model, x, x_noisy, model.start(x[0], 3, gamma), 1.0, 2, truncate=True)
    for ours, theirs in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
