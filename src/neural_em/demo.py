"""From nothing to objects found: a trained model on sequences it has never seen, as numbers, an animation and a page.

Where no trained model is shipped, a small one is trained first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from neural_em.data import DataConfig
from neural_em.evaluation.summary import TITLES
from neural_em.experiments import Experiment, train
from neural_em.experiments.evaluation import Evaluation, Evaluator
from neural_em.experiments.runs import TrainedRun, find_runs
from neural_em.model import ModelConfig, NoiseConfig
from neural_em.report.animation import save_animation
from neural_em.report.page import RunReport, flat, write_page
from neural_em.report.runs import run_reports, sequences
from neural_em.storage.folders import new_folder
from neural_em.storage.pretrained import models
from neural_em.training import TrainingConfig
from neural_em.training.run_folder import WRITTEN
from neural_em.training.stop import INTERRUPTED

PAGE, ANIMATION, RUN = "index.html", "demo.gif", "run"
SHIPPED = "flying-shapes"
SEQUENCES = 200
SHOWN = 3  # the first so many sequences, whatever came of them, beside the worst of all
MOST_MINUTES = 8.0

SMALL = Experiment(
    "small",
    ModelConfig(
        height=10, width=28, theta_size=128, convolutions=(), hidden=512, noise=NoiseConfig("bit-flips", 0.1)
    ),
    DataConfig("flying-shapes", objects=2, frames=13, height=10, width=28, train_size=4000, validation_size=200),
    TrainingConfig(batch_size=32, learning_rate=0.003, epochs=14, tensorboard=False),
)  # fmt: skip
"""What is trained where no model is shipped: two shapes in a narrow strip, small enough for a laptop."""


@dataclass(frozen=True)
class Demo:
    """What came of it.

    Attributes:
        model: which model it was.
        sequences: how many it grouped.
        ami: mean AMI at the last step, normalised by the larger entropy.
        page: the page to open.
        animation: a GIF of the first sequence.
    """

    model: str
    sequences: int
    ami: float
    page: Path
    animation: Path


def demo(
    out: str | os.PathLike[str] = "demo",
    device: str = "auto",
    say: Callable[[str], None] = print,
    small: Experiment = SMALL,
) -> Demo:
    """Groups freshly made sequences and writes what came of it.

    Args:
        out: the folder; one that holds an earlier demo and nothing else is replaced.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        say: called with a line about each thing that takes time.
        small: what to train where no model is shipped.
    """
    with new_folder(out, (PAGE, ANIMATION), [f"{RUN}/{name}" for name in WRITTEN]) as folder:
        run = _trained(folder, device, say, small)
        experiment = run.experiment
        say(f"grouping {SEQUENCES} {experiment.data.kind} sequences that {run.name} has never seen")
        report, score = _report(run, device)
        lead = f"{SEQUENCES} sequences that the model has never seen: AMI {score:.3f} at the last step."
        write_page(folder / PAGE, [report], title="nem demo", lead=lead)
        save_animation(report.sequences[0], folder / ANIMATION)
    return Demo(run.name, SEQUENCES, score, Path(out) / PAGE, Path(out) / ANIMATION)


def _report(run: TrainedRun, device: str) -> tuple[RunReport, float]:
    """What the page shows, and the mean AMI at the last step."""
    evaluator, evaluation = Evaluator(device), Evaluation(size=SEQUENCES)
    (report,) = run_reports(evaluator, [run], evaluation)
    first = sequences(evaluator, run, evaluation, {f"sequence {n + 1}": n for n in range(SHOWN)})
    worst = [sequence for sequence in report.sequences if sequence.label == "worst"]
    known = {name: value for name, value in flat(report.evaluation).items() if value is not None}
    score = float(report.curves[TITLES["ami_max"]].mean[-1])
    return replace(report, sequences=[*first, *worst], evaluation=known), score


def _trained(folder: Path, device: str, say: Callable[[str], None], small: Experiment) -> TrainedRun:
    """The shipped model, or a small one, trained into the folder."""
    if SHIPPED in [card.name for card in models()]:
        return find_runs([SHIPPED]).runs[0]
    say("no trained model is shipped with this version: training a small one, which takes some minutes")
    (outcome,) = train(small, folder / RUN, device=device, max_minutes=MOST_MINUTES)
    if outcome.stopped == INTERRUPTED:
        raise KeyboardInterrupt
    return find_runs([folder / RUN]).runs[0]
