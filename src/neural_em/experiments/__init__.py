"""An experiment is the parts' configs together; the paper's are presets, each as its differences."""

from neural_em.experiments.config import Experiment
from neural_em.experiments.presets import ABOUT, PRESETS, build, override, preset
from neural_em.experiments.train import reopen, run_path, train

__all__ = ["ABOUT", "PRESETS", "Experiment", "build", "override", "preset", "reopen", "run_path", "train"]
