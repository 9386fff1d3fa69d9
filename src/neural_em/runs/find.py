"""Trained models, found again: run folders, folders of several seeds or stages, weight files and shipped models."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import neural_em
from neural_em import config as configs
from neural_em.data import DataConfig
from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.files import checksum, from_home
from neural_em.model import Model
from neural_em.presets import Experiment
from neural_em.presets import preset as preset_named
from neural_em.runs.fit import FitConfig
from neural_em.runs.folder import BEST, CONFIG, FOLDERS, LAST, sub_folders
from neural_em.runs.record import Record, Start, read_metrics, read_starts
from neural_em.storage import load
from neural_em.storage.folders import refuse_links
from neural_em.storage.pretrained import Card, find_model
from neural_em.training.config import TrainingConfig

WEIGHTS = {"best": BEST, "last": LAST}


@dataclass(frozen=True)
class TrainedRun:
    """A trained model and what is known of its making."""

    name: str  # what to call it
    experiment: Experiment  # its settings; those of the last stage, where there were stages
    weights: Path  # its weight file
    data_known: bool = True  # whether the experiment's data are those it was trained on; else they have to be named
    folder: Path | None = None  # its run folder, where it has one
    which: str = "best"  # ``best`` or ``last``: which epoch's weights these are
    notes: tuple[str, ...] = ()  # what a reader of its scores has to know

    @property
    def record(self) -> Record:
        """How training went and why it stopped; empty where nobody wrote it down."""
        return Record() if self.folder is None else Record.read(self.folder)

    @property
    def start(self) -> Start:
        """Version, commit and device of the run's last start."""
        starts = [] if self.folder is None else read_starts(self.folder)
        return starts[-1] if starts else Start()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What training logged, one row an epoch; the epochs of stages count on."""
        return [] if self.folder is None else read_metrics(self.folder)

    def load(self, device: torch.device | str) -> Model:
        """The model, on a device."""
        return load(self.weights, device)


@dataclass
class Found:
    """The runs that can be used, and for those that cannot, why."""

    runs: list[TrainedRun] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_runs(sources: Iterable[str | os.PathLike[str]], which: str = "best", preset: str | None = None) -> Found:
    """The trained models at some places: run folders, also of several seeds, weight files, names of shipped models.

    ``which`` epoch's weights to take: ``best`` or ``last``. ``preset``: whose data to use, for models that do not say
    what they were trained on.
    """
    if which not in WEIGHTS:
        unknown("weights", which, WEIGHTS)
    found, sources = Found(), list(sources)
    for source in sources:
        path = from_home(source)
        if os.path.isdir(path):  # False, not an error, where no file can have such a name
            _add_folder(found, path, which, preset)
        elif os.path.isfile(path):
            found.runs.append(_from_file(path, preset))
        else:
            card = find_model(source)  # a shipped one
            found.runs.append(_from_card(card, card.name, preset))
    if not found.runs:
        # all of them for one folder, one line for many
        raise NeuralEMError("; ".join(found.problems) if found.problems else "runs: expected at least one, got none")
    runs, again = _each_once(found.runs)
    return Found(_told_apart(runs), found.problems + again)


def read_experiment(folder: Path) -> tuple[Experiment, bool]:
    """The settings of a run folder, and whether they say what the data were."""
    path = folder / CONFIG
    if not path.is_file():
        holds = "one without it" if folder.is_dir() else "nothing there"
        refuse(f"{folder}", f"a run folder with its {CONFIG}", holds)
    try:
        try:
            python = configs.read(FitConfig, path)  # a run that was started from Python, on data as they came
        except NeuralEMError:
            return configs.read(Experiment, path), True
        return Experiment(python.name, python.model, training=replace(python.training, steps=None)), False
    except NeuralEMError as error:
        made = next((start.neural_em for start in reversed(read_starts(folder))), None)
        version = "" if made in (None, neural_em.__version__) else (
            f" (the run was made with version {made}, this is {neural_em.__version__})"
        )  # fmt: skip
        text = str(error).removeprefix(f"{path}: ")
        raise NeuralEMError(f"{path}: {text}{version}") from None


def _add_folder(found: Found, path: Path, which: str, preset: str | None) -> None:
    """The run of a folder, or those of its seeds; one seed without weights does not hold up the others."""
    seeds = sub_folders(path, "seed-")
    if not seeds:
        found.runs.append(_from_folder(path, which, preset))
        return
    for seed in seeds:
        try:
            refuse_links(path, [seed.name])
            run = _from_folder(seed, which, preset)
        except NeuralEMError as error:
            found.problems.append(str(error))
        else:
            found.runs.append(replace(run, name=f"{path.resolve().name}/{seed.name}"))


def _from_folder(path: Path, which: str, preset: str | None) -> TrainedRun:
    experiment, known = read_experiment(path)
    refuse_links(path, FOLDERS)
    file, notes = path / WEIGHTS[which], []
    record = Record.read(path)
    if experiment.stages:
        stages = len(experiment.stages)
        done = [stage for stage in sub_folders(path, "stage-") if (stage / WEIGHTS[which]).is_file()]
        if not file.is_file() and done:
            file = done[-1] / WEIGHTS[which]
            notes.append(f"only {done[-1].name} of {stages} has begun, its weights are used")
        experiment = experiment.stage(stages - 1)
    if not file.is_file():
        why = record.problem or record.stopped
        refuse(f"{path}", f"{WEIGHTS[which]}, which the first epoch writes", f"none ({why})" if why else "none yet")
    notes += [text for text in (_exchanged(file, path), record.shortfall) if text]
    run = TrainedRun(path.resolve().name, experiment, file, known, path, which, tuple(notes))
    return _with_preset(run, preset)


def _from_file(path: Path, preset: str | None) -> TrainedRun:
    """A weight file, whose settings lie beside it if it is still where training put it."""
    beside = {file: which for which, file in WEIGHTS.items()}
    if path.name in beside and preset is None and (path.parent / CONFIG).is_file():
        return _from_folder(path.parent, beside[path.name], None)
    return _from_card(find_model(path), path.stem, preset)


def _from_card(card: Card, name: str, preset: str | None) -> TrainedRun:
    """A weight file by itself, with what its notes tell."""
    known = isinstance(card.notes.get("data"), dict)
    data = configs.from_dict(DataConfig, card.notes["data"], f"{card.path}: notes: data") if known else DataConfig()
    training = TrainingConfig() if card.components is None else TrainingConfig(components=card.components)
    experiment = Experiment(name, card.config, data, training)
    run = TrainedRun(name, experiment, card.path, known)
    return _with_preset(run, preset, keep_components=card.components is not None)


def _with_preset(run: TrainedRun, preset: str | None, keep_components: bool = True) -> TrainedRun:
    """The run with the preset's data, where one is named."""
    if preset is None:
        return run
    usual = preset_named(preset)
    usual = usual.stage(len(usual.stages) - 1) if usual.stages else usual
    training = run.experiment.training if keep_components else usual.training
    experiment = replace(run.experiment, data=usual.data, training=training, data_seed=usual.data_seed)
    return replace(run, experiment=experiment, data_known=True)


def _exchanged(file: Path, folder: Path) -> str:
    """What to say of a weight file that is not the one the run wrote; empty where it is, or where nothing tells."""
    stages = sub_folders(folder, "stage-") if file.parent == folder else []
    record = Record.read(stages[-1] if stages else file.parent)  # a staged run's weights are its last stage's
    written = record.sha256.get(file.name)
    if written is None or record.stopped is None or checksum(file) == written:  # one that goes on may write newer ones
        return ""
    return f"{file.name} is not the file that this run wrote"


def _each_once(runs: list[TrainedRun]) -> tuple[list[TrainedRun], list[str]]:
    """The runs without those named before, which are no seeds of their own, and a line about each of these."""
    kept: dict[Path, TrainedRun] = {}
    again = []
    for run in runs:
        first = kept.setdefault(run.weights.resolve(), run)
        if first is not run:
            again.append(f"{run.name}: the same weights as {first.name}")
    return list(kept.values()), again


def _told_apart(runs: list[TrainedRun]) -> list[TrainedRun]:
    """Every run under a name of its own: more of its path where names are the same."""
    names = [run.name for run in runs]
    apart: list[TrainedRun] = []
    for number, run in enumerate(runs, start=1):
        if names.count(run.name) > 1:
            name = str(run.folder or run.weights)
            run = replace(run, name=name if name not in [r.name for r in apart] else f"{name} ({number})")
        apart.append(run)
    return apart
