"""An experiment is the parts' configs together; the paper's, and what goes beyond it, are presets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from neural_em import config as configs
from neural_em.data import DataConfig
from neural_em.data.balls import CURTAIN
from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.fields import Check, Checked, optional
from neural_em.files import absolute, short
from neural_em.model import BaseConfig, ModelConfig
from neural_em.model import preset as network
from neural_em.model.tagger import TaggerConfig
from neural_em.storage.pretrained import lasting_name
from neural_em.training.config import TrainingConfig

_SIZES = ("channels", "height", "width")
_LONGEST_NAME = 100
_PATHS = {"data.path": 1, "data.masks": 1, "weights": 3}  # how much of them a name tells


@dataclass(frozen=True)
class Experiment(Checked):
    """Everything that decides what a run computes."""

    name: str = "flying-shapes"  # of the preset it comes from
    model: BaseConfig = field(default_factory=ModelConfig)  # the network, its mixture and its loss
    data: DataConfig = field(default_factory=DataConfig)  # what it sees
    training: TrainingConfig = field(default_factory=TrainingConfig)  # how it is trained
    data_seed: int = 0  # names the generated data; one for all training seeds, so that they differ in nothing else
    # overrides for each of several runs in a row, each from the last one's best weights; none for one run
    stages: tuple[tuple[str, ...], ...] = ()
    # each stage after the first goes on with Adam's moments and step count too, as in the last one's best epoch
    carry_optimizer: bool = False
    # what the run, or its first stage, begins with: a shipped model's name, or the absolute path of a run folder or a
    # weight file; random weights where not given
    weights: str | None = None

    CHECKS: ClassVar[Mapping[str, Check]] = {"weights": optional(lambda name, value: lasting_name(value))}

    def check_together(self) -> None:
        """Refuses settings of different parts that are at odds."""
        frames, steps = getattr(self.data, "frames", None), self.training.steps
        if frames is not None and frames > 1 and steps is not None and steps >= frames:
            refuse("training.steps", f"from 1 to {frames - 1} for {frames} frames", steps)
        if self.weights is not None and (size := getattr(self.model, "step_size", None)) is not None:
            raise NeuralEMError(f"model.step_size={size} is for random weights; those to begin with have their own")
        if any(configs.field_of(assignment) == "weights" for stage in self.stages for assignment in stage):
            raise NeuralEMError("stages cannot set weights: each goes on with those of the one before")
        if self.carry_optimizer and not self.stages:
            raise NeuralEMError("carry_optimizer needs stages: the optimizer is carried from one to the next")
        self.parts()

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

    def for_frames(self, shape: Sequence[int], usual: BaseConfig | None = None) -> Experiment:
        """The same with a model for frames of this shape (T,C,H,W).

        A size that does not fit, and that is not the ``usual`` model's but somebody's choice, is refused.
        """
        frames, steps = shape[0], self.training.steps
        if 1 < frames <= (steps or 0):
            refuse("training.steps", f"from 1 to {frames - 1} for sequences of {frames} frames", steps)
        sizes = dict(zip(_SIZES, (int(size) for size in shape[1:]), strict=True))
        for name, size in sizes.items():
            chosen = getattr(self.model, name)
            if usual is not None and chosen not in (getattr(usual, name), size):
                refuse(f"model.{name}", f"{size}, as the data have it", chosen)
        changes: Any = sizes
        return replace(self, model=replace(self.model, **changes))

    def run_name(self, usual: Experiment, seeds: int = 1) -> str:
        """A folder name that says in what the run differs from its preset, and with which seeds it is trained."""
        if self.data.kind == "file":
            usual = replace(usual.parts()[-1], data=DataConfig("file", path="."))
        before, now = (configs.flat(each) for each in (usual, self))
        unnamed = {*configs.changeable(self), "training.seed", "name", "data.kind"}
        parts = [self.name]
        for key, value in now.items():
            if value != before.get(key) and key not in unnamed:
                text = "_".join(str(value).rstrip("/").split("/")[-_PATHS.get(key, 0) :])
                parts.append(re.sub(r"[^A-Za-z0-9.]+", "_", key.rpartition(".")[2] + text))
        name = short("-".join(parts), _LONGEST_NAME)
        first = self.training.seed
        return f"{name}-seed{first}" if seeds == 1 else f"{name}-seeds{first}-{first + seeds - 1}"


def _new(name: str, model: BaseConfig | None = None, data: DataConfig | None = None, **training: Any) -> Experiment:
    """An experiment; its network and its data are those of its name unless others are given."""
    return Experiment(name, model or network(name), data or DataConfig(name), TrainingConfig(**training))


_FALLING: dict[str, Any] = {"patience": None, "schedule": "cosine"}  # a learning rate that falls to zero
_STATIC, _GROUND = DataConfig("static-shapes"), {"ground": "colour"}
_BETTER = replace(network("static-shapes"), layer_norm=True, loss_steps="every", inter_weight=0.3)
_FLYING_SHAPES = _new("flying-shapes", components=3)
_FLYING_MNIST = _new("flying-mnist", components=2, learning_rate=0.0005)
_STAGES = (
    ("data.digits=20", "training.learning_rate=0.001"),
    ("data.digits=500", "training.learning_rate=0.0005"),
    ("data.digits=null", "training.learning_rate=0.0005"),
)
_IN_WINDOWS = replace(network("bouncing-balls"), window=0.22)
_WITHOUT_RELATIONS = replace(_IN_WINDOWS, m_step="recurrent")
_STEADY: dict[str, Any] = {"clip": 100.0, **_FALLING}
# twice as many frames have a collision as where there are always four; fast balls collide more often still, and a
# collision changes more of the next frame
_BALLS = replace(
    _new(
        "bouncing-balls", _IN_WINDOWS, DataConfig("bouncing-balls", most_objects=8),
        components=8, steps=30, batch_size=16, learning_rate=0.0005, epochs=5, **_STEADY,
    ),
    stages=(("data.speed=6.3", "training.steps=15", "training.epochs=7", "training.schedule=constant"), ()),
    carry_optimizer=True,
)  # fmt: skip
# stars and hearts are left for tests on what it never saw; squares are polygons
_KINDS = ("ellipse", "polygon", "letter", "blob", "ring")
_TAGGER = _new(
    "tagger", TaggerConfig(), DataConfig("static-shapes", height=20, width=20),
    components=4, batch_size=100, learning_rate=0.0004, epochs=100, patience=None,
)  # fmt: skip

_ALL = (
    _new("static-shapes", components=4),
    _new("static-shapes-nem", data=_STATIC, components=4),
    _FLYING_SHAPES,
    _FLYING_MNIST,
    replace(_FLYING_MNIST, name="flying-mnist-staged", stages=_STAGES, carry_optimizer=True),
    _new("static-shapes-plus", replace(_BETTER, theta_size=500), _STATIC,
         components=4, learning_rate=0.003, epochs=100, **_FALLING),
    _new("static-shapes-quick", _BETTER, replace(_STATIC, train_size=10_000),
         components=4, learning_rate=0.003, epochs=5, **_FALLING),
    _new("flying-shapes-plus", _FLYING_SHAPES.model, _FLYING_SHAPES.data, components=3, epochs=40, **_FALLING),
    replace(
        _FLYING_MNIST, name="flying-mnist-plus", training=replace(_FLYING_MNIST.training, patience=None),
        carry_optimizer=True, stages=(
            *((*stage, f"training.epochs={epochs}") for stage, epochs in zip(_STAGES, (25, 12, 24), strict=True)),
            (*_STAGES[-1], "training.epochs=18", "training.schedule=cosine"),
        ),
    ),
    _BALLS,
    replace(_BALLS, name="bouncing-balls-rnn-em", model=_WITHOUT_RELATIONS),
    replace(
        _BALLS, name="bouncing-balls-rnn", model=replace(_WITHOUT_RELATIONS, window=None),  # it holds all balls
        training=replace(_BALLS.training, components=1),
    ),
    _new("coloured-shapes", data=DataConfig("coloured-shapes", **_GROUND), components=5, epochs=4, **_FALLING),
    _new("coloured-digits", data=DataConfig("coloured-digits", **_GROUND),
         components=3, learning_rate=0.0005, epochs=4, **_FALLING),
    _new("tetrominoes", components=3, epochs=1, first_deviation=0.5, deviation_epochs=1, **_STEADY),
    _new("sprites", data=DataConfig("sprites", **_GROUND), components=5, steps=12, epochs=3, **_FALLING),
    _new("objects", data=DataConfig("objects", shapes=_KINDS, surface="flat", noise=0.0, **_GROUND),
         components=7, steps=12, epochs=3, **_STEADY),
    _new("curtain", _IN_WINDOWS, DataConfig("bouncing-balls", **CURTAIN),
         components=5, steps=30, learning_rate=0.0005, epochs=10, **_STEADY),
    _TAGGER,
    replace(_TAGGER, name="tagger-batch-norm", model=TaggerConfig(norm="batch")),
)  # fmt: skip
PRESETS: dict[str, Experiment] = {each.name: each for each in _ALL}

ABOUT: dict[str, str] = {
    "static-shapes": "RNN-EM on single images of three shapes, 15 steps each",
    "static-shapes-nem": "N-EM on single images of three shapes, 15 steps each",
    "flying-shapes": "RNN-EM on sequences of three moving shapes",
    "flying-mnist": "RNN-EM on sequences of two moving digits, out of 50,000",
    "flying-mnist-staged": "the same in three stages: on 20 digits, on 500, on 50,000",
    "static-shapes-plus": "not the paper's: static-shapes with layer norm, loss at every step and more; 100 epochs",
    "static-shapes-quick": "not the paper's: a model that groups after minutes on a laptop; the tutorial trains it",
    "flying-shapes-plus": "not the paper's: flying-shapes with a learning rate that falls to zero over 40 epochs",
    "flying-mnist-plus": "not the paper's: flying-mnist-staged with a fourth stage, whose learning rate falls to zero",
    "bouncing-balls": "R-NEM, its authors' next paper, in windows: components see each other, on four to eight balls",
    "bouncing-balls-rnn-em": "the same without seeing each other: RNN-EM",
    "bouncing-balls-rnn": "the same with a single component: a recurrent network",
    "coloured-shapes": "RNN-EM on three moving shapes of any colour that hide each other, on a ground of any colour",
    "coloured-digits": "RNN-EM on two moving digits of any colour, on a ground of any colour",
    "tetrominoes": "RNN-EM on single images of three tetrominoes on black",
    "sprites": "RNN-EM on one to four moving sprites of any colour, size and angle, on a ground of any colour",
    "objects": "RNN-EM on one to six moving objects of many kinds, each of one colour, on a ground of any colour",
    "curtain": "R-NEM on three balls that pass behind a curtain",
    "tagger": "Tagger, which the paper compares itself with, on its own images of 20 x 20 pixels, with layer norm",
    "tagger-batch-norm": "the same with batch norm: scores depend on which images share a batch",
}


def preset(name: str) -> Experiment:
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
    """A preset with changes: dotted fields, such as ``training.learning_rate=0.0005``, which hold in every stage.

    The user's own ``data``, with their true groups as ``masks``, take the place of the preset's; a preset with stages
    is then trained in one go, with the settings of its last stage. ``weights`` is what to begin with: a run folder, a
    weight file or the name of a shipped model.
    """
    experiment = preset(name)
    if weights is not None:
        experiment = replace(experiment, weights=os.fspath(weights))
    if data is not None:
        sizes = {name: getattr(experiment.data, name) for name in ("train_size", "validation_size", "test_size")}
        own: Any = {"path": absolute(data), "masks": None if masks is None else absolute(masks)}
        experiment = experiment.parts()[-1]  # stages are about the preset's data
        training = replace(experiment.training, steps=None)  # as many as the user's own frames allow
        experiment = replace(experiment, data=DataConfig("file", **own, **sizes), training=training)
    elif masks is not None:
        raise NeuralEMError("--masks needs --data, the frames that they belong to")
    overrides = list(overrides)
    changed = {configs.field_of(assignment) for assignment in overrides}
    if data is not None and "data.objects" in changed:
        raise NeuralEMError("objects is for generated data; leave it out with --data")
    if weights is not None and "weights" in changed:
        raise NeuralEMError(f"weights are given twice, as {os.fspath(weights)} and as a setting; choose one")
    return override(experiment, overrides)


def override(experiment: Experiment, overrides: Iterable[str]) -> Experiment:
    """An experiment with dotted fields replaced, in every stage: what a stage says of them no longer holds."""
    overrides = list(overrides)
    stages = configs.without(experiment.stages, map(configs.field_of, overrides))
    return configs.override(replace(experiment, stages=stages), overrides)
