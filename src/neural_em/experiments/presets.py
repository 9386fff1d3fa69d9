"""The paper's experiments and what goes beyond it, each as its differences from the usual settings."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from neural_em import config as configs
from neural_em.data import DataConfig
from neural_em.errors import refuse, unknown
from neural_em.experiments.config import Experiment
from neural_em.files import absolute
from neural_em.model import preset as network
from neural_em.training import TrainingConfig
from neural_em.training.run_folder import field_of, without

_FLYING_SHAPES = Experiment(
    "flying-shapes", network("flying-shapes"), DataConfig("flying-shapes"), TrainingConfig(components=3)
)
_FLYING_MNIST = Experiment(
    "flying-mnist", network("flying-mnist"), DataConfig("flying-mnist"),
    TrainingConfig(components=2, learning_rate=0.0005),
)  # fmt: skip
_STAGES = (
    ("data.digits=20", "training.learning_rate=0.001"),
    ("data.digits=500", "training.learning_rate=0.0005"),
    ("data.digits=null", "training.learning_rate=0.0005"),
)

PRESETS: dict[str, Experiment] = {
    "static-shapes": Experiment(
        "static-shapes", network("static-shapes"), DataConfig("static-shapes"), TrainingConfig(components=4)
    ),
    "static-shapes-nem": Experiment(
        "static-shapes-nem", network("static-shapes-nem"), DataConfig("static-shapes"), TrainingConfig(components=4)
    ),
    "flying-shapes": _FLYING_SHAPES,
    "flying-mnist": _FLYING_MNIST,
    "flying-mnist-staged": replace(
        _FLYING_MNIST, name="flying-mnist-staged", stages=_STAGES, carry_optimizer=True
    ),
    "static-shapes-plus": Experiment(
        "static-shapes-plus",
        replace(network("static-shapes"), layer_norm=True, loss_steps="every", inter_weight=0.3, theta_size=500),
        DataConfig("static-shapes"),
        TrainingConfig(components=4, learning_rate=0.003, epochs=100, patience=None, schedule="cosine"),
    ),
    "flying-shapes-plus": replace(
        _FLYING_SHAPES, name="flying-shapes-plus",
        training=TrainingConfig(components=3, epochs=40, patience=None, schedule="cosine"),
    ),
    "flying-mnist-plus": replace(
        _FLYING_MNIST, name="flying-mnist-plus", training=replace(_FLYING_MNIST.training, patience=None),
        carry_optimizer=True, stages=(
            *((*stage, f"training.epochs={epochs}") for stage, epochs in zip(_STAGES, (25, 10, 10), strict=True)),
            (*_STAGES[-1], "training.epochs=25", "training.schedule=cosine"),
        ),
    ),
}  # fmt: skip

ABOUT: dict[str, str] = {
    "static-shapes": "RNN-EM on single images of three shapes, 15 steps each",
    "static-shapes-nem": "N-EM on single images of three shapes, 15 steps each",
    "flying-shapes": "RNN-EM on sequences of three moving shapes",
    "flying-mnist": "RNN-EM on sequences of two moving digits, out of 50,000",
    "flying-mnist-staged": "the same in three stages: on 20 digits, on 500, on 50,000",
    "static-shapes-plus": "not the paper's: static-shapes with layer norm, loss at every step and more; 100 epochs",
    "flying-shapes-plus": "not the paper's: flying-shapes with a learning rate that falls to zero over 40 epochs",
    "flying-mnist-plus": "not the paper's: flying-mnist-staged with a fourth stage, whose learning rate falls to zero",
}


def preset(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in PRESETS:
        unknown("preset", name, PRESETS)
    return PRESETS[name]


def build(
    name: str,
    overrides: Iterable[str] = (),
    data: str | os.PathLike[str] | None = None,
    masks: str | os.PathLike[str] | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> Experiment:
    """A preset with changes.

    Args:
        name: of the preset.
        overrides: dotted fields, such as ``training.learning_rate=0.0005``; they hold in every stage.
        data: the user's own file or folder, instead of the preset's data.
        masks: its true groups.
        weights: what to begin with: a run folder, a weight file or the name of a shipped model.
    """
    experiment = preset(name)
    if weights is not None:
        experiment = replace(experiment, weights=os.fspath(weights))
    if data is not None:
        sizes = {name: getattr(experiment.data, name) for name in ("train_size", "validation_size", "test_size")}
        own: Any = {"path": absolute(data), "masks": None if masks is None else absolute(masks)}
        if experiment.stages:
            refuse("data", "a preset without stages, which are about the preset's own data", name)
        experiment = replace(experiment, data=DataConfig("file", **own, **sizes))
    elif masks is not None:
        refuse("masks", "the data they belong to as well (--data)", "masks alone")
    overrides = list(overrides)
    changed = {field_of(assignment) for assignment in overrides}
    if data is not None and "data.objects" in changed:
        refuse("objects", "none, because your own data hold what they hold", "a number of objects")
    if weights is not None and "weights" in changed:
        refuse("weights", "one trained model", f"{os.fspath(weights)} and another one")
    return override(experiment, overrides)


def override(experiment: Experiment, overrides: Iterable[str]) -> Experiment:
    """An experiment with dotted fields replaced, in every stage: what a stage says of them no longer holds."""
    overrides = list(overrides)
    return configs.override(replace(experiment, stages=without(experiment.stages, map(field_of, overrides))), overrides)
