"""The loop, early stopping, checkpoints, run folder, graphs, several seeds and several GPUs."""

from neural_em.training.config import TrainingConfig
from neural_em.training.fit import fit
from neural_em.training.outcome import Outcome
from neural_em.training.state import Row

__all__ = ["Outcome", "Row", "TrainingConfig", "fit"]
