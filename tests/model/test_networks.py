"""Layers and networks against explicit loops, scipy and numpy."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.signal
import scipy.stats
import torch

from neural_em import NeuralEM
from neural_em.model import ModelConfig
from neural_em.model.networks import Activation, Convolution, Decoder, Dense, Encoder, UpConvolution, normalise, padding


def randomised(module, seed=0):
    """The module in float64 with every parameter random, offsets and biases too."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return module


def correlate_same(image, weight, bias, before, after):
    """Channels summed after scipy's valid correlation of the zero-padded image: (C,H,W) to (out,...)."""
    padded = np.pad(image, ((0, 0), (before, after), (before, after)))
    return np.stack([
        sum(scipy.signal.correlate2d(padded[i], weight[o, i], mode="valid") for i in range(len(image))) + bias[o]
        for o in range(len(weight))
    ])  # fmt: skip


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (8, 10)])
def test_convolution_is_scipys_with_one_pixel_of_padding_and_every_other_output(size):
    layer = randomised(Convolution(3, 5))
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    expected = np.stack([correlate_same(image, weight, bias, 1, 1)[:, ::2, ::2] for image in x.numpy()])
    assert expected.shape == (2, 5, size[0] // 2, size[1] // 2)
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 4)])
def test_up_convolution_doubles_by_repetition_and_pads_one_before_and_two_after(size):
    layer = randomised(UpConvolution(3, 2))
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    doubled = x.numpy().repeat(2, axis=2).repeat(2, axis=3)
    expected = np.stack([correlate_same(image, weight, bias, 1, 2) for image in doubled])
    assert expected.shape == (2, 2, 2 * size[0], 2 * size[1])
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=1e-12)


def test_up_convolution_by_an_explicit_loop():
    layer = randomised(UpConvolution(1, 1), seed=3)
    x = torch.randn(1, 1, 2, 2, dtype=torch.float64)
    out = layer(x)[0, 0]
    for i, j in itertools.product(range(4), range(4)):
        expected = layer.bias.item()
        for u, v in itertools.product(range(4), range(4)):
            row, column = i + u - 1, j + v - 1  # tap 1 falls on the pixel itself
            if 0 <= row < 4 and 0 <= column < 4:
                expected += layer.weight[0, 0, u, v].item() * x[0, 0, row // 2, column // 2].item()
        assert out[i, j].item() == pytest.approx(expected, abs=1e-12)


def test_dense_is_a_matrix_product():
    layer = randomised(Dense(4, 3))
    x = np.random.default_rng(0).normal(size=(5, 4))
    expected = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(torch.from_numpy(x)).detach().numpy(), expected, atol=1e-14)
    assert Dense(4, 3, bias=False).bias is None


@pytest.mark.parametrize("shape", [(3, 6), (3, 4, 5, 2)])
@pytest.mark.parametrize("kind", ["elu", "relu", "sigmoid"])
def test_layer_norm_is_over_the_whole_sample_with_a_scale_for_each_channel(shape, kind):
    layer = randomised(Activation(shape[1], kind))
    x = np.random.default_rng(1).normal(2.0, 3.0, shape)
    over = tuple(range(1, len(shape)))
    z = (x - x.mean(over, keepdims=True)) / np.sqrt(x.var(over, keepdims=True) + 1e-12)
    channel = (1, -1) + (1,) * (len(shape) - 2)
    z = z * layer.scale.detach().numpy().reshape(channel) + layer.offset.detach().numpy().reshape(channel)
    expected = {"elu": np.where(z > 0, z, np.exp(z) - 1), "relu": np.maximum(z, 0), "sigmoid": 1 / (1 + np.exp(-z))}
    np.testing.assert_allclose(layer(torch.from_numpy(x)).detach().numpy(), expected[kind], atol=1e-10)


def test_without_layer_norm_only_the_non_linearity_is_left():
    layer = Activation(2, "relu", normalise=False)
    assert list(layer.parameters()) == []
    assert layer(torch.tensor([[-1.0, 2.0]])).tolist() == [[0.0, 2.0]]


def test_a_constant_sample_is_normalised_to_zero():
    assert bool((normalise(torch.full((2, 3, 4, 4), 0.5, dtype=torch.float64)) == 0).all())


@pytest.mark.parametrize(("size", "halvings", "expected"), [
    ((28, 28), 2, (0, 0)), ((24, 24), 3, (0, 0)), ((27, 30), 2, (1, 2)), ((1, 1), 3, (7, 7)), ((5, 9), 0, (0, 0)),
])  # fmt: skip
def test_padding_completes_the_size(size, halvings, expected):
    assert padding(*size, halvings) == expected


def test_the_encoder_pads_below_and_to_the_right_and_flattens_channels_last():
    encoder = randomised(Encoder(2, 3, 5, (4,), hidden=0, layer_norm=False))
    x = torch.randn(2, 2, 3, 5, dtype=torch.float64)
    layer = encoder.convolutions[0]
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (0, 1), (0, 1)))
    a = np.stack([
        correlate_same(image, layer.weight.detach().numpy(), layer.bias.detach().numpy(), 1, 1)[:, ::2, ::2]
        for image in padded
    ])  # fmt: skip
    expected = np.where(a > 0, a, np.exp(a) - 1).transpose(0, 2, 3, 1).reshape(2, -1)
    assert encoder.outputs == 2 * 3 * 4 == expected.shape[1]
    np.testing.assert_allclose(encoder(x).detach().numpy(), expected, atol=1e-12)


def test_the_decoder_reads_images_channels_last_and_crops_below_and_to_the_right():
    decoder = randomised(Decoder(6, 2, 3, 5, (4,), hidden=0, layer_norm=False))
    z = torch.randn(3, 6, dtype=torch.float64)
    dense, layer = decoder.dense[0], decoder.convolutions[0]
    small = np.maximum(z.numpy() @ dense.weight.detach().numpy().T + dense.bias.detach().numpy(), 0)
    small = small.reshape(3, 2, 3, 4).transpose(0, 3, 1, 2).repeat(2, axis=2).repeat(2, axis=3)
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    expected = np.stack([correlate_same(image, weight, bias, 1, 2)[:, :3, :5] for image in small])
    np.testing.assert_allclose(decoder(z).detach().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 2, 3), (1, 7, 1), (2, 13, 9)])
@pytest.mark.parametrize("convolutions", [(), (3,), (3, 4), (2, 3, 4)])
def test_encoder_and_decoder_build_for_any_size(size, convolutions):
    encoder, decoder = Encoder(*size, convolutions, 5, True), Decoder(6, *size, convolutions, 5, True)
    for module in (encoder, decoder):
        randomised(module).float()
    assert encoder(torch.rand(2, *size)).shape == (2, 5)
    assert decoder(torch.rand(2, 6)).shape == (2, *size)


def glorot(shape):
    taps = math.prod(shape[2:])
    return math.sqrt(6 / (taps * (shape[0] + shape[1])))


def test_weights_start_glorot_uniform_and_the_rest_as_built():
    model = NeuralEM(ModelConfig(height=16, width=16, theta_size=40, hidden=64, convolutions=(8, 16)), seed=3)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert bool((parameter == (1.0 if name.endswith("scale") else 0.0)).all()), name
            continue
        limit, values = glorot(parameter.shape), parameter.detach().flatten().double().numpy()
        assert np.abs(values).max() <= limit * (1 + 1e-6), name
        assert scipy.stats.kstest(values, scipy.stats.uniform(-limit, 2 * limit).cdf).pvalue > 1e-4, name


def test_initial_weights_are_a_function_of_the_seed_alone():
    config = ModelConfig(height=8, width=8, theta_size=5, hidden=7, convolutions=(2,))
    torch.manual_seed(1)
    first, other = NeuralEM(config, seed=4), NeuralEM(config, seed=5)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again = NeuralEM(config, seed=4)
    assert torch.equal(torch.get_rng_state(), before)  # torch's own generator is left alone
    for (name, a), b, c in zip(first.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert a.dim() == 1 or not torch.equal(a, c), name


def test_the_learned_step_size_starts_uniform_between_plus_and_minus_the_root_of_three():
    config = ModelConfig(m_step="gradient", height=1, width=1, theta_size=1, convolutions=(), hidden=0)
    rates = [NeuralEM(config, seed=seed).m_step.learning_rate.item() for seed in range(600)]
    limit = math.sqrt(3)
    assert max(map(abs, rates)) <= limit
    assert scipy.stats.kstest(rates, scipy.stats.uniform(-limit, 2 * limit).cdf).pvalue > 1e-3


def test_the_step_size_can_be_given_and_changes_no_other_weight():
    config = ModelConfig(m_step="gradient", height=4, width=4, theta_size=3, convolutions=(), hidden=0)
    drawn, given = NeuralEM(config, seed=3), NeuralEM(replace(config, step_size=0.5), seed=3)
    assert given.m_step.learning_rate.item() == 0.5
    for (name, a), b in zip(drawn.named_parameters(), given.parameters(), strict=True):
        assert torch.equal(a, b) is (name != "m_step.learning_rate"), name
