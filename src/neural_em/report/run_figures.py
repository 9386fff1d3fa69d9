"""The paper's figures from trained runs: groupings, sequences, scores per step, prediction errors, learning curves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from neural_em.errors import NeuralEMError, unknown
from neural_em.experiments.evaluation import Evaluation, Evaluator
from neural_em.report import figures
from neural_em.report.animation import save_animation
from neural_em.report.panels import SequenceReport
from neural_em.report.plots import bce_figure, learning_curves, score_curve
from neural_em.report.run_reports import choose, scores, sequences, trained_steps
from neural_em.runs.find import TrainedRun

LONG = 50  # steps of the paper's curve
MOST_COLUMNS = 25  # pictures side by side
BEFORE, AHEAD = 5, 10  # steps with input that a rollout shows, and usual steps without
IMAGES = 6  # of the paper's figure of static groupings
ANIMATIONS = ("gif", "mp4")
AUTOENCODER = "recurrent autoencoder"


@dataclass(frozen=True)
class Drawing:
    """A figure, what to call its file, and the sequence it shows, where it shows one."""

    name: str
    figure: Figure
    sequence: SequenceReport | None = None


@dataclass(frozen=True)
class Subject:
    """What figures are about."""

    evaluator: Evaluator  # has the device and the data
    runs: Sequence[TrainedRun]  # trained runs
    evaluation: Evaluation  # on what data they are shown
    picks: Sequence[str] = ()  # ``best``, ``typical``, ``worst`` or indices of sequences; empty: what suits the figure

    def chosen(self, run: TrainedRun, usual: Sequence[str]) -> dict[str, int]:
        """The sequences to show of a run."""
        picks = list(self.picks or usual)
        named = any(not str(pick).isdigit() for pick in picks)
        return choose(picks, [scores(self.evaluator, run, self.evaluation)] if named else [])

    def named(self, name: str, run: TrainedRun | None = None, label: str = "") -> str:
        """The file's name: what it shows, of which run if there are several, on which data if they are special."""
        parts = [name, label.replace("sequence ", "")]
        if run is not None:
            parts += [run.name.replace("/", "-")] if len(self.runs) > 1 else []
            special = replace(self.evaluation, size=None).name(run)
            parts += [special] if special != "test" else []
        return "-".join(part for part in parts if part)


def draw_usual(subject: Subject, animated: bool = False) -> list[Drawing]:
    """What to draw where nobody says it: images step by step, or a sequence over time, which alone can be animated."""
    kinds: dict[str, list[TrainedRun]] = {}
    for run in subject.runs:
        kinds.setdefault("static" if _shows_images(subject, run) and not animated else "sequence", []).append(run)
    return [drawing for kind, runs in kinds.items() for drawing in KINDS[kind](replace(subject, runs=runs))]


def _shows_images(subject: Subject, run: TrainedRun) -> bool:
    frames = subject.evaluation.data_config(run).frames
    if frames is None:  # a file's, which has to be looked at
        frames = subject.evaluator.dataset(run, replace(subject.evaluation, size=1)).shape[0]
    return subject.evaluation.static or frames == 1


def save(drawing: Drawing, folder: Path, animations: Sequence[str] = ()) -> list[Path]:
    """Writes a drawing as PNG and PDF, and its sequence as animations, into a folder."""
    kinds = (*figures.FORMATS, *(() if drawing.sequence is None else animations))
    return [save_as(drawing, folder / f"{drawing.name}.{kind}") for kind in kinds]


def save_as(drawing: Drawing, path: Path) -> Path:
    """Writes a drawing into one file, in the format that its name asks for."""
    kind = path.suffix.lower().lstrip(".")
    if kind in figures.FORMATS:
        return figures.save_figure(drawing.figure, path)
    if kind not in ANIMATIONS:
        unknown(f"{path}: format", kind, (*figures.FORMATS, *ANIMATIONS))
    if drawing.sequence is None:
        raise NeuralEMError(f"{path}: {drawing.name} shows no sequence; write it as {' or '.join(figures.FORMATS)}")
    return save_animation(drawing.sequence, path)


def _over_time(subject: Subject, name: str, shown: Subject) -> list[Drawing]:
    """A drawing of each sequence that is shown of each run: all its steps, or those without input and some before."""
    drawings = []
    for run in subject.runs:
        for report in sequences(subject.evaluator, run, shown.evaluation, shown.chosen(run, ("typical",))):
            last = report.rollout and name != "sequence"
            first = max(1, report.steps - report.rollout - BEFORE + 1) if last else 1
            steps = _whole(np.linspace(first, report.steps, min(MOST_COLUMNS, report.steps - first + 1)))
            figure = figures.sequence_figure(report, steps, kind=name)
            drawings.append(Drawing(subject.named(name, run, report.label), figure, report))
    return drawings


def _rollout(subject: Subject) -> list[Drawing]:
    ahead = replace(subject, evaluation=replace(subject.evaluation, rollout=subject.evaluation.rollout or AHEAD))
    return _over_time(subject, "rollout", ahead)


def _attention(subject: Subject) -> list[Drawing]:
    for run in subject.runs:
        model: Any = run.experiment.model
        relational = getattr(model, "m_step", "") == "relational" and model.attention
        if not relational or subject.evaluation.config(run).components == 1:
            raise NeuralEMError(
                f"{run.name}: attention is between two or more components of a model with model.m_step=relational and "
                "model.attention=true"
            )
    return _over_time(subject, "attention", subject)


def _static(subject: Subject) -> list[Drawing]:
    drawings = []
    for run in subject.runs:
        images = subject.evaluation.data_config(run).frames == 1
        still = replace(subject, evaluation=replace(subject.evaluation, static=not images))
        available = len(subject.evaluator.dataset(run, replace(still.evaluation, size=IMAGES)))
        chosen = still.chosen(run, [str(index) for index in range(available)])
        reports = sequences(subject.evaluator, run, still.evaluation, chosen)
        labels = [report.label.removeprefix("sequence ") for report in reports]
        scored = zip(labels, (report.score for report in reports), strict=True)
        names = [label if score is None else f"{label}: AMI {score:.2f}" for label, score in scored]
        count = reports[0].steps
        few = None if count <= 15 else _whole(np.geomspace(1, count, 12))  # the first steps change most
        drawings.append(Drawing(subject.named("static", run), figures.static_figure(reports, names, few)))
    return drawings


def _curve(subject: Subject) -> list[Drawing]:
    evaluation = subject.evaluation
    if evaluation.steps is None:
        evaluation = replace(evaluation, steps=LONG)
    curves = {}
    for run in subject.runs:
        result = scores(subject.evaluator, run, evaluation)
        if not result.has_groups:
            raise NeuralEMError(f"{run.name}: a curve of scores needs true groups; give them with --masks")
        curves[run.name] = result.curves["ami_max"]
    trained = {trained_steps(run) for run in subject.runs}
    return [Drawing(subject.named("curve"), score_curve(curves, trained.pop() if len(trained) == 1 else None))]


def _bce(subject: Subject) -> list[Drawing]:
    cells: dict[tuple[str, int], list[float]] = {}
    for run in subject.runs:
        objects = getattr(subject.evaluation.data_config(run), "objects", None)
        components = subject.evaluation.config(run).components
        if objects is None or run.experiment.model.distribution != "bernoulli":
            raise NeuralEMError(f"{run.name}: errors by number of objects are for runs on black-and-white shapes")
        result = scores(subject.evaluator, run, subject.evaluation)
        error = result.last_step["upper_bound"].mean
        if error is not None:
            cells.setdefault((model_name(components), objects), []).append(error)
    return [Drawing(subject.named("bce"), bce_figure(cells))]


def model_name(components: int) -> str:
    """What the paper calls the model with so many components."""
    return f"{AUTOENCODER} (K = 1)" if components == 1 else f"RNN-EM (K = {components})"


def _learning(subject: Subject) -> list[Drawing]:
    for run in subject.runs:
        if not run.metrics:
            raise NeuralEMError(f"{run.name}: learning curves need a run folder with metrics.csv")
    return [Drawing(subject.named("learning"), learning_curves({run.name: run.metrics for run in subject.runs}))]


def _whole(numbers: NDArray[np.float64]) -> list[int]:
    return [int(number) for number in np.unique(numbers.round())]


KINDS: dict[str, Callable[[Subject], list[Drawing]]] = {
    "sequence": lambda subject: _over_time(subject, "sequence", subject),
    "rollout": _rollout,
    "attention": _attention,
    "static": _static,
    "curve": _curve,
    "bce": _bce,
    "learning": _learning,
}
