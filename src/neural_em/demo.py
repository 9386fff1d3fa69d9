"""Objects found: a trained model on sequences it has never seen, as numbers, an animation and a page."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from neural_em import config as configs
from neural_em.evaluation.summary import TITLES
from neural_em.experiments.evaluation import Evaluation, Evaluator
from neural_em.report.animation import save_animation
from neural_em.report.page import RunReport, write_page
from neural_em.report.run_reports import run_reports, sequences
from neural_em.runs.find import TrainedRun, find_runs
from neural_em.storage.folders import new_folder

PAGE, ANIMATION = "index.html", "demo.gif"
MODEL = "flying-shapes"  # which is shipped
SEQUENCES = 200
SHOWN = 3  # the first so many sequences, whatever came of them, beside the worst of all
ROLLOUT = 10  # steps that the model goes on without input
ABOUT = """\
Neural EM finds objects without labels: copies of one small network, its components, compete for the pixels, and each \
pixel goes to the component that predicts it best. The input has noise on purpose; beside it is what really happened.
Adjusted mutual information (AMI) says how well that grouping agrees with the true one: 1 is perfect, 0 is chance.
{sequences} sequences that the model has never seen: AMI {ami:.3f} after the last of {steps} steps with input. It then \
goes on for {rollout} steps without looking.
"""


@dataclass(frozen=True)
class Demo:
    """What came of it."""

    model: str  # which model it was
    sequences: int  # how many it grouped
    ami: float  # mean AMI at the last step, normalised by the larger entropy
    page: Path  # the page to open
    animation: Path  # a GIF of the first sequence


def demo(out: str | os.PathLike[str] = "demo", device: str = "auto", say: Callable[[str], None] = print) -> Demo:
    """Groups freshly made sequences and writes what came of it, as a page and an animation.

    A folder ``out`` that holds an earlier demo and nothing else is replaced; ``say`` is told what takes time.
    """
    with new_folder(out, (PAGE, ANIMATION)) as folder:
        (run,) = find_runs([MODEL]).runs
        say(f"grouping {SEQUENCES} {run.experiment.data.kind} sequences that {run.name} has never seen")
        report, score = _report(run, device)
        steps = report.sequences[0].steps - ROLLOUT
        lead = ABOUT.format(sequences=SEQUENCES, ami=score, steps=steps, rollout=ROLLOUT)
        write_page(folder / PAGE, [report], title="Objects found by nem", lead=lead, plays=True)
        save_animation(report.sequences[0], folder / ANIMATION)
    return Demo(run.name, SEQUENCES, score, Path(out) / PAGE, Path(out) / ANIMATION)


def _report(run: TrainedRun, device: str) -> tuple[RunReport, float]:
    """What the page shows, and the mean AMI at the last step."""
    evaluator, evaluation = Evaluator(device), Evaluation(size=SEQUENCES, rollout=ROLLOUT)
    (report,) = run_reports(evaluator, [run], evaluation)
    first = sequences(evaluator, run, evaluation, {f"sequence {n + 1}": n for n in range(SHOWN)})
    worst = [sequence for sequence in report.sequences if sequence.label == "worst"]
    known = {name: value for name, value in configs.flat(report.evaluation).items() if value is not None}
    score = report.curves[TITLES["ami_max"]].mean[-1]
    assert score is not None  # shapes are scored
    return replace(report, sequences=[*first, *worst], evaluation=known), score
