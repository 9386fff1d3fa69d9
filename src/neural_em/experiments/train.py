"""Trains an experiment: one run, several seeds together, several stages in a row, or both."""

import itertools
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from neural_em import config as configs
from neural_em.data import DataConfig, Dataset, load_split
from neural_em.errors import NeuralEMError, check_integer, refuse
from neural_em.experiments.initial_weights import first_weights, rate_note
from neural_em.experiments.own_data import as_seen, check_trainable, pixels_note
from neural_em.files import write_whole
from neural_em.model import build
from neural_em.presets import PRESETS, Experiment
from neural_em.runs import checkpoint
from neural_em.runs import folder as folders
from neural_em.runs.find import read_experiment
from neural_em.runs.record import Record
from neural_em.runs.writer import train_in
from neural_em.storage import load
from neural_em.training import Outcome, distributed
from neural_em.training import device as devices
from neural_em.training.display import line, shown
from neural_em.training.loop import Callback, Steps, outcomes, take_turns
from neural_em.training.state import EPOCHS, Progress, Snapshot
from neural_em.training.stop import Stop


def train(
    experiment: Experiment,
    run: str | os.PathLike[str] | None = None,
    seeds: int = 1,
    device: str = "auto",
    max_minutes: float | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    quiet: bool = False,
) -> list[Outcome]:
    """Trains an experiment into its run folder, from where it stopped; gives what came of each seed.

    Args:
        experiment: what to train.
        run: the run folder; by default ``runs/`` and a name that tells the settings.
        seeds: number of models to train together, with this seed and the following ones, each in a sub-folder.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        max_minutes: time limit; the same call resumes.
        resume: refuse to begin a new run.
        callbacks: as for `neural_em.training.fit`; the event's ``run`` says which of the runs it is about.
        quiet: show nothing.
    """
    seeds = check_integer("seeds", seeds, 1, 1000)
    path = run_path(experiment, run, seeds)
    if resume and not path.is_dir() and distributed.is_first():
        refuse(f"{path}", "a run folder to resume", "nothing there")
    settings, here = experiment.training, devices.choose(device)
    with distributed.joined(here) as here, shown(quiet or not distributed.is_first()) as (show, say):
        stop = Stop(max_minutes, say)
        with stop.listening(), devices.products(settings.precision, here, settings.deterministic):
            trainer = _Trainer(here, stop, (*callbacks, show), experiment.data_seed)
            sized = trainer.sized(experiment)
            distributed.in_first(lambda: trainer.check(sized, path, seeds), here)  # before anything is written
            return trainer.seeds(sized, path, seeds)


def run_path(experiment: Experiment, run: str | os.PathLike[str] | None = None, seeds: int = 1) -> Path:
    """The run folder: the given one, or one in ``runs/`` whose name tells the settings."""
    if run is not None:
        return Path(run)
    return Path("runs") / experiment.run_name(PRESETS.get(experiment.name, experiment), seeds)


def reopen(run: str | os.PathLike[str]) -> tuple[Experiment, int]:
    """The experiment of a run folder, and how many seeds are trained in it."""
    if not (Path(run) / folders.CONFIG).is_file():
        refuse(f"{run}", "a run folder to resume", "one without config.yaml" if Path(run).is_dir() else "none")
    experiment, data_known = read_experiment(Path(run))
    if not data_known:
        raise NeuralEMError(f"{run}: this run was started from Python, which alone has its data; resume it with fit")
    return experiment, max(1, _seeds_of(Path(run)))


class _Trainer:
    """What all runs of one call share: the device, the data, who is told."""

    def __init__(self, device: torch.device, stop: Stop, callbacks: tuple[Callback, ...], data_seed: int) -> None:
        self.device, self.stop, self.callbacks, self.data_seed = device, stop, callbacks, data_seed
        self._held: WeakValueDictionary[tuple[DataConfig, str], Dataset] = WeakValueDictionary()
        self._own: Dataset | None = None  # the user's own training data: read once for their size, then trained on
        self._first: tuple[dict[str, Tensor], str] | None = None  # what all begin with, in the first process

    def sized(self, experiment: Experiment) -> Experiment:
        """The experiment with a model for its data, every stage included."""
        usual, shape = PRESETS.get(experiment.name, experiment).model, experiment.data.shape
        if shape is not None:
            return experiment.for_frames(shape, usual)
        seen = as_seen(experiment)
        self._own = self.data(seen.data, "training")
        sized = seen.for_frames(self._own.shape, usual)
        check_trainable(sized, self._own.shape, self.device)
        return sized

    def data(self, config: DataConfig, split: Any) -> Dataset:
        """A split, made once for all runs that use it at the time."""
        dataset = self._held.get((config, split))
        if dataset is None:
            dataset = load_split(config, split, self.data_seed, self.device)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # runs use it on streams of their own
            self._held[config, split] = dataset
        return dataset

    def first(
        self, experiment: Experiment, path: Path, before: Outcome | None = None, memory: Path | None = None
    ) -> tuple[Snapshot, str] | None:
        """What a new run begins with and what to say of it; None for random weights, or where it has begun.

        The named weights are read once for all runs. A stage goes on with the weights of the one ``before``
        instead, and with the ``memory`` of Adam that it left, if that is carried on.
        """
        if folders.has_begun(path):
            return None
        if before is not None:
            kept = {} if memory is None else checkpoint.read_file(memory)
            return Snapshot.of_weights(before.model.state_dict(), kept), ""
        if experiment.weights is None:
            return None
        self._first = self._first or first_weights(experiment)
        return Snapshot.of_weights(self._first[0], {}), self._first[1]

    def check(self, experiment: Experiment, path: Path, count: int) -> None:
        """Refuses weights that do not fit, and settings that a stage did not begin with.

        Of stages that others were built on, how long they were trained is kept.
        """
        self.first(experiment, path)
        runs = {"": experiment} if count == 1 else _named(experiment, count)
        for (name, run), number in itertools.product(runs.items(), range(len(experiment.stages))):
            stage, kept = path / name / f"stage-{number + 1}", _kept(path / name, number)
            if folders.has_begun(stage):
                part = run.stage(number)
                folders.compare(stage, replace(part, training=replace(part.training, **(kept or {}))))

    def seeds(self, experiment: Experiment, path: Path, count: int) -> list[Outcome]:
        """Trains one seed in the folder itself, several in sub-folders."""
        train_one = self._stages if experiment.stages else self._single
        if count == 1:
            return outcomes(take_turns({"": train_one(experiment, path, "")}, self.device))
        with folders.opened(path, experiment, self.device, parts=True) as parent:
            seeds = max(count, _seeds_of(path))
            if parent is not None and Record.read(path).seeds != seeds:
                Record(seeds=seeds).write(path)  # at once: the folders of the seeds come one by one
            runs = {name: train_one(each, path / name, name) for name, each in _named(experiment, count).items()}
            results = take_turns(runs, self.device)
            if parent is not None:
                ended = {
                    name: Record.of(each.progress, each.stopped)
                    for name, each in results.items()
                    if isinstance(each, Outcome)
                }
                Record(seeds=seeds, runs=ended).write(path)
            return outcomes(results)

    def _stages(self, experiment: Experiment, path: Path, name: str) -> Steps:
        """Every stage in a folder of its own, begun with what the best epoch of the one before left."""
        with folders.opened(path, experiment, self.device, parts=True) as parent:
            outcome, records, stage, carries = None, dict[str, Record](), "", False
            for number, part in enumerate(experiment.parts()):
                stage = f"stage-{number + 1}"
                full_name = f"{name}/{stage}".lstrip("/")
                kept = distributed.from_first(lambda: _kept(path, number), self.device)  # noqa: B023 (called at once)
                if part != (part := replace(part, training=replace(part.training, **(kept or {})))) and kept:
                    text = f"keeps its number of epochs ({kept['epochs']}): the next stage started from its weights"
                    self._note(full_name, text, parent)
                memory = path / f"stage-{number}" / folders.BEST_OPTIMIZER if carries else None
                carries = experiment.carry_optimizer and number + 1 < len(experiment.stages)
                try:
                    outcome = yield from self._single(
                        part, path / stage, full_name, outcome, memory, carries, sealed=kept is not None
                    )
                except NeuralEMError:
                    ended = replace(Record.read(path / stage), sha256={})
                    if parent is not None and ended.problem:  # not-a-number, which is the end of the whole run
                        replace(ended, stages={**records, stage: ended}).write(path)
                    raise
                records[stage] = Record.of(outcome.progress, outcome.stopped)
                if not outcome.finished:
                    break
            assert outcome is not None  # there is a stage
            if parent is None:
                return replace(outcome, name=name)
            replace(records[stage], stages=records).write(path)
            for file in (folders.BEST, folders.LAST) if outcome.finished else ():
                write_whole(path / file, (path / stage / file).read_bytes())
            return replace(outcome, name=name, path=path)

    def _single(
        self, experiment: Experiment, path: Path, name: str, before: Outcome | None = None,
        memory: Path | None = None, carries: bool = False, sealed: bool = False,
    ) -> Steps:  # fmt: skip
        """One run in one folder; one that is finished is only read."""
        settings = experiment.training
        with folders.opened(path, experiment, self.device) as folder:
            finished = self._finished(folder, experiment, name, sealed)
            if finished is not None:
                can = settings.schedule == "constant" and finished.stopped == EPOCHS and not sealed
                self._note(name, f"this run is finished{'; for more, raise the number of epochs' if can else ''}")
                self._tell("stop", {"run": name, "outcome": finished})
                return finished
            model = build(experiment.model, seed=settings.seed)
            model.to(self.device, devices.dtype_of(settings.precision))
            found = distributed.in_first(lambda: self.first(experiment, path, before, memory), self.device)
            first, note = found or (None, "")
            data, validation = self.data(experiment.data, "training"), self.data(experiment.data, "validation")
            rate = note and rate_note(experiment)
            notes = [note, rate, data.note and f"data: {data.note}", pixels_note(experiment.data, data)]
            steps = train_in(
                folder, model, data, validation, settings, self.stop, self.callbacks, name, first, notes, carries
            )
            return (yield from steps)

    def _finished(
        self, folder: folders.RunFolder | None, experiment: Experiment, name: str, sealed: bool
    ) -> Outcome | None:
        """The outcome of a run that was finished before, read without its data; None where something is left to do.

        A ``sealed`` one, which the next stage builds on, is finished even where the experiment would train longer.
        """
        path = None if folder is None else folder.path
        epochs, patience = experiment.training.epochs, experiment.training.patience

        def look() -> list[Any] | None:
            record, found = Record.read(path or Path()), checkpoint.found((path or Path()) / folders.CHECKPOINTS)
            if not record.finished or not found:  # the summary is the last file a run writes
                return None
            try:
                progress = checkpoint.read_progress(found[0])
            except NeuralEMError:
                return None
            stopped = progress.settled(epochs, patience) or (record.stopped if sealed else None)
            return None if stopped is None else [stopped, configs.to_dict(progress)]

        found = distributed.from_first(look, self.device)
        if found is None:
            return None
        model = build(experiment.model) if path is None else load(path / folders.BEST)
        model.load_state_dict(distributed.tensors_from_first(model.state_dict(), self.device))
        return Outcome(name, model.to(self.device), found[0], configs.from_dict(Progress, found[1]), path)

    def _note(self, name: str, text: str, folder: folders.RunFolder | None = None) -> None:
        """A line for who looks on, and for the log of a folder."""
        if folder is not None:
            folder.log(line("note", {"run": name, "text": text}) or "")
        self._tell("note", {"run": name, "text": text})

    def _tell(self, event: str, info: dict[str, Any]) -> None:
        for callback in self.callbacks if distributed.is_first() else ():
            callback(event, info)


def _seeds_of(path: Path) -> int:
    """How many seeds a folder is for: as it says itself, and at least as many as it holds."""
    return max(Record.read(path).seeds or 0, len(folders.sub_folders(path, "seed-")))


def _named(experiment: Experiment, count: int) -> dict[str, Experiment]:
    """Several seeds by the names of their folders."""
    first = experiment.training.seed
    return {f"seed-{seed}": experiment.with_seed(seed) for seed in range(first, first + count)}


def _kept(path: Path, number: int) -> dict[str, Any] | None:
    """How long a stage, counted from 0, was to be trained; None where the next one has not begun with its weights."""
    if not folders.has_begun(path / f"stage-{number + 2}"):
        return None
    training = read_experiment(path / f"stage-{number + 1}")[0].training
    return {"epochs": training.epochs, "patience": training.patience}
