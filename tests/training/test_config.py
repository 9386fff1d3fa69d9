"""Training settings that do not go together are refused."""

import pytest
import torch

from neural_em.errors import NeuralEMError
from neural_em.model import NeuralEM, preset
from neural_em.training import TrainingConfig, fit


def test_bfloat16_is_for_the_fast_engine_on_a_gpu():
    with pytest.raises(NeuralEMError, match=r"^training.precision: expected .*, got bf16$"):
        TrainingConfig(precision="bf16", engine="plain")
    with pytest.raises(NeuralEMError, match=r"^training.precision: expected a CUDA GPU.*, got device cpu$"):
        fit(NeuralEM(preset("static-shapes")), torch.zeros(1, 2, 1, 28, 28), TrainingConfig(precision="bf16"))
