"""The loop, early stopping, graphs, several seeds and several GPUs: it computes, and tells what it does."""

from typing import TYPE_CHECKING, Any

from neural_em.training.config import TrainingConfig
from neural_em.training.state import Outcome, Row

if TYPE_CHECKING:
    from neural_em.runs.fit import fit

__all__ = ["Outcome", "Row", "TrainingConfig", "fit"]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "fit":  # it can keep a run in a folder, which is the business of the part above: asked for by name alone
        return importlib.import_module("neural_em.runs.fit").fit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
