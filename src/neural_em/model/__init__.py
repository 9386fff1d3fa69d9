"""The mathematics: the spatial mixture, its networks, the M-steps and the EM loop; which model a config is built as."""

from neural_em.errors import refuse
from neural_em.model.config import MODELS, PRESETS, BaseConfig, ModelConfig, preset
from neural_em.model.em import Info, NeuralEM, State, Unrolled
from neural_em.model.noise import NoiseConfig
from neural_em.model.tagger import Tagger, TaggerConfig
from neural_em.model.unrolled import UnrolledModel

__all__ = [
    "MODELS", "PRESETS", "BaseConfig", "Info", "Model", "ModelConfig", "NeuralEM", "NoiseConfig", "State", "Unrolled",
    "build", "preset",
]  # fmt: skip

# what the rest of the package asks of a model; it calls these methods, and never looks at the class
Model = UnrolledModel

# a sibling of `NeuralEM` is a config class with a kind of its own, a model class and a line here
MODELS[ModelConfig] = NeuralEM
MODELS[TaggerConfig] = Tagger


def build(config: BaseConfig, seed: int = 0) -> Model:
    """The model that the config describes, its weights drawn under the seed."""
    if type(config) not in MODELS:
        refuse("config", f"one of {', '.join(each.__name__ for each in MODELS)}", f"a {type(config).__name__}")
    first = BaseConfig.class_for({"kind": config.kind})
    if first is not type(config):
        refuse("model.kind", f"a kind of {type(config).__name__}'s own", f"{config.kind!r}, that of {first.__name__}")
    return MODELS[type(config)](config, seed)
