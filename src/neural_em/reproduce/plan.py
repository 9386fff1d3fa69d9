"""What to train and to evaluate for the paper's results and beyond them, at full size or at toy size."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neural_em import config as configs
from neural_em.experiments import Experiment, build
from neural_em.experiments.evaluation import Evaluation
from neural_em.reproduce.paper import COMPARED, TABLE_1

SEEDS, QUICK_SEEDS = 5, 2
_QUICK_STEPS, _QUICK_ROLLOUT = 8, 4
_QUICK_DATA = 16  # sequences of validation and test


@dataclass(frozen=True)
class Training:
    """One model to train with several seeds, and what to evaluate it on."""

    name: str  # of the training and of its folder
    preset: str  # what it starts from
    options: Mapping[str, int]  # its differences: objects and components
    evaluations: Mapping[str, Evaluation]  # by name
    free: frozenset[str] = frozenset()  # settings in which its runs may differ from the preset; the record says them
    quick: bool = False  # at toy size, to see that everything works
    changes: tuple[str, ...] = ()  # further differences, as ``nem train --set`` takes them

    def experiment(
        self, epochs: int | None = None, precision: str = "auto", settings: Sequence[str] = ()
    ) -> Experiment:
        """All settings of the training, of its first seed."""
        fields = {"objects": "data.objects", "components": "training.components"}
        overrides = [f"{fields[name]}={value}" for name, value in self.options.items()]
        overrides += _QUICK + _QUICK_STAGES.get(self.preset, []) if self.quick else []
        overrides += self.changes  # what a training is stays so at toy size
        overrides += [] if epochs is None else [f"training.epochs={epochs}"]
        overrides += [] if precision == "auto" else [f"training.precision={precision}"]
        return build(self.preset, [*overrides, *settings])

    def command(
        self, folder: Path, seeds: int, epochs: Sequence[int] = (), precision: str = "auto",
        settings: Sequence[str] = (),
    ) -> str:  # fmt: skip
        """The training as one command; ``epochs`` at most, of each stage, where they are not as usual."""
        options = "".join(f" --{name} {value}" for name, value in self.options.items())
        options += "".join(f" --set {shlex.quote(change)}" for change in self.changes)
        preset = build(self.preset)
        usual = [part.training.epochs for part in preset.parts()]
        if len(epochs) == len(usual) and len(set(epochs)) == 1 and list(epochs) != usual:
            options += f" --epochs {epochs[0]}"
        elif epochs and list(epochs) != usual:
            kept = configs.without(preset.stages, ["training.epochs"])
            pairs = zip(kept, epochs, strict=False)  # fewer where a run has not come to all
            stages = (f"[{', '.join((*stage, f'training.epochs={count}'))}]" for stage, count in pairs)
            options += f" --set 'stages=[{', '.join(stages)}]'"
        options += "" if precision == "auto" else f" --precision {precision}"
        options += "".join(f" --set {shlex.quote(setting)}" for setting in settings)
        return f"nem train {self.preset}{options} --seeds {seeds} --run {folder}"

    def small(self) -> Training:
        """The same at toy size."""
        evaluations = {
            name: replace(
                each, size=each.size and _QUICK_DATA, steps=each.steps and _QUICK_STEPS,
                rollout=each.rollout and _QUICK_ROLLOUT,
            )
            for name, each in self.evaluations.items()
        }  # fmt: skip
        return replace(self, evaluations=evaluations, quick=True)


_QUICK = [
    "data.height=16", "data.width=16", "model.height=16", "model.width=16", "data.train_size=32",
    f"data.validation_size={_QUICK_DATA}", f"data.test_size={_QUICK_DATA}",
    "training.batch_size=16", "training.epochs=2", "training.tensorboard=false",
]  # fmt: skip
_QUICK_STATIC = ["model.theta_size=8", "model.steps=4"]
_QUICK_FLYING = ["model.theta_size=8", "data.frames=5", "model.convolutions=[4]", "model.hidden=12"]
_QUICK_BALLS = [*_QUICK_FLYING, "training.steps=4", "data.radii=[1.5,2.0]"]
_QUICK_TAGGER = ["model.layers=[12, 8, 6]"]
_QUICK_STAGES = {
    **dict.fromkeys(("static-shapes", "static-shapes-nem", "static-shapes-plus"), _QUICK_STATIC),
    **dict.fromkeys(("tagger", "tagger-batch-norm"), _QUICK_TAGGER),
    **dict.fromkeys(("flying-shapes", "flying-shapes-plus", "flying-mnist"), _QUICK_FLYING),
    "flying-mnist-staged": [*_QUICK_FLYING, 'stages=[["data.digits=3"], ["data.digits=9"], ["data.digits=null"]]'],
    **dict.fromkeys(("bouncing-balls", "bouncing-balls-rnn-em", "bouncing-balls-rnn"), _QUICK_BALLS),
    "curtain": [*_QUICK_FLYING, "training.steps=4", "data.radii=[2.0]", "data.curtain=6"],
    "flying-mnist-plus": [*_QUICK_FLYING, 'stages=[["data.digits=3"], ["training.schedule=cosine"]]'],
}

_TEST = {"test": Evaluation()}
_IMAGES = {**_TEST, "clean": Evaluation(clean=True)}
_STANDING = {"standing": Evaluation(static=True), "standing, clean": Evaluation(static=True, clean=True)}
_TAGGER = {
    "test": Evaluation(steps=5, batch_size=100),  # as its authors' batches, which matter to batch norm
    "clean": Evaluation(steps=5, batch_size=100, clean=True),
}
_DIGITS = {
    **_TEST,
    "three digits": Evaluation(objects=3, components=3),
    "static digits": Evaluation(static=True, steps=50),
}


def _shapes(
    objects: int, components: int, tested: tuple[int, int] | None = None, preset: str = "flying-shapes",
    standing: bool = False,
) -> Training:  # fmt: skip
    evaluations = dict(_TEST)
    if tested is not None:
        evaluations["train"] = Evaluation(split="training", size=10_000)
        evaluations["generalisation"] = Evaluation(objects=tested[0], components=tested[1])
    if standing:
        evaluations |= _STANDING
    name = f"{preset}-{objects}-{components}"
    return Training(name, preset, {"objects": objects, "components": components}, evaluations)


def _sized(training: Training, pixels: int, *changes: str) -> Training:
    """The same on images of another size."""
    sizes = (f"{part}.{side}={pixels}" for part in ("data", "model") for side in ("height", "width"))
    return replace(training, name=f"{training.name}-{pixels}", changes=(*sizes, *changes))


_MOTION = _shapes(3, 5, standing=True)
_STILL, _DENSE = ("data.velocities=[0]",), ("model.convolutions=[]", "model.hidden=0", "model.theta_size=250")
# what tells the network's part from the motion's: training, network, what it is trained on, how it differs from the
# first, which is the paper's
MOTION: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (_MOTION.name, "convolutional", "moving shapes", ()),
    (f"{_MOTION.name}-still", "convolutional", "standing shapes", _STILL),
    (f"{_MOTION.name}-dense", "dense", "moving shapes", _DENSE),
    (f"{_MOTION.name}-dense-still", "dense", "standing shapes", _DENSE + _STILL),
)

_STATIC = tuple(
    Training(name, name, {}, _IMAGES) for name in ("static-shapes", "static-shapes-nem", "static-shapes-plus")
)
_TAGGERS = tuple(Training(name, name, {}, _TAGGER) for name in ("tagger", "tagger-batch-norm"))
_TABLE_1 = tuple((*sizes, tested) for sizes, _, _, tested, _ in TABLE_1)

TRAININGS: dict[str, Training] = {
    training.name: training
    for training in (
        *_STATIC[:2],
        *(_shapes(*sizes, standing=sizes[:2] == (3, 5)) for sizes in _TABLE_1),
        *(_shapes(*sizes) for sizes in ((4, 5), (3, 1), (4, 1), (5, 1))),
        Training("flying-mnist", "flying-mnist", {}, {**_DIGITS, "50 steps": Evaluation(steps=50)}),
        Training("flying-mnist-staged", "flying-mnist-staged", {}, _DIGITS),
        _STATIC[2],
        Training("static-shapes-nem-plus", "static-shapes-nem", {}, _TEST, changes=("model.step_size=1",)),
        *(_shapes(*sizes, preset="flying-shapes-plus") for sizes in _TABLE_1),
        Training("flying-mnist-plus", "flying-mnist-plus", {}, _DIGITS),
        *(_sized(training, 20) for training in _TAGGERS),
        *(_sized(training, 28, "model.start=0.16") for training in _TAGGERS),  # the mean of its images, as at 20
        *(_sized(training, 20) for training in (*_STATIC, _MOTION)),
        *(replace(_MOTION, name=name, changes=changes) for name, _, _, changes in MOTION[1:]),
    )
}

GROUPS: dict[str, tuple[str, ...]] = {
    "table-1": tuple(f"flying-shapes-{objects}-{components}" for objects, components, _ in _TABLE_1),
    "table-1-plus": tuple(f"flying-shapes-plus-{objects}-{components}" for objects, components, _ in _TABLE_1),
    "tagger": tuple(f"{name}{ending}" for name, _, ending in COMPARED),
    "motion": tuple(name for name, *_ in MOTION),
    "bce": tuple(f"flying-shapes-{objects}-{components}" for objects in (3, 4, 5) for components in (5, 1)),
}
