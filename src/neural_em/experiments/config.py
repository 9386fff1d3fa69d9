"""One config for a whole experiment: model, data and training together, and its stages as differences."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neural_em import config as configs
from neural_em.data import DataConfig
from neural_em.errors import NeuralEMError, refuse
from neural_em.model import ModelConfig
from neural_em.storage.pretrained import lasting_name
from neural_em.training import TrainingConfig
from neural_em.training.run_folder import changeable, field_of, flat

_SIZES = ("channels", "height", "width")
_LONGEST_NAME = 100
_PATHS = {"data.path": 1, "data.masks": 1, "weights": 3}  # how much of them a name tells


@dataclass(frozen=True)
class Experiment:
    """Everything that decides what a run computes.

    Attributes:
        name: of the preset it comes from.
        model: the network, its mixture and its loss.
        data: what it sees.
        training: how it is trained.
        data_seed: names the generated data; one for all training seeds, so that they differ in nothing else.
        stages: overrides for each of several runs in a row, each from the last one's best weights; none for one run.
        carry_optimizer: each stage after the first goes on with Adam's moments and step count too, as they were in the
            last one's best epoch.
        weights: what the run, or its first stage, begins with: a shipped model's name, or the absolute path of a run
            folder or a weight file; random weights where not given.
    """

    name: str = "flying-shapes"
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    data_seed: int = 0
    stages: tuple[tuple[str, ...], ...] = ()
    carry_optimizer: bool = False
    weights: str | None = None

    def __post_init__(self) -> None:
        """Refuses parts that do not fit together, in every stage."""
        frames, steps = getattr(self.data, "frames", None), self.training.steps
        if frames is not None and frames > 1 and steps is not None and steps >= frames:
            refuse("training.steps", f"from 1 to {frames - 1} for {frames} frames", steps)
        self._check_weights()
        if self.carry_optimizer and not self.stages:
            refuse("carry_optimizer", "stages, from one to the next of which it is carried", "none")
        self.parts()

    def _check_weights(self) -> None:
        if self.weights is not None:
            object.__setattr__(self, "weights", lasting_name(self.weights))
            if self.model.step_size is not None:
                refuse(
                    "model.step_size", "none, because the weights to begin with have their own", self.model.step_size
                )
        if any(field_of(assignment) == "weights" for stage in self.stages for assignment in stage):
            refuse("stages", "none with weights, because each goes on with those of the one before", "weights")

    def stage(self, number: int) -> Experiment:
        """One of the stages, counted from 0, as an experiment of its own."""
        try:
            return configs.override(replace(self, stages=(), carry_optimizer=False), self.stages[number])
        except NeuralEMError as error:
            raise NeuralEMError(f"stages[{number}]: {error}") from None

    def parts(self) -> list[Experiment]:
        """Its stages one after another; itself where it has none."""
        return [self.stage(number) for number in range(len(self.stages))] or [self]

    def with_seed(self, seed: int) -> Experiment:
        """The same with other weights, order, noise and starts."""
        return replace(self, training=replace(self.training, seed=seed))

    def for_frames(self, shape: Sequence[int], usual: ModelConfig | None = None) -> Experiment:
        """The same with a model for frames of this shape (T,C,H,W).

        Args:
            shape: of the data.
            usual: the model before anybody changed it; a size that somebody chose, and that does not fit, is refused.
        """
        sizes = dict(zip(_SIZES, (int(size) for size in shape[1:]), strict=True))
        for name, size in sizes.items():
            chosen = getattr(self.model, name)
            if usual is not None and chosen not in (getattr(usual, name), size):
                refuse(f"model.{name}", f"{size}, as the data have it", chosen)
        changes: Any = sizes
        return replace(self, model=replace(self.model, **changes))

    def run_name(self, usual: Experiment, seeds: int = 1) -> str:
        """A folder name that says what is special about the run.

        Args:
            usual: the preset; what is as it has it, is not named.
            seeds: how many seeds are trained together.
        """
        if self.data.kind == "file":
            usual = replace(usual, data=DataConfig("file", path="."))
        before, now = (dict(flat(configs.to_dict(each))) for each in (usual, self))
        unnamed = {*changeable(now), "training.seed", "name", "data.kind"}
        parts = [self.name]
        for key, value in now.items():
            if value != before.get(key) and key not in unnamed:
                text = "_".join(str(value).rstrip("/").split("/")[-_PATHS.get(key, 0) :])
                parts.append(re.sub(r"[^A-Za-z0-9.]+", "_", key.rpartition(".")[2] + text))
        name = "-".join(parts)
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        first = self.training.seed
        return f"{name}-seed{first}" if seeds == 1 else f"{name}-seeds{first}-{first + seeds - 1}"
