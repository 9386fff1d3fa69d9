"""Evaluates trained runs: on the data they were trained for, or on others that are named as differences."""

import functools
import hashlib
import json
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from neural_em import config as configs
from neural_em.data import DataConfig, Dataset, FileConfig, load_split
from neural_em.data.config import MAX_OBJECTS, SPLITS
from neural_em.data.own import divided
from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.evaluation import EvaluationConfig, Result, evaluate
from neural_em.evaluation.probe import check_known, probe
from neural_em.experiments.own_data import about_part, fingerprint, own_data
from neural_em.fields import Check, Checked, flag, integer, optional
from neural_em.files import absolute, checksum, short
from neural_em.model import Model
from neural_em.model.fast import accelerate
from neural_em.runs import environment
from neural_em.runs.evaluations import EVALUATIONS, read_result
from neural_em.runs.find import TrainedRun
from neural_em.training import device as devices

# where the files are and how a run was computed is no part of what it computes
INDIFFERENT = frozenset({"training.seed", "training.precision", "training.deterministic", "data.mnist"})
_CHECKS = EvaluationConfig.CHECKS
_NAMED = ("objects", "components", "steps", "rollout", "static", "clean", "starts", "size", "seed", "probe")


@dataclass(frozen=True)
class Evaluation(Checked):
    """What to evaluate a run on; ``None`` is as it was trained, except where a field says otherwise."""

    objects: int | None = None  # objects in a generated sequence
    components: int | None = None  # K
    # EM steps; generated sequences are made as long as they need to be. ``None``: one for each frame but the first,
    # however many training made of it; of images the model's own number
    steps: int | None = None
    # ``training``, ``validation``, ``test``, or ``all`` of the user's own data; ``None``: ``test``, or ``all`` of own
    # data that are not divided into these
    split: str | None = None
    static: bool = False  # look at frame 0 only, repeated
    data: str | None = None  # the user's own file or folder instead of the run's data
    masks: str | None = None  # its true groups
    starts: int = 1  # random starts for each sequence
    size: int | None = None  # how many sequences; ``None``: the whole split
    seed: int = 0  # of the starts and of the noise
    batch_size: int = 500  # sequences at a time; changes no result but that of a model with batch norm
    changes: tuple[str, ...] = ()  # other fields of generated data, such as ``data.threshold=0.25``
    # further steps without input; generated sequences are longer by as many frames, of others the last so many are held
    # back, unless ``steps`` says how many to read
    rollout: int = 0
    probe: bool = False  # also say what can be read from theta, of data that know their objects
    clean: bool = False  # let the components read frames without noise

    CHECKS: ClassVar[Mapping[str, Check]] = {
        **{name: _CHECKS[name] for name in ("steps", "static", "starts", "batch_size", "rollout", "clean")},
        "components": optional(_CHECKS["components"]),
        "objects": optional(integer(1, MAX_OBJECTS)),
        "size": _CHECKS["limit"],
        "probe": flag,
    }

    def check_together(self) -> None:
        """Refuses what cannot be, before anything is loaded."""
        if self.split is None:
            whole = self.data is not None and not divided(self.data)
            object.__setattr__(self, "split", "all" if whole else "test")
        parts = SPLITS if self.data is None else (*SPLITS, "all")
        if self.split not in parts:
            unknown("split", self.split, parts)
        if self.masks is not None and self.data is None:
            raise NeuralEMError("--masks needs --data, the frames that they belong to")
        if self.data is not None and (self.objects or self.changes):
            name = "objects" if self.objects else "set"
            raise NeuralEMError(f"--{name} is for generated data; leave it out with --data")
        for change in self.changes:
            field = configs.field_of(change)
            if not field.startswith("data.") or field == "data.kind":
                refuse("set", "a field of the data, data.NAME=VALUE", repr(change))
            option = {"data.objects": "objects", "data.frames": "steps"}.get(field)
            if option is not None:
                raise NeuralEMError(f"--set {change}: use --{option} instead")

    def data_config(self, run: TrainedRun) -> DataConfig:
        """The data to evaluate the run on."""
        data = run.experiment.data
        if self.data is not None:
            data = own_data(run, self.data, self.masks)
        elif not run.data_known:
            where = run.folder or run.weights
            raise NeuralEMError(f"{where}: does not say what it was trained on; name its data with --preset or --data")
        if isinstance(data, FileConfig):
            if self.objects or self.changes:
                name = "objects" if self.objects else "set"
                raise NeuralEMError(f"--{name} is for generated data; this run has its own, {data.path}")
            return data
        objects = () if self.objects is None else (f"data.objects={self.objects}",)
        least, most = (getattr(data, name, None) for name in ("objects", "most_objects"))
        if self.objects is not None and most is not None and (self.objects > most or least == most):
            objects = ("data.most_objects=null", *objects)  # exactly so many
        data = configs.override(replace(run.experiment, data=data), (*objects, *self.changes)).data
        if self.static:
            return replace(data, frames=1)
        if data.frames is None or data.frames == 1:
            return data
        return replace(data, frames=(data.frames if self.steps is None else self.steps + 1) + self.rollout)

    def config(self, run: TrainedRun) -> EvaluationConfig:
        """How to evaluate the run."""
        return EvaluationConfig(
            self.components or run.experiment.training.components, self.steps, self.static, self.starts, self.seed,
            batch_size=self.batch_size, rollout=self.rollout, clean=self.clean,
        )  # fmt: skip

    def name(self, run: TrainedRun) -> str:
        """A file name that says what is special: nothing is named that is as the run was trained."""
        trained = {
            "objects": getattr(run.experiment.data, "objects", None),
            "components": run.experiment.training.components,
        }
        parts = [self.split or ""]
        for name in _NAMED:
            value, usual = getattr(self, name), getattr(_USUAL, name)
            if value != usual and value != trained.get(name):
                parts.append(name if value is True else f"{name}{value}")
        parts += [_file_name(change.removeprefix("data."), change) for change in self.changes]
        if self.data is not None:
            path = absolute(self.data)
            parts.append(_file_name(Path(path).stem, f"{path}:{self.masks}"))
        parts += [] if run.which == "best" else [run.which]
        return short("-".join(parts))

    def options(self) -> str:
        """The same as options of ``nem evaluate``."""
        words = [f"--set {shlex.quote(change)}" for change in self.changes]
        for name, value in asdict(self).items():
            if name != "changes" and value != getattr(_USUAL, name):
                words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [shlex.quote(str(value))])
        return " ".join(words)

    def note(self, run: TrainedRun) -> str:
        """What a reader of the scores has to know: of data that are not the run's own, and of batch norm."""
        batch = f"normalised in batches of {self.batch_size}" if run.experiment.model.batch_matters else ""
        return _joined("" if self.data is None else about_part(run, self.data, self.split or ""), batch)


_USUAL = Evaluation()


class Evaluator:
    """Evaluates runs on one device; data that several runs share are made once.

    ``progress`` is called with the run's name, the number of sequences done and of all.
    """

    def __init__(self, device: str = "auto", progress: Callable[[str, int, int], None] | None = None) -> None:
        self.device, self.progress = devices.choose(device), progress
        self._held: tuple[Any, Dataset] | None = None

    def model(self, run: TrainedRun) -> Model:
        """The run's model, the fast one."""
        return accelerate(run.load(self.device))

    def dataset(self, run: TrainedRun, evaluation: Evaluation) -> Dataset:
        """The data to evaluate the run on, which fit its model."""
        config = evaluation.data_config(run)
        data = self._load(config, run.experiment.data_seed, evaluation)
        steps = evaluation.steps
        needed = 0 if steps is None or evaluation.static else steps + 1 + evaluation.rollout
        if config.kind == "file" and 1 < data.shape[0] < needed:
            data = self._load(replace(config, frames=needed), run.experiment.data_seed, evaluation)
        model = run.experiment.model
        size = (model.channels, model.height, model.width)
        if tuple(data.shape[1:]) != size:
            refuse("data", f"frames of (C,H,W) {size}, which {run.name} is made for", tuple(data.shape[1:]))
        return data

    def result(self, run: TrainedRun, evaluation: Evaluation) -> Result:
        """Evaluates a run; the result's settings say everything that it depends on."""
        about = identity(run, evaluation)  # first: files that change in the meantime are not those that were read
        data, model, began = self.dataset(run, evaluation), self.model(run), time.monotonic()
        if evaluation.probe:
            check_known(data)
        told = None if self.progress is None else functools.partial(self.progress, run.name)
        precision = devices.of_evaluation(run.experiment.training.precision)
        with devices.products(precision, self.device):
            result = evaluate(model, data, evaluation.config(run), told)
            if evaluation.probe:
                result = replace(result, probe=probe(model, data, evaluation.config(run)))
        made = environment.describe(self.device, devices.resolve(precision, self.device))
        seconds = round(time.monotonic() - began, 3)
        settings = {
            **result.settings, **about, "data_note": _joined(evaluation.note(run), result.note),
            "trained_components": run.experiment.training.components,
            "made": {**{name: made[name] for name in ("time", "neural_em", "commit", "device")}, "seconds": seconds},
        }  # fmt: skip
        return _noted(run, replace(result, settings=settings))

    def _load(self, config: DataConfig, seed: int, evaluation: Evaluation) -> Dataset:
        key = (config, seed, evaluation.split, evaluation.size)
        if self._held is None or self._held[0] != key:
            self._held = None  # make room first
            split: Any = evaluation.split
            self._held = key, load_split(config, split, seed, self.device, evaluation.size)
        return self._held[1]


def identity(run: TrainedRun, evaluation: Evaluation) -> dict[str, Any]:
    """What one evaluation is about: the weights and the data; another one is not the same result."""
    data = evaluation.data_config(run)
    files = fingerprint(data)
    return {
        "split": evaluation.split,
        "size": evaluation.size,
        "data": json.loads(json.dumps(configs.to_dict(data))),
        **({} if files is None else {"files": files}),
        "data_seed": run.experiment.data_seed,
        "weights": run.which,
        "fingerprint": checksum(run.weights),
    }


def stored(run: TrainedRun, evaluation: Evaluation) -> Result | None:
    """An evaluation that was made before, of the very same weights in the very same way."""
    if run.folder is None:
        return None
    wanted = {**asdict(evaluation.config(run)), **identity(run, evaluation)}
    if not run.experiment.model.batch_matters:
        del wanted["batch_size"]
    result = read_result(run.folder / EVALUATIONS / f"{evaluation.name(run)}.json", wanted)
    return None if result is None else _noted(run, result)


def _noted(run: TrainedRun, result: Result) -> Result:
    """The result with a note about its data and about the run as it is now: it may have finished since."""
    return replace(result, note=_joined(*run.notes, result.settings.get("data_note")))


def _joined(*notes: str | None) -> str:
    return "; ".join(note for note in notes if note)


def differences(runs: Sequence[TrainedRun]) -> list[str]:
    """The settings in which runs differ, beside INDIFFERENT ones; a mean over such runs says little."""
    tables = [configs.flat(run.experiment) for run in runs]
    free = frozenset.intersection(*(configs.changeable(run.experiment) for run in runs)) | INDIFFERENT
    keys = dict.fromkeys(key for table in tables for key in table if key not in free)
    return [key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)]


def _file_name(words: str, unique: str) -> str:
    """Readable, and another one for whatever differs."""
    return f"{re.sub(r'[^A-Za-z0-9.]+', '_', words)[:40]}_{hashlib.sha256(unique.encode()).hexdigest()[:8]}"
