"""Neural Expectation Maximization: finds the objects in images and video without labels."""

from neural_em.errors import NeuralEMError
from neural_em.model import ModelConfig, NeuralEM
from neural_em.storage import load, save

__version__ = "0.1.0"
__all__ = ["ModelConfig", "NeuralEM", "NeuralEMError", "__version__", "load", "save"]
