"""What trained runs made of their data, ready to be drawn: scores, single sequences, and whole reports."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neural_em import config as configs
from neural_em.errors import refuse, unknown
from neural_em.evaluation import Result, Summary, adjusted_mutual_info
from neural_em.evaluation.evaluate import start_keys, steps_with_input
from neural_em.evaluation.summary import ROLLOUT_TITLES, TITLES
from neural_em.experiments.evaluation import Evaluation, Evaluator, stored
from neural_em.model import Model
from neural_em.model.inference import infer, next_groups, stacked
from neural_em.report.page import RunReport
from neural_em.report.panels import SequenceReport
from neural_em.report.tables import short_commit
from neural_em.runs.evaluations import EVALUATIONS, write_result
from neural_em.runs.find import TrainedRun
from neural_em.training import device as devices

ENOUGH = 500  # sequences to score for a picture, where nobody scored more before
EXAMPLES = ("best", "typical", "worst")
CURVES = ("ami_max", "ari", "upper_bound")


def scores(evaluator: Evaluator, run: TrainedRun, evaluation: Evaluation) -> Result:
    """The run's scores: of an earlier evaluation of the whole split, or of enough sequences, kept for next time.

    The evaluation's own size is taken where it has one.
    """
    found = stored(run, evaluation)
    if found is None and evaluation.size is None and _most(run, evaluation) > ENOUGH:
        evaluation = replace(evaluation, size=ENOUGH)
        found = stored(run, evaluation)
    if found is not None:
        return found
    result = evaluator.result(run, evaluation)
    if run.folder is not None:
        write_result(result, run.folder / EVALUATIONS, evaluation.name(run))
    return result


def choose(picks: Sequence[str | int], results: Sequence[Result]) -> dict[str, int]:
    """Sequences by what to call them: ``best``, ``typical`` and ``worst`` on average over the results, or an index."""
    chosen = {}
    for pick in picks:
        text = str(pick)
        if text.isdigit():
            chosen[f"sequence {text}"] = int(text)
        elif text in EXAMPLES:
            chosen[text] = _average(results).examples()[text]
        else:
            unknown("pick", text, (*EXAMPLES, "an index"))
    return chosen


def sequences(
    evaluator: Evaluator, run: TrainedRun, evaluation: Evaluation, chosen: Mapping[str, int]
) -> list[SequenceReport]:
    """What the model makes of sequences, given by label and index, from the very start that an evaluation scores."""
    last, most = max(chosen.values()), _most(run, evaluation)
    if last < most:
        evaluation = replace(evaluation, size=last + 1)  # no more than has to be made
    data, model, config = evaluator.dataset(run, evaluation), evaluator.model(run), evaluation.config(run)
    if last >= len(data):
        refuse("pick", f"a sequence from 0 to {min(most, len(data)) - 1}", last)
    indices = torch.tensor(list(chosen.values()))
    batch = data.batch(indices)
    weight, steps = next(model.parameters()), steps_with_input(model, data, config)
    seen = slice(1 if config.static else None)
    keys = start_keys(config.seed, 0, indices, weight.device)
    with devices.products(devices.of_evaluation(run.experiment.training.precision), evaluator.device):
        frames = batch.frames[seen].to(weight)
        found = infer(
            model, frames, config.components, keys, steps, config.rollout, noise=not config.clean, check=False
        )
        parts = stacked(
            (s.x_next, s.state.gamma[:, :, 0], s.state.psi, s.x_noisy, s.state.theta)
            for s in found
            if s.x_next is not None
        )
        parts[-1] = _attention(model, parts[-1])
    groups = None if batch.groups is None else next_groups(batch.groups[seen], steps + config.rollout)
    return [
        _report(label, [part[:, n] for part in parts], None if groups is None else groups[:, n], config.rollout)
        for n, label in enumerate(chosen)
    ]


@torch.no_grad()
def _attention(model: Model, theta: Tensor) -> Tensor:
    """How much components heeded each other (T,B,K,K) in steps that gave theta (T,B,K,M); empty where they cannot.

    A step reads the theta of the one before it; the first one starts from zero.
    """
    attention = getattr(getattr(model, "m_step", None), "attention", None)
    if attention is None or not getattr(model.config, "attention", False) or theta.shape[2] == 1:
        return theta[..., :0]
    return torch.stack([attention(each) for each in (torch.zeros_like(theta[0]), *theta[:-1])])


def run_reports(evaluator: Evaluator, runs: Sequence[TrainedRun], evaluation: Evaluation) -> list[RunReport]:
    """What a page shows of each run; runs on the same data show the same sequences, side by side."""
    results = [scores(evaluator, run, evaluation) for run in runs]
    shared = len({evaluation.data_config(run) for run in runs}) == 1 and len({r.sequences for r in results}) == 1
    reports = []
    for run, result in zip(runs, results, strict=True):
        chosen = choose(EXAMPLES, results if shared else [result])
        curves = {TITLES[name]: result.curves[name] for name in CURVES if name in result.curves}
        rollout = {title: result.rollout[name] for name, title in ROLLOUT_TITLES.items() if name in result.rollout}
        reports.append(RunReport(
            run.name, configs.to_dict(run.experiment), run.metrics, _numbers(run, result), curves,
            sequences(evaluator, run, evaluation, chosen), trained_steps(run), rollout,
        ))  # fmt: skip
    return reports


def trained_steps(run: TrainedRun) -> int | None:
    """How many EM steps the model was trained for, where that is known."""
    experiment, frames = run.experiment, run.experiment.data.frames
    if not run.data_known or experiment.training.steps:
        return experiment.training.steps if run.data_known else None
    return experiment.model.steps if frames == 1 else frames and frames - 1


def _most(run: TrainedRun, evaluation: Evaluation) -> int:
    """Sequences that there are at most; a file may have fewer."""
    split: Any = evaluation.split
    return evaluation.size or evaluation.data_config(run).size(split)


def _average(results: Sequence[Result]) -> Result:
    """The first result with every sequence's values averaged over all of them."""
    first = results[0]
    if len(results) == 1:
        return first
    values = {}
    for name in first.per_sequence:
        means = np.mean([np.array(result.per_sequence[name], np.float64) for result in results], axis=0)
        values[name] = tuple(None if np.isnan(mean) else float(mean) for mean in means)
    return replace(first, per_sequence=values)


def _report(label: str, parts: Sequence[Tensor], groups: Any, rollout: int) -> SequenceReport:
    score, (x, gamma, psi, x_noisy, attention) = None, (part.float().cpu() for part in parts)
    last = len(x) - 1 - rollout  # the last step with input
    if groups is not None:
        groups = groups.cpu()
        value = float(adjusted_mutual_info(groups[last, None], gamma[last, None].argmax(dim=1)))
        score = value if np.isfinite(value) else None
        groups = groups.numpy()
    name = f"AMI (max), step {last + 1}" if rollout else "AMI (max), last step"
    frames, gammas, psis = x.numpy(), gamma.numpy(), psi.numpy()
    return SequenceReport(
        label, frames, gammas, psis, groups, score, name, rollout, x_noisy.numpy() if rollout else None,
        attention.numpy() if attention.numel() else None,
    )  # fmt: skip


def _numbers(run: TrainedRun, result: Result) -> dict[str, Any]:
    """The scores that matter and how the run came about, as single values."""
    record, start = run.record, run.start
    numbers: dict[str, Any] = {
        "evaluated": {
            "sequences": result.sequences, "steps": result.steps, "components": result.settings["components"]
        },
        "last step": _means(result.last_step),
        "mean over steps": _means(result.mean_over_steps, ("ami_max", "ari")),
        "whole sequence": _means(result.whole_sequence, ("ami_max", "iou")),
        f"after {result.rollout_steps} steps without input": {
            title: result.rollout[name].mean[-1] for name, title in ROLLOUT_TITLES.items() if name in result.rollout
        },
        **{f"{name}, no learning": _means(table, ("ami_max", "ari")) for name, table in result.baselines.items()},
        "training": {
            **{name: getattr(record, name) for name in ("epochs", "best_epoch", "stopped", "seconds")},
            "device": start.device, "commit": short_commit(start.commit),
        },
    }  # fmt: skip
    return {**numbers, "note": result.note} if result.note else numbers


def _means(table: Mapping[str, Summary], names: Sequence[str] = tuple(TITLES)) -> dict[str, float | None]:
    return {TITLES[name].strip(): table[name].mean for name in names if name in table}
