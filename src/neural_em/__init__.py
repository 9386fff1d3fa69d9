"""Neural Expectation Maximization: finds the objects in images and video without labels."""

from typing import TYPE_CHECKING, Any

from neural_em.errors import NeuralEMError
from neural_em.model import ModelConfig, NeuralEM
from neural_em.storage import load, save
from neural_em.storage.pretrained import pretrained

if TYPE_CHECKING:
    from neural_em.estimator import NeuralEMClustering
    from neural_em.evaluation import adjusted_mutual_info, adjusted_rand_index

__version__ = "0.1.0"
__all__ = [
    "ModelConfig", "NeuralEM", "NeuralEMClustering", "NeuralEMError", "__version__", "adjusted_mutual_info",
    "adjusted_rand_index", "load", "pretrained", "save",
]  # fmt: skip

# imported when first asked for: scikit-learn is an extra, and the scores would slow down every start
_LATER = {
    "NeuralEMClustering": "neural_em.estimator",
    "adjusted_mutual_info": "neural_em.evaluation",
    "adjusted_rand_index": "neural_em.evaluation",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
