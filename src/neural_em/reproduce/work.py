"""Trains what is missing, evaluates what is missing, and writes down what there is; goes on where it stopped."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure

from neural_em.errors import NeuralEMError, check_integer, refuse, unknown
from neural_em.experiments import PRESETS, train
from neural_em.experiments.evaluation import Evaluator, stored
from neural_em.files import make, write_whole
from neural_em.report.figures import save_figure
from neural_em.report.plots import StepCurve, bce_figure, score_curve
from neural_em.report.run_figures import KINDS, Subject, model_name
from neural_em.report.tables import MISSING
from neural_em.reproduce import records as recorded
from neural_em.reproduce.plan import GROUPS, SEEDS, TRAININGS, Training
from neural_em.reproduce.records import TrainingRecord, evaluated, mean_of, usable, wrong_settings
from neural_em.reproduce.results_page import Cell, cells, render
from neural_em.runs.evaluations import EVALUATIONS, write_result
from neural_em.runs.folder import RunFolder
from neural_em.runs.record import read_object
from neural_em.training.stop import INTERRUPTED

RUNS, RESULTS = Path("runs") / "reproduce", Path("results")
QUICK_RUNS = Path("runs") / "quick"
PAGE, CELLS, RECORDS, FIGURES = "reproduction.md", "reproduction.json", "runs", "figures"
_TRAINED = 20  # steps of flying MNIST's training
# file, kind of figure, training, evaluation, caption
_GROUPINGS = (
    ("static-shapes", "static", "static-shapes", "test", "Figure 3, RNN-EM: groupings of static shapes, step by step"),
    ("static-shapes-nem", "static", "static-shapes-nem", "test", "Figure 3, N-EM: the same images"),
    ("flying-shapes", "sequence", "flying-shapes-5-5", "test", "Figure 4: a typical sequence of five shapes, K = 5"),
    ("flying-mnist", "sequence", "flying-mnist-staged", "three digits",
     "Figure 7: a typical sequence of three digits, by a model that was trained, stage-wise, on two"),
)  # fmt: skip


@dataclass
class Reproduction:
    """The work on the paper's results."""

    runs: Path = RUNS  # folder of the run folders
    out: Path = RESULTS  # folder of the results
    seeds: int = SEEDS  # how many runs of each training
    quick: bool = False  # at toy size
    device: str = "auto"  # or ``cpu``, ``cuda``, ``cuda:N``
    epochs: int | None = None  # at most so many in each training, where fewer than the paper's are wanted
    precision: str = "auto"  # of training; ``bf16`` is faster on a GPU
    max_minutes: float | None = None  # stop after so long; the same call goes on
    unfinished: bool = False  # evaluate runs whose training is not finished too
    settings: Sequence[str] = ()  # of all trainings, as dotted fields; those that are free, and no others
    say: Callable[[str], None] = lambda line: None  # told what is going on, a line at a time
    problems: list[str] = field(default_factory=list)  # what could not be done, with the reason
    interrupted: bool = False  # whether somebody asked to stop

    page: ClassVar[str] = PAGE
    usual_seeds: ClassVar[int] = SEEDS
    trainings: ClassVar[Mapping[str, Training]] = TRAININGS
    groups: ClassVar[Mapping[str, Sequence[str]]] = GROUPS
    groupings: ClassVar[Sequence[tuple[str, str, str, str, str]]] = _GROUPINGS

    def __post_init__(self) -> None:
        """Refuses to mix toy runs with results."""
        if self.quick and _holds_results(self.out):
            refuse("out", "a folder outside of results/ for runs of toy size", f"{self.out}")
        check_integer("seeds", self.seeds, 1)
        if self.max_minutes is not None and self.max_minutes <= 0:
            refuse("max-minutes", "a number above 0", self.max_minutes)
        self._deadline = None if self.max_minutes is None else time.monotonic() + 60 * self.max_minutes

    @cached_property
    def evaluator(self) -> Evaluator:
        """One for all, so that data are made once."""
        return Evaluator(self.device)

    @classmethod
    def chosen(cls, names: Iterable[str], quick: bool = False) -> list[Training]:
        """The trainings behind some names of trainings or groups, each once, in the order of the list; all for none."""
        wanted: set[str] = set()
        for name in names:
            if name not in cls.trainings and name not in cls.groups:
                unknown("experiment", name, [*cls.trainings, *cls.groups])
            wanted |= set(cls.groups.get(name, (name,)))
        found = [training for name, training in cls.trainings.items() if name in wanted or not wanted]
        return [training.small() for training in found] if quick else found

    def do(self, trainings: Sequence[Training]) -> Path:
        """Trains and evaluates what is missing; what cannot be done does not hold up the others. Gives the page."""
        for training in trainings if self.settings else ():
            if wrong := wrong_settings(training, training.experiment(settings=self.settings)):
                raise NeuralEMError(f"--set changes what {training.name} is: {wrong}; training.epochs is free")
        if self.quick:  # says at once that whatever comes here is of toy size
            make(self.out)
            self._write_cells([])
        with ExitStack() as undo:
            if self.quick:  # what is so small is slower on more threads
                undo.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)
            for training in trainings:
                met = []
                for work in (self._train, self._evaluate):
                    try:
                        work(training)
                    except NeuralEMError as error:
                        met.append(str(error))
                        self.say(f"{training.name}: {error}")
                self.problems += [f"{training.name}: {'; '.join(met)}"] if met else []
                self._record(training)  # at once: a kill later on loses nothing
                if self.interrupted or self._left() == 0:
                    self.say("stopped; the same command goes on")
                    break
            return self.report()

    def report(self) -> Path:
        """Writes the page and the table behind it from what there is."""
        records = {training.name: self._record(training) for training in self.chosen((), self.quick)}
        records = {name: record for name, record in records.items() if record.runs}
        make(self.out)
        write_whole(self.out / self.page, self.written(records).encode(errors="backslashreplace"))
        return self.out / self.page

    def written(self, records: Mapping[str, TrainingRecord]) -> str:
        """The page's text; writes its pictures and the table behind it."""
        found = cells(records)
        self._write_cells(found)
        return render(found, records, self.runs, self.pictures(records))

    def pictures(self, records: Mapping[str, TrainingRecord]) -> dict[str, str]:
        """Draws what can be drawn, and tells each picture's path by its caption.

        Of runs those are drawn that were evaluated; an earlier picture of one that is no longer here stays.
        """
        made = {}
        for name, caption, figure in self.charts(records):
            save_figure(figure, self.out / FIGURES / f"{name}.png")
            made[caption] = f"{FIGURES}/{name}.png"
        for name, kind, training, evaluation, caption in self.groupings:
            path, (plan,) = self.out / FIGURES / f"{name}.png", self.chosen([training], self.quick)
            found = usable(plan, self.runs / training, unfinished=True)
            if found and evaluated(records, training, evaluation):
                try:
                    subject = Subject(self.evaluator, found[:1], plan.evaluations[evaluation])
                    save_figure(KINDS[kind](subject)[0].figure, path)
                except NeuralEMError as error:  # a picture is not worth losing the page
                    self.say(f"{path}: not drawn: {error}")
            if path.is_file():
                made[caption] = f"{FIGURES}/{name}.png"
        return made

    def charts(self, records: Mapping[str, TrainingRecord]) -> Iterator[tuple[str, str, Figure]]:
        """File, caption and figure of what is drawn from numbers alone."""
        errors: dict[tuple[str, int], list[float]] = {}
        for name in GROUPS["bce"]:
            objects, components = (TRAININGS[name].options[option] for option in ("objects", "components"))
            for scores in evaluated(records, name, "test"):
                if (error := mean_of(scores.last_step, "upper_bound")) is not None:
                    errors.setdefault((model_name(components), objects), []).append(error)
        if errors:
            caption = "Figure 5: error of next-step prediction, mean and deviation over runs, each run a dot"
            yield "bce", caption, bce_figure(errors)
        found = evaluated(records, "flying-mnist", "50 steps")
        curves = [scores.curves["ami_max"] for scores in found if "ami_max" in scores.curves]
        if curves:
            parts = ("mean", "lower_quartile", "upper_quartile")
            mean = (tuple(np.mean([np.array(getattr(each, part), float) for each in curves], axis=0)) for part in parts)
            text = "RNN-EM" if len(curves) == 1 else f"RNN-EM, mean of {len(curves)} runs"
            figure = score_curve({text: StepCurve(*mean)}, None if self.quick else _TRAINED)
            yield "curve", "Figure 6: AMI (max) per step on sequences of 50 steps, flying MNIST", figure

    def _write_cells(self, found: Sequence[Cell]) -> None:
        values = {"quick": self.quick, "cells": [cell.to_dict() for cell in found]}
        write_whole(self.out / CELLS, (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())

    def _record(self, training: Training) -> TrainingRecord:
        path = self.out / RECORDS / f"{training.name}.json"
        before = recorded.read_record(path, training)
        record = recorded.collect(training, self.runs / training.name, before)
        if record.runs and record != before:
            recorded.write_record(path, record)
        return record

    def _train(self, training: Training) -> None:
        """Trains the seeds that are not finished, all together."""
        experiment, folder = training.experiment(self.epochs, self.precision, self.settings), self.runs / training.name
        assert experiment.data.shape is not None  # the paper's data are generated
        experiment = experiment.for_frames(experiment.data.shape, PRESETS[experiment.name].model)  # as training does
        seeds = [folder / f"seed-{seed}" for seed in range(self.seeds)]
        if all(recorded.finished(path, experiment) for path in seeds):
            return
        self.say(f"{training.name}: training {self.seeds} seeds in {folder}")
        minutes = None if self._deadline is None else max(self._left(), 1e-3) / 60  # one step is always done
        if self.seeds == 1:  # in a sub-folder as well, so that more can join it
            RunFolder(folder, experiment, parts=True).close()
            folder = seeds[0]
        train(experiment, folder, self.seeds, self.device, minutes, callbacks=[self._see], quiet=self.quick)

    def _see(self, event: str, info: dict[str, Any]) -> None:
        """Notes that somebody asked to stop, also where another seed ends in an error."""
        self.interrupted |= event == "stop" and info["outcome"].stopped == INTERRUPTED

    def _evaluate(self, training: Training) -> None:
        """Evaluates the runs that were not evaluated since their weights last changed."""
        for name, evaluation in training.evaluations.items():
            for run in usable(training, self.runs / training.name, self.unfinished):
                if self.interrupted or self._left() == 0 or stored(run, evaluation) is not None:
                    continue
                result = self.evaluator.result(run, evaluation)
                assert run.folder is not None
                write_result(result, run.folder / EVALUATIONS, evaluation.name(run))
                score = result.last_step["ami_max"].mean
                self.say(f"{training.name}/{run.name}: {name}: AMI {MISSING if score is None else f'{score:.3f}'}")

    def _left(self) -> float:
        """Seconds left; infinite where nobody set an end."""
        return float("inf") if self._deadline is None else max(0.0, self._deadline - time.monotonic())


def _holds_results(folder: Path) -> bool:
    """Whether a folder, wherever it is, belongs to results that are not of toy size."""
    folder, results = Path(os.path.realpath(folder)), Path(os.path.realpath(RESULTS))  # even of link loops
    if folder == results or (folder.is_dir() and any(folder.iterdir()) and not _toy(folder)):
        return True
    return any(above == results or (above.name == results.name and not _toy(above)) for above in folder.parents)


def _toy(folder: Path) -> bool:
    return read_object(folder / CELLS).get("quick") is True
