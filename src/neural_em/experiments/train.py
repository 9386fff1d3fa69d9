"""Trains an experiment: one run, several seeds together, several stages in a row, or both."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from neural_em import config as configs
from neural_em.data import DataConfig, Dataset, load_split
from neural_em.errors import NeuralEMError, refuse
from neural_em.experiments.begin import first_weights
from neural_em.experiments.config import Experiment
from neural_em.experiments.logs import read_summary, sub_folders
from neural_em.experiments.presets import PRESETS
from neural_em.experiments.runs import read_experiment
from neural_em.files import write_whole
from neural_em.model import build
from neural_em.storage import load
from neural_em.training import Outcome, checkpoint, distributed
from neural_em.training import device as devices
from neural_em.training.display import logger, shown
from neural_em.training.keeper import read_finished
from neural_em.training.loop import Callback, Run
from neural_em.training.run_folder import BEST, CHECKPOINTS, CONFIG, LAST, RunFolder, compare, has_begun, open_in_first
from neural_em.training.state import EPOCHS, Progress
from neural_em.training.stop import Stop
from neural_em.training.together import Steps, outcomes, train_together


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
    """Trains an experiment into its run folder, from where it stopped.

    Args:
        experiment: what to train.
        run: the run folder; ``runs/`` and a name that tells the settings where not given.
        seeds: train so many models together, with this seed and the following ones, each in a sub-folder.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        max_minutes: stop after so many minutes, so that the same call goes on.
        resume: refuse to begin a new run.
        callbacks: as for `neural_em.training.fit`; the event's ``run`` says which of the runs it is about.
        quiet: show nothing.

    Returns:
        What came of each seed.
    """
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= 1000:
        refuse("seeds", "an integer from 1 to 1000", repr(seeds))
    usual = PRESETS.get(experiment.name, experiment)
    path = run_path(experiment, run, seeds)
    if resume and not path.is_dir() and distributed.is_first():
        refuse(f"{path}", "a run folder to go on with", "nothing there")
    here = devices.choose(device)
    with distributed.joined(here) as here, shown(quiet or not distributed.is_first()) as (show, say):
        stop = Stop(max_minutes, say)
        settings = experiment.training
        with stop.listening(), devices.products(settings.precision, here, settings.deterministic):
            trainer = _Trainer(here, stop, (*callbacks, show), experiment.data_seed)
            sized = trainer.sized(experiment, usual)
            # refused before anything is written
            trainer.read_first(sized, lambda: has_begun(path))
            trainer.check_stages(sized, path, seeds)
            return trainer.seeds(sized, path, seeds)


def run_path(experiment: Experiment, run: str | os.PathLike[str] | None = None, seeds: int = 1) -> Path:
    """The run folder: the given one, or one in ``runs/`` whose name tells the settings."""
    if run is not None:
        return Path(run)
    return Path("runs") / experiment.run_name(PRESETS.get(experiment.name, experiment), seeds)


def reopen(run: str | os.PathLike[str]) -> tuple[Experiment, int]:
    """The experiment of a run folder, and how many seeds are trained in it."""
    if not (Path(run) / CONFIG).is_file():
        refuse(f"{run}", "a run folder to go on with", "one without config.yaml" if Path(run).is_dir() else "none")
    experiment, data_known = read_experiment(Path(run))
    if not data_known:
        refuse(f"{run}", "a run of nem train", "one of fit, whose data only Python has")
    return experiment, max(1, _seeds_of(Path(run)))


class _Trainer:
    """What all runs of one call share: the device, the data, who is told."""

    def __init__(self, device: torch.device, stop: Stop, callbacks: tuple[Callback, ...], data_seed: int) -> None:
        self.device, self.stop, self.callbacks, self.data_seed = device, stop, callbacks, data_seed
        self._held: WeakValueDictionary[tuple[DataConfig, str], Dataset] = WeakValueDictionary()
        self._own: Dataset | None = None  # the user's own training data: read once for their size, then trained on
        self._first: tuple[dict[str, Tensor], str] | None = None  # what all begin with, in the first process

    def sized(self, experiment: Experiment, usual: Experiment) -> Experiment:
        """The experiment with a model for its data, every stage included."""
        shape = experiment.data.shape
        if shape is None:
            self._own = self.data(experiment.data, "training")
            shape = self._own.shape
        return experiment.for_frames(shape, usual.model)

    def data(self, config: DataConfig, split: Any) -> Dataset:
        """A split, made once for all runs that use it at the time."""
        dataset = self._held.get((config, split))
        if dataset is None:
            dataset = load_split(config, split, self.data_seed, self.device)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # runs use it on streams of their own
            self._held[config, split] = dataset
        return dataset

    def read_first(self, experiment: Experiment, begun: Callable[[], bool]) -> str | None:
        """Reads the weights to begin with, once for all runs; what to say of them, None for a run without or begun."""

        def look() -> str | None:
            if begun():
                return None
            self._first = self._first or first_weights(experiment)
            return self._first[1]

        return None if experiment.weights is None else distributed.from_first(look, self.device)

    def check_stages(self, experiment: Experiment, path: Path, count: int) -> None:
        """Refuses settings that a stage did not begin with; of those that others were built on, how long is kept."""

        def look() -> None:
            runs = {"": experiment} if count == 1 else _named(experiment, count)
            for (name, run), number in itertools.product(runs.items(), range(len(experiment.stages))):
                stage, kept = path / name / f"stage-{number + 1}", _kept(path / name, number)
                if checkpoint.found(stage / CHECKPOINTS):
                    compare(stage, run.stage(number) if kept is None else _as_before(run.stage(number), kept))

        distributed.from_first(look, self.device)

    def seeds(self, experiment: Experiment, path: Path, count: int) -> list[Outcome]:
        """Trains one seed in the folder itself, several in sub-folders."""
        if count == 1:
            return outcomes(train_together({"": self._seed(experiment, path, "")}, self.device))
        parent = open_in_first(path, experiment, self.device, parts=True)
        try:
            seeds = max(count, _seeds_of(path))
            if parent is not None and read_summary(path).get("seeds") != seeds:
                parent.write_summary({"seeds": seeds})  # at once: the folders of the seeds come one by one
            runs = {name: self._seed(each, path / name, name) for name, each in _named(experiment, count).items()}
            results = train_together(runs, self.device)
            if parent is not None:
                ended = {name: result.summary() for name, result in results.items() if isinstance(result, Outcome)}
                parent.write_summary({"seeds": seeds, "runs": ended})
            return outcomes(results)
        finally:
            if parent is not None:
                parent.close()

    def _seed(self, experiment: Experiment, path: Path, name: str) -> Steps:
        return self._stages(experiment, path, name) if experiment.stages else self._single(experiment, path, name)

    def _stages(self, experiment: Experiment, path: Path, name: str) -> Steps:
        """Every stage in a folder of its own, begun with what the best epoch of the one before left."""
        parent = open_in_first(path, experiment, self.device, parts=True)
        try:
            weights, before, summaries, stage = None, None, {}, ""
            for number in range(len(experiment.stages)):
                stage, part = f"stage-{number + 1}", experiment.stage(number)
                full_name = f"{name}/{stage}".lstrip("/")
                kept = distributed.from_first(lambda: _kept(path, number), self.device)  # noqa: B023 (called at once)
                if kept is not None and part != (part := _as_before(part, kept)):
                    text = f"stays as it is (epochs {kept['epochs']}): the next stage began with its weights"
                    self._note(full_name, text, parent)
                carries = experiment.carry_optimizer and number + 1 < len(experiment.stages)
                outcome = yield from self._single(
                    part, path / stage, full_name, weights, kept is not None, before, carries
                )
                summaries[stage] = outcome.summary()
                if not outcome.finished:
                    break
                weights, before = outcome.model.state_dict(), path / stage if carries else None
            if parent is not None:
                parent.write_summary({**outcome.summary(), "stages": summaries})
                if outcome.finished:
                    for file in (BEST, LAST):
                        write_whole(path / file, (path / stage / file).read_bytes())
            return replace(outcome, name=name, path=path)
        except NeuralEMError:
            ended = read_summary(path / stage)
            if parent is not None and ended.get("problem"):  # not-a-number, which is the end of the whole run
                ended.pop("sha256", None)
                parent.write_summary({**ended, "stages": {**summaries, stage: ended}})
            raise
        finally:
            if parent is not None:
                parent.close()

    def _single(
        self, experiment: Experiment, path: Path, name: str,
        weights: dict[str, Tensor] | None = None, sealed: bool = False,
        before: Path | None = None, keep_optimizer: bool = False,
    ) -> Steps:  # fmt: skip
        """One run in one folder; one that is finished is only read."""
        folder = open_in_first(path, experiment, self.device)
        try:
            finished = self._finished(experiment, folder, name, sealed)
            if finished is not None:
                return finished
            model = build(experiment.model, seed=experiment.training.seed)
            model.to(self.device, devices.dtype_of(experiment.training.precision))
            note = None
            if weights is None:
                note = self.read_first(experiment, lambda: bool(checkpoint.found(path / CHECKPOINTS)))
                weights = self._first[0] if note and self._first else None  # the others get them from the first process
            if weights is not None:
                model.load_state_dict(weights)
            callbacks = self.callbacks if folder is None else (logger(folder), *self.callbacks)
            data, validation = self.data(experiment.data, "training"), self.data(experiment.data, "validation")
            run = Run(
                model, data, validation, experiment.training, folder, self.stop, callbacks, name,
                before, keep_optimizer,
            )  # fmt: skip
            for text in (note, data.note and f"data: {data.note}"):
                if text:
                    run.tell("note", text=text)
            return (yield from run.train())
        finally:
            if folder is not None:
                folder.close()

    def _finished(self, experiment: Experiment, folder: RunFolder | None, name: str, sealed: bool) -> Outcome | None:
        """The outcome of a run that was finished before, read without its data."""

        def look() -> list[Any] | None:
            found = None if folder is None else read_finished(folder.path, experiment.training, sealed)
            return None if found is None else [found[0], configs.to_dict(found[1])]

        found = distributed.from_first(look, self.device)
        if found is None:
            return None
        model = build(experiment.model) if folder is None else load(folder.path / BEST)
        model.load_state_dict(distributed.tensors_from_first(model.state_dict(), self.device))
        progress = configs.from_dict(Progress, found[1])
        outcome = Outcome(name, model.to(self.device), found[0], progress, None if folder is None else folder.path)
        can = experiment.training.schedule == "constant" and found[0] == EPOCHS and not sealed
        self._note(name, f"this run is finished{'; a larger number of epochs goes on' if can else ''}")
        for callback in self.callbacks if distributed.is_first() else ():
            callback("stop", {"run": name, "outcome": outcome})
        return outcome

    def _note(self, name: str, text: str, folder: RunFolder | None = None) -> None:
        """A line for who looks on, and for the log of a folder."""
        told = self.callbacks if folder is None else (logger(folder), *self.callbacks)
        for callback in told if distributed.is_first() else ():
            callback("note", {"run": name, "text": text})


def _seeds_of(path: Path) -> int:
    """How many seeds a folder is for: as it says itself, and at least as many as it holds."""
    return max(int(read_summary(path).get("seeds", 0)), len(sub_folders(path, "seed-")))


def _named(experiment: Experiment, count: int) -> dict[str, Experiment]:
    """Several seeds by the names of their folders."""
    first = experiment.training.seed
    return {f"seed-{seed}": experiment.with_seed(seed) for seed in range(first, first + count)}


def _kept(path: Path, number: int) -> dict[str, Any] | None:
    """How long a stage, counted from 0, was to be trained; None where the next one has not begun with its weights."""
    if not checkpoint.found(path / f"stage-{number + 2}" / CHECKPOINTS):
        return None
    training = read_experiment(path / f"stage-{number + 1}")[0].training
    return {"epochs": training.epochs, "patience": training.patience}


def _as_before(stage: Experiment, kept: dict[str, Any]) -> Experiment:
    return replace(stage, training=replace(stage.training, **kept))
