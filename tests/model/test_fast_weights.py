"""The fast path and weights that change: what a step computes follows from the weights as they are at that moment."""

import copy
import dataclasses

import pytest
import torch

from neural_em.model import ModelConfig, NeuralEM, preset
from neural_em.model.fast import accelerate
from neural_em.model.fast.linear import PACKS, FastDense
from tests.tiny import NETWORKS


def put(model, change):
    with torch.no_grad():
        for parameter in model.parameters():
            change(parameter)


def optimizer_step(model, **options):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1, **options).step()


def assigned(model):
    other = NeuralEM(model.config, seed=9).double()
    model.load_state_dict(other.state_dict(), assign=True)


def halved(model):
    """As if the model had been trained in half precision."""
    model.half()
    model.double()


def new_decoder(model):
    model.m_step.decoder = NeuralEM(model.config, seed=9).double().m_step.decoder


CHANGES = {
    "in place": lambda model: put(model, lambda p: p.mul_(1.5)),
    "through data": lambda model: put(model, lambda p: p.data.mul_(1.5)),
    "other data": lambda model: put(model, lambda p: setattr(p, "data", p.data * 1.5)),
    "through numpy": lambda model: put(model, lambda p: p.numpy().__imul__(1.5)),
    "one number": lambda model: put(model, lambda p: p.view(-1)[-1].add_(0.5)),
    "optimizer, each": lambda model: optimizer_step(model, foreach=False),
    "optimizer, together": lambda model: optimizer_step(model, foreach=True),
    "optimizer, fused": lambda model: optimizer_step(model, fused=True),
    "state": lambda model: model.load_state_dict(NeuralEM(model.config, seed=9).state_dict()),
    "state, assigned": assigned,
    "precision": halved,
    "decoder": new_decoder,
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("change", CHANGES)
def test_a_step_uses_the_weights_as_they_are(change, mode):
    """Whatever the weights were when the sequence, or the step before, was made."""
    config = ModelConfig(height=8, width=8, theta_size=8, convolutions=(2, 3), hidden=6)
    model = NeuralEM(config, seed=1).double()
    twin = accelerate(model)
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with mode():
        state = twin.start(x, 3, generator=torch.Generator().manual_seed(1))
        before = twin.step(state, x, x)[1].total.sum()
        CHANGES[change](model)
        ours, theirs = (each.step(state, x, x)[1].total.sum() for each in (twin, model))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    assert abs(float(ours.detach()) - float(before.detach())) > 1e-3


def test_weights_made_in_inference_mode_are_read_too():
    config = ModelConfig(height=8, width=8, theta_size=8, convolutions=(2, 3), hidden=6)
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model = NeuralEM(config, seed=1)
        twin = accelerate(model)
        state = twin.start(x, 3, generator=torch.Generator().manual_seed(1))
        twin.step(state, x, x)
        for parameter in model.parameters():
            parameter.mul_(1.5)
        torch.testing.assert_close(twin.step(state, x, x)[1].total, model.step(state, x, x)[1].total)


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_have_gradients_whatever_the_start_was_made_in(name):
    config = dataclasses.replace(preset(name), theta_size=8, hidden=preset(name).hidden and 6)
    config = dataclasses.replace(config, convolutions=tuple(2 for _ in config.convolutions))
    model = NeuralEM(config, seed=1).double()
    twin = accelerate(model)
    shape = (2, config.channels, config.height, config.width)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.inference_mode():
        gamma = twin.start(x, 3, generator=torch.Generator().manual_seed(1)).gamma
        twin.step(twin.start(x, 3, gamma), x, x)
    gradients = []
    for network in (model, twin):
        state = network.start(x, 3, gamma.clone())
        for _ in range(3):
            state, info = network.step(state, x, x)
        gradients.append(torch.autograd.grad(info.total.sum(), list(model.parameters())))
    for ours, theirs in zip(*reversed(gradients), strict=True):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_the_twin_holds_no_memory_of_a_run():
    model = NeuralEM(ModelConfig(height=8, width=8, theta_size=8, convolutions=(2, 3), hidden=6), seed=1)
    twin = accelerate(model)
    x = torch.rand(3, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    twin.unroll(x, 3).loss.backward()
    copied = copy.deepcopy(twin)  # which refuses tensors that are part of a graph
    torch.testing.assert_close(*(each.step(each.start(x[0], 1), x[0], x[1])[1].total for each in (copied, model)))
    assert not {id(p) for p in copied.parameters()} & {id(p) for p in model.parameters()}


def test_a_large_matrix_that_is_kept_gives_the_plain_models_step():
    model = NeuralEM(ModelConfig(height=32, width=32, convolutions=(8, 64), hidden=512, theta_size=20))  # 4096 x 512
    twin, x = accelerate(model), torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    twin.keep()
    assert any(layer.held[0][0].is_mkldnn for layer in twin.layers if isinstance(layer, FastDense)) is PACKS
    with torch.inference_mode():
        for many, each in ((1, twin), (5, twin), (5, copy.deepcopy(twin))):
            frames = x.expand(many, -1, -1, -1)
            state = model.start(frames, 3, generator=torch.Generator().manual_seed(0))
            steps = (network.step(state, frames, frames, check=False)[0][:3] for network in (each, model))
            for ours, plain in zip(*steps, strict=True):
                torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
