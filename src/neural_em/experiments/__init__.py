"""What to do: train an experiment, evaluate what came of it."""

from neural_em.experiments.train import reopen, run_path, train
from neural_em.presets import ABOUT, PRESETS, Experiment, build, override, preset

__all__ = ["ABOUT", "PRESETS", "Experiment", "build", "override", "preset", "reopen", "run_path", "train"]
