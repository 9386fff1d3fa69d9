"""Input noise: what it does to which pixels, and how often."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import torch

from neural_em import NeuralEMError, randomness
from neural_em.model import ModelConfig, NeuralEM
from neural_em.model.noise import NOISES, NoiseConfig, bit_flips, masked_uniform, no_noise


def test_bit_flips_by_hand():
    x, u = torch.tensor([0.0, 1.0, 0.25, 1.0]), torch.tensor([[0.1, 0.1, 0.1, 0.2]])
    assert bit_flips(x, u, 0.2).tolist() == [1.0, 0.0, 0.75, 1.0]


def test_masked_uniform_by_hand():
    x, u = torch.tensor([0.0, 1.0, 0.25]), torch.tensor([[0.1, 0.2, 0.19], [0.7, 0.8, 0.9]])
    assert masked_uniform(x, u, 0.2).tolist() == pytest.approx([0.7, 1.0, 0.9])


def test_no_noise_is_the_input():
    x = torch.rand(3, 4)
    assert no_noise(x, x, 0.3) is x


@pytest.mark.parametrize("kind", ["bit-flips", "masked-uniform"])
def test_noise_at_the_ends_of_its_range(kind):
    function, needed = NOISES[kind]
    x, u = torch.rand(1000), torch.rand(needed, 1000)
    assert torch.equal(function(x, u, 0.0), x)
    assert torch.equal(function(x, u, 1.0), 1 - x if kind == "bit-flips" else u[1])


@pytest.mark.parametrize("kind", ["bit-flips", "masked-uniform"])
def test_noise_keeps_the_type(kind):
    function, needed = NOISES[kind]
    x = torch.rand(10, dtype=torch.float64)
    assert function(x, torch.rand(needed, 10), 0.5).dtype == torch.float64


def test_the_share_of_pixels_that_are_hit():
    x, p = torch.zeros(100_000), 0.2
    u = torch.rand(2, 100_000, generator=torch.Generator().manual_seed(5))
    flipped = int(bit_flips(x, u[:1], p).sum())
    assert scipy.stats.binomtest(flipped, 100_000, p).pvalue > 1e-4
    hit = masked_uniform(x - 1, u, p)  # -1 marks the pixels left alone
    assert scipy.stats.binomtest(int((hit >= 0).sum()), 100_000, p).pvalue > 1e-4
    assert scipy.stats.kstest(np.asarray(hit[hit >= 0]), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("kind", ["bit-flips", "masked-uniform"])
def test_shared_noise_hits_all_channels_of_a_pixel_or_none(kind):
    x = torch.full((4, 2, 3, 20, 20), 0.25)
    keys, results = randomness.keys(3, torch.arange(2)), {}
    for shared in (True, False):
        config = ModelConfig(channels=3, height=20, width=20, noise=NoiseConfig(kind, 0.3, shared))
        model = NeuralEM(dataclasses.replace(config, theta_size=2, convolutions=(), hidden=0))
        drawn = model.draw_noise(x, keys), model.add_noise(x, torch.Generator().manual_seed(0))
        results[shared] = [noisy != x for noisy in drawn]
        if shared and kind == "masked-uniform":  # each channel gets a value of its own
            assert all(len(noisy[noisy != x].unique()) > 0.99 * (noisy != x).sum() for noisy in drawn)
    for hit, alone in zip(results[True], results[False], strict=True):
        assert torch.equal(hit, hit[:, :, :1].expand_as(hit))
        assert scipy.stats.binomtest(int(hit[:, :, 0].sum()), hit[:, :, 0].numel(), 0.3).pvalue > 1e-4
        assert not torch.equal(alone, alone[:, :, :1].expand_as(alone))
        assert torch.equal(hit[:, :, 0], alone[:, :, 0])  # so that one channel has the same noise either way


@pytest.mark.parametrize("probability", [-0.1, 1.5, float("nan"), "0.2", None, True])
def test_a_wrong_probability_is_refused(probability):
    with pytest.raises(NeuralEMError, match=r"^noise\.probability: expected a number between 0 and 1, got"):
        NoiseConfig("bit-flips", probability)


@pytest.mark.parametrize("kind", ["bitflips", "", None, ["none"]])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(NeuralEMError, match=r"^noise\.kind: expected one of none, bit-flips, masked-uniform, got"):
        NoiseConfig(kind, 0.1)
