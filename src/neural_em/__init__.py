"""Neural Expectation Maximization: finds the objects in images and video without labels."""

from neural_em.errors import NeuralEMError

__version__ = "0.1.0"
__all__ = ["NeuralEMError", "__version__"]
