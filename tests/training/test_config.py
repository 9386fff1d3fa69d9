"""Training settings that do not go together are refused."""

import numpy as np
import pytest
import torch

from neural_em import config as configs
from neural_em.errors import NeuralEMError
from neural_em.model import NeuralEM, preset
from neural_em.training import TrainingConfig, fit


def test_bfloat16_is_for_the_fast_engine_on_a_gpu():
    with pytest.raises(NeuralEMError, match=r"^training\.precision=bf16 needs training\.engine=fast$"):
        TrainingConfig(precision="bf16", engine="plain")
    with pytest.raises(NeuralEMError, match=r"^training.precision=bf16 needs a CUDA GPU that has it; .* on cpu$"):
        fit(NeuralEM(preset("static-shapes")), torch.zeros(1, 2, 1, 28, 28), TrainingConfig(precision="bf16"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("components", True), ("components", 0), ("epochs", 2.0), ("steps", 0), ("steps", "20"), ("seed", -1),
        ("seed", True), ("seed", 2**63), ("score_size", -1), ("learning_rate", 0), ("learning_rate", float("nan")),
        ("learning_rate", "fast"), ("checkpoint_seconds", float("inf")), ("deterministic", "yes"), ("truncate", 1),
        ("tensorboard", None), ("schedule", "linear"), ("precision", "fp8"), ("engine", None),
        ("clip", 0), ("clip", "long"), ("order", "random"), ("validation_noise", "new"),
    ],
)  # fmt: skip
def test_each_field_refuses_what_makes_no_sense(name, value):
    with pytest.raises(NeuralEMError, match=rf"^training\.{name}: expected .*, got ") as refused:
        TrainingConfig(**{name: value})
    assert repr(value) in str(refused.value)


def test_numpy_numbers_will_do_and_can_be_written():
    config = TrainingConfig(components=np.int64(4), seed=np.int32(1), learning_rate=np.logspace(-4, -2, 3)[1])
    assert config == TrainingConfig(components=4, seed=1, learning_rate=0.001)
    assert "components: 4" in configs.dump(config)
    assert "learning_rate: 0.001" in configs.dump(config)
