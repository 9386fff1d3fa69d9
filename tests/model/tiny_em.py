"""Tiny Neural EM models in float64, and what they look at."""

import dataclasses

import numpy as np
import torch

from neural_em import NeuralEM
from neural_em.model import ModelConfig, NoiseConfig

TINY = ModelConfig(height=4, width=6, theta_size=5, convolutions=(2,), hidden=4)
TINIES = {
    "rnn-em": dataclasses.replace(TINY, gamma_gradient=True),
    "rnn-em, gaussian": dataclasses.replace(
        TINY, channels=3, distribution="gaussian", normalize_input=True, noise=NoiseConfig("masked-uniform", 0.3)
    ),
    "n-em": dataclasses.replace(TINY, m_step="gradient", convolutions=(), hidden=0, gamma_gradient=True),
    "n-em, deep": dataclasses.replace(TINY, m_step="gradient", channels=2, distribution="gaussian"),
}


def build(config, seed=0):
    """A model in float64 whose every parameter is random."""
    model = NeuralEM(config, seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.1)
    return model


def frames(config, T=3, B=2, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(
        T + 1, B, config.channels, config.height, config.width, generator=generator, dtype=torch.float64
    ).to(dtype)


def assignment(config, B=2, K=3, seed=0):
    gamma = np.random.default_rng(seed).dirichlet(np.ones(K), (B, 1, config.height, config.width))
    return torch.from_numpy(np.ascontiguousarray(gamma.transpose(0, 4, 1, 2, 3)))
