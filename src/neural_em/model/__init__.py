"""The mathematics: the spatial mixture, its networks, the M-steps and the EM loop."""

from neural_em.model.config import MODELS, PRESETS, BaseConfig, ModelConfig, preset
from neural_em.model.contract import Model, build
from neural_em.model.em import Info, NeuralEM, State, Unrolled
from neural_em.model.noise import NoiseConfig

__all__ = [
    "MODELS", "PRESETS", "BaseConfig", "Info", "Model", "ModelConfig", "NeuralEM", "NoiseConfig", "State", "Unrolled",
    "build", "preset",
]  # fmt: skip
