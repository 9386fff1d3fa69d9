"""Neural Expectation Maximization: finds the objects in images and video without labels."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neural_em.errors import NeuralEMError
    from neural_em.estimator import NeuralEMClustering
    from neural_em.evaluation import adjusted_mutual_info, adjusted_rand_index
    from neural_em.model import ModelConfig, NeuralEM
    from neural_em.storage import load, save
    from neural_em.storage.pretrained import pretrained

__version__ = "0.1.0"
__all__ = [
    "ModelConfig", "NeuralEM", "NeuralEMClustering", "NeuralEMError", "__version__", "adjusted_mutual_info",
    "adjusted_rand_index", "load", "pretrained", "save",
]  # fmt: skip

# imported when first asked for: PyTorch takes a second, scikit-learn is an extra, and the command sets things up first
_LATER = {
    "ModelConfig": "neural_em.model",
    "NeuralEM": "neural_em.model",
    "NeuralEMClustering": "neural_em.estimator",
    "NeuralEMError": "neural_em.errors",
    "adjusted_mutual_info": "neural_em.evaluation",
    "adjusted_rand_index": "neural_em.evaluation",
    "load": "neural_em.storage",
    "pretrained": "neural_em.storage.pretrained",
    "save": "neural_em.storage",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    if name == "data":  # `neural_em.data.flying_shapes` without an import of its own
        return importlib.import_module("neural_em.data")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, "data"})
