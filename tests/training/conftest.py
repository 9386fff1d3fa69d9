"""A tiny experiment that trains in a fraction of a second."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from neural_em.data import DataConfig, Dataset, load_split
from neural_em.model import ModelConfig, NeuralEM
from neural_em.training import TrainingConfig


class Tiny(NamedTuple):
    """Model, data and settings of a run of a few small steps."""

    model: ModelConfig
    training: Dataset
    validation: Dataset
    config: TrainingConfig

    def build(self, seed: int = 0) -> NeuralEM:
        """A fresh model."""
        return NeuralEM(self.model, seed=seed)

    def with_(self, **changes: object) -> TrainingConfig:
        """The settings with changes."""
        return replace(self.config, **changes)


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    """Two shapes in 8 x 14 pixels, four frames, four steps an epoch."""
    torch.set_num_threads(1)
    data = DataConfig("flying-shapes", objects=2, frames=4, height=8, width=14, train_size=34, validation_size=10)
    model = ModelConfig(height=8, width=14, theta_size=5, convolutions=(3,), hidden=7)
    config = TrainingConfig(components=2, batch_size=8, epochs=3, engine="plain", tensorboard=False)
    return Tiny(model, load_split(data, "training", 0), load_split(data, "validation", 0), config)
