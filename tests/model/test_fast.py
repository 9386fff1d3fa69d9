"""The fast path is held to the authors' numbers and to the plain path."""

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from neural_em import randomness
from neural_em.errors import NeuralEMError
from neural_em.model import ModelConfig, NeuralEM, preset
from neural_em.model.fast import FastNeuralEM, accelerate, linear
from neural_em.model.fast.convolutions import FastConvolution
from neural_em.model.fast.gathering import StepMemory, join
from neural_em.model.fast.twin import kernels_for
from neural_em.model.networks import Activation, Dense, initialise
from tests.model.test_golden import CASES, authors_model, check, unrolled

PRESETS = ("static-shapes", "static-shapes-nem", "flying-shapes", "flying-mnist")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_authors_implementation(case, dtype):
    golden, spec, model = authors_model(case)
    check(golden, spec, model, unrolled(golden, spec, model, accelerate, dtype=dtype))


def trained(model, network, x, steps, components=3):
    """Losses of so many steps of Adam through the given twin."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    losses = []
    for step in range(steps):
        x_noisy, gamma = model.draw(x, components, randomness.keys(step, torch.arange(x.shape[1])))
        loss = network.unroll(x, components, x_noisy=x_noisy, gamma=gamma).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("dtype", "steps", "tolerance"), [(torch.float64, 50, 1e-9), (torch.float32, 10, 1e-3)])
def test_trains_as_the_plain_path_does(name, dtype, steps, tolerance):
    config = preset(name)
    narrow = {"hidden": config.hidden // 8, "convolutions": tuple(c // 8 for c in config.convolutions)}
    config = dataclasses.replace(config, theta_size=32, **narrow)
    x = (torch.rand(3, 2, 1, config.height, config.width, generator=torch.Generator().manual_seed(5)) < 0.3).to(dtype)
    losses = []
    for twin in (lambda model: model, accelerate):
        model = NeuralEM(config, seed=1).to(dtype)
        losses.append(trained(model, twin(model), x, steps))
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=0)


def assert_one_model(twin, model):
    """Every parameter of one is the other's, under one name."""
    ours, theirs = dict(twin.named_parameters()), dict(model.named_parameters())
    assert list(ours) == list(theirs)
    assert all(ours[name] is parameter for name, parameter in theirs.items())
    assert list(twin.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("name", PRESETS)
def test_shares_its_parameters_with_the_plain_model(name):
    model = NeuralEM(preset(name))
    twin = accelerate(model)
    assert_one_model(twin, model)
    other = NeuralEM(preset(name), seed=5)
    twin.load_state_dict(other.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    assert_one_model(twin.double(), model)
    assert next(model.parameters()).dtype == torch.float64
    again = accelerate(twin)
    assert type(again) is FastNeuralEM
    assert_one_model(again, model)


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 13, 10), (2, 5, 28)])
def test_any_frame_size(size):
    C, H, W = size
    for name in PRESETS:
        config = dataclasses.replace(preset(name), channels=C, height=H, width=W)
        model = NeuralEM(config, seed=2).double()
        x = torch.rand(3, 2, C, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        x_noisy, gamma = model.draw(x, 4, randomness.keys(0, torch.arange(2)))
        both = [twin.unroll(x, 4, x_noisy=x_noisy, gamma=gamma) for twin in (model, accelerate(model))]
        for ours, theirs in zip(both[1], both[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("by_products", [True, False])
@pytest.mark.parametrize("size", [(1, 28, 28), (1, 13, 10), (3, 12, 16)])
def test_gradients_of_convolutions_either_way(by_products, size, monkeypatch):
    """As on ARM and as elsewhere, whatever this processor is."""
    monkeypatch.setattr(FastConvolution, "by_products", by_products)
    C, H, W = size
    narrow = {"theta_size": 5, "hidden": 6, "convolutions": (3, 4)}
    config = dataclasses.replace(preset("flying-shapes"), channels=C, height=H, width=W, **narrow)
    model = NeuralEM(config, seed=2).double()
    x = torch.rand(4, 2, C, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(2)))
    found = []
    for twin in (model, accelerate(model)):
        model.zero_grad()
        twin.unroll(x, 3, x_noisy=x_noisy, gamma=gamma).loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        ours, theirs = (twin.unroll(x, 3, x_noisy=x_noisy, gamma=gamma) for twin in (accelerate(model), model))
    torch.testing.assert_close(ours.psi, theirs.psi, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("on_arm", [True, False])
@pytest.mark.parametrize("rows", [1, 8, 100])
def test_products_of_few_rows_either_way(on_arm, rows, monkeypatch):
    """As on ARM and as elsewhere, whatever this processor is."""
    monkeypatch.setattr(linear, "ON_ARM", on_arm)
    random = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.rand(size, dtype=torch.float64, generator=random) for size in ((rows, 1024), (3, 1024), 3))
    found = linear.FastDense.product(x, weight, bias)
    np.testing.assert_allclose(found.numpy(), x.numpy() @ weight.numpy().T + bias.numpy(), rtol=1e-12)
    assert found.is_contiguous()


class Foreign(torch.nn.Module):
    """An encoder of layers that the fast path does not know, with one among them that it does."""

    def __init__(self):
        super().__init__()
        inner = torch.nn.Sequential(Dense(64, 32), Activation(32, "elu"))
        first = torch.nn.Conv2d(1, 16, 4, stride=4, bias=False)
        self.layers = torch.nn.Sequential(first, torch.nn.ELU(), torch.nn.Flatten(), inner)
        initialise(self, torch.Generator().manual_seed(0))

    def forward(self, x):
        return self.layers(x)


def in_16_bits(monkeypatch, scale, loss_scale=1.0):
    """Loss and gradients of a model whose large weights were multiplied by a scale: float64, float32, 16-bit floats."""
    for dtype, halves in ((torch.float64, False), (torch.float32, False), (torch.float32, True)):
        monkeypatch.setattr(
            linear, "in_halves", lambda weight, least, halves=halves: halves and weight.numel() >= least
        )
        model = NeuralEM(preset("flying-shapes"), seed=1).to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale if parameter.numel() >= linear.LARGE else 1.0)
        x = torch.rand(3, 4, 1, 28, 28, generator=torch.Generator().manual_seed(5)).to(dtype)
        x_noisy, gamma = model.draw(x, 2, randomness.keys(0, torch.arange(4)))
        loss = accelerate(model).unroll(x, 2, x_noisy=x_noisy, gamma=gamma).loss
        (loss * loss_scale).backward()
        yield loss.detach().double(), [parameter.grad.double() / loss_scale for parameter in model.parameters()]


@pytest.mark.parametrize(("scale", "loss_scale"), [(1.0, 1.0), (1e-3, 1e-15), (300.0, 1e15), (1.0, 1e30)])
def test_large_layers_in_16_bits_are_about_as_exact_as_tf32(scale, loss_scale, monkeypatch):
    """Whatever the size of weights and gradients: 16-bit floats by themselves hold neither."""
    (loss, exact), (_, fine), (coarse_loss, coarse) = in_16_bits(monkeypatch, scale, loss_scale)
    torch.testing.assert_close(coarse_loss, loss, rtol=1e-3, atol=0)
    for ours, close, true in zip(coarse, fine, exact, strict=True):
        assert not torch.equal(ours, close)  # they are in use
        assert (ours - true).norm() <= 0.03 * true.norm()


def test_a_model_in_16_bits():
    """All of it: that its numbers have 16 bits does not mean that they were scaled."""
    model = NeuralEM(ModelConfig(height=8, width=8, theta_size=5, convolutions=(4, 6), hidden=7), seed=1).half()
    x = torch.rand(4, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0)).round().half()
    x_noisy, gamma = model.draw(x, 2, randomness.keys(0, torch.arange(2)))
    loss = accelerate(model).unroll(x, 2, x_noisy=x_noisy, gamma=gamma).loss
    coarse = torch.autograd.grad(loss, list(model.parameters()))
    loss = model.double().unroll(x.double(), 2, x_noisy=x_noisy.double(), gamma=gamma.double()).loss
    for ours, true in zip(coarse, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        assert (ours - true).norm() < 0.5 * true.norm()


def test_a_gpu_on_which_no_kernel_can_be_compiled(monkeypatch):
    """Triton is there, and the compiler that it calls is not: one line, and the way without kernels."""

    def uniform(keys, count):
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    kernels = SimpleNamespace(uniform=uniform)
    monkeypatch.setattr("neural_em.model.fast.kernels", kernels, raising=False)
    monkeypatch.setitem(sys.modules, "neural_em.model.fast.kernels", kernels)
    monkeypatch.setattr(torch, "zeros", lambda *size, **how: None)  # there need not be a GPU
    with pytest.warns(UserWarning, match=r"no fused GPU kernels, training is slower: Failed to find C compiler\.$"):
        assert kernels_for.__wrapped__("cuda") is None


def test_layers_it_does_not_know_stay_as_they_are():
    model = NeuralEM(ModelConfig(height=8, width=8, theta_size=8, convolutions=(), hidden=32))
    model.m_step.encoder = Foreign()
    model = model.double()
    x = torch.rand(4, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round()
    x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(2)))
    twins = (model, accelerate(model))
    losses = [twin.unroll(x, 3, x_noisy=x_noisy, gamma=gamma).loss for twin in twins]
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    torch.testing.assert_close(losses[1], losses[0])
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        assert theirs.abs().max() > 0  # every layer takes part
        torch.testing.assert_close(ours, theirs)


NESTED = ("dense", "encoder", "decoder", "hidden")


def nested(model, where):
    """The model with a chain of its layers in another chain, which must not share work with the layer before it."""
    encoder, decoder, chain = model.m_step.encoder, model.m_step.decoder, torch.nn.Sequential
    if where == "dense":
        decoder.dense = chain(decoder.dense[0], chain(*decoder.dense[1:]))
    elif where == "encoder":
        encoder.convolutions = chain(*encoder.convolutions[:3], chain(encoder.convolutions[3]))
    elif where == "decoder":
        decoder.convolutions = chain(decoder.convolutions[0], chain(*decoder.convolutions[1:]))
    else:  # the last norm behind the convolutions instead of among them
        features = encoder.hidden[0].weight.shape[1]
        encoder.convolutions, encoder.hidden = (
            encoder.convolutions[:3],
            chain(Activation(features, "elu"), encoder.hidden),
        )
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():  # no bias is zero
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def losses_and_gradients(model):
    """Of a model itself, and of its twin."""
    model = model.double()
    x = torch.rand(4, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round()
    x_noisy, gamma = model.draw(x, 2, randomness.keys(0, torch.arange(2)))
    for each in (model, accelerate(model)):
        loss = each.unroll(x, 2, x_noisy=x_noisy, gamma=gamma).loss
        yield loss, *torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("where", NESTED)
def test_chains_in_chains(where):
    model = NeuralEM(ModelConfig(height=8, width=8, theta_size=5, convolutions=(4, 6), hidden=7), seed=1)
    plain, fast = losses_and_gradients(nested(model, where))
    torch.testing.assert_close(fast, plain)


def test_memory_for_uses_of_different_sizes():
    """Of one step: each has its own, and no more than it asks for."""
    memory, like = StepMemory(2), torch.zeros(0)
    parts = [memory.take((rows, 3), like).fill_(i) for i, rows in enumerate((2, 4, 2, 1, 2))]
    assert [part.tolist() for part in parts] == [[[i] * 3] * rows for i, rows in enumerate((2, 4, 2, 1, 2))]


@pytest.mark.parametrize("deeper", [{"hidden": 12}, {"convolutions": (2, 2)}, {"layer_norm": True, "hidden": 12}])
def test_the_gradient_step_through_a_deeper_decoder(deeper):
    """Its step is a gradient itself, so that training differentiates the decoder twice."""
    sizes = {"height": 8, "width": 8, "theta_size": 6, "convolutions": (), "hidden": 0}
    model = NeuralEM(ModelConfig(m_step="gradient", **(sizes | deeper)), seed=1).double()
    x = torch.rand(4, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round()
    x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(2)))
    losses = [twin.unroll(x, 3, x_noisy=x_noisy, gamma=gamma).loss for twin in (model, accelerate(model))]
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    torch.testing.assert_close(losses[1], losses[0])
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(NeuralEMError, match=r"^dtype=.*bfloat16 is not for a model that keeps some of its plain"):
        accelerate(model, torch.bfloat16)


def test_joins_without_a_copy_only_what_lies_together():
    rows = StepMemory(3)
    like = torch.zeros(1)
    taken = [rows.take((2, 4), like).copy_(torch.full((2, 4), float(i))) for i in range(3)]
    joined = join(taken)
    assert joined.data_ptr() == taken[0].data_ptr()
    torch.testing.assert_close(joined, torch.cat(taken))
    torch.testing.assert_close(join(taken[::-1]), torch.cat(taken[::-1]))
    images = [torch.rand(2, 3, 4, 5) for _ in range(2)]
    torch.testing.assert_close(join(images), torch.cat(images))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("twin", [lambda model: model, accelerate])
def test_losses_that_nobody_watches_change_nothing(name, twin):
    """Steps without weight in the loss need no losses: the rest is the same, to the last bit of the gradients."""
    model = NeuralEM(dataclasses.replace(preset(name), loss_steps=(0.0, 1.0, 0.5)), seed=4).double()
    C, H, W = model.config.channels, model.config.height, model.config.width
    x = torch.rand(4, 2, C, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(2)))
    results = []
    for watch in (True, False):
        model.zero_grad()
        out = twin(model).unroll(x, 3, x_noisy=x_noisy, gamma=gamma, watch=watch)
        out.loss.backward()
        results.append(
            [out.loss, out.psi[-1], out.gamma[-1], out.total[1:], *(p.grad.clone() for p in model.parameters())]
        )
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
