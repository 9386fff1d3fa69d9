"""The paper's figures from the runs behind the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neural_em.errors import NeuralEMError
from neural_em.report.figures import save_figure
from neural_em.report.plots import StepCurve, score_curve
from neural_em.report.run_figures import KINDS, Subject, bce_bars, model_name
from neural_em.reproduce.plan import GROUPS, TRAININGS
from neural_em.reproduce.records import TrainingRecord, evaluated, mean_of, usable

if TYPE_CHECKING:
    from neural_em.reproduce.work import Reproduction

_TRAINED = 20  # steps of flying MNIST's training
# file, kind of figure, training, evaluation, caption
_GROUPINGS = (
    ("static-shapes", "static", "static-shapes", "test", "Figure 3, RNN-EM: groupings of static shapes, step by step"),
    ("static-shapes-nem", "static", "static-shapes-nem", "test", "Figure 3, N-EM: the same images"),
    ("flying-shapes", "sequence", "flying-shapes-5-5", "test", "Figure 4: a typical sequence of five shapes, K = 5"),
    ("flying-mnist", "sequence", "flying-mnist-staged", "three digits",
     "Figure 7: a typical sequence of three digits, by a model that was trained, stage-wise, on two"),
)  # fmt: skip


def draw_all(work: Reproduction, records: Mapping[str, TrainingRecord]) -> dict[str, str]:
    """Draws what can be drawn into ``figures`` in the page's folder; tells each picture's path there by its caption."""
    made = {
        caption: f"figures/{name}.png"
        for name, kind, training, evaluation, caption in _GROUPINGS
        if draw_run(work, records, name, kind, training, evaluation)
    }
    figures = work.out / "figures"
    if _bce(records, figures / "bce.png"):
        caption = "Figure 5: error of next-step prediction, mean and deviation over runs, each run a dot"
        made[caption] = "figures/bce.png"
    if _curve(records, figures / "curve.png", None if work.quick else _TRAINED):
        made["Figure 6: AMI (max) per step on sequences of 50 steps, flying MNIST"] = "figures/curve.png"
    return made


def draw_run(
    work: Reproduction, records: Mapping[str, TrainingRecord], name: str, kind: str, training: str, evaluation: str
) -> bool:
    """Draws the first run of a training that was evaluated; whether the picture, or an earlier one, is there."""
    path, (plan,) = work.out / "figures" / f"{name}.png", work.chosen([training], work.quick)
    found = usable(plan, work.runs / training, unfinished=True)
    if found and evaluated(records, training, evaluation):
        try:
            subject = Subject(work.evaluator, found[:1], plan.evaluations[evaluation])
            save_figure(KINDS[kind](subject)[0].figure, path)
        except NeuralEMError as error:  # a picture is not worth losing the page
            work.say(f"{path}: not drawn: {error}")
    return path.is_file()


def _bce(records: Mapping[str, TrainingRecord], path: Path) -> bool:
    found: dict[tuple[str, int], list[float]] = {}
    for name in GROUPS["bce"]:
        objects, components = (TRAININGS[name].options[option] for option in ("objects", "components"))
        for scores in evaluated(records, name, "test"):
            error = mean_of(scores.last_step, "upper_bound")
            if error is not None:
                found.setdefault((model_name(components), objects), []).append(error)
    if not found:
        return False
    save_figure(bce_bars(found), path)
    return True


def _curve(records: Mapping[str, TrainingRecord], path: Path, trained: int | None) -> bool:
    found = evaluated(records, "flying-mnist", "50 steps")
    curves = [scores.curves["ami_max"] for scores in found if "ami_max" in scores.curves]
    if not curves:
        return False
    parts = ("mean", "lower_quartile", "upper_quartile")
    mean = (tuple(np.mean([np.array(getattr(curve, part), float) for curve in curves], axis=0)) for part in parts)
    text = "RNN-EM" if len(curves) == 1 else f"RNN-EM, mean of {len(curves)} runs"
    save_figure(score_curve({text: StepCurve(*mean)}, trained), path)
    return True
