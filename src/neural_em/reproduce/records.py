"""What is known of the runs behind the results, as plain data: from the run folders, and from earlier records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from neural_em import config as configs
from neural_em.errors import NeuralEMError, refuse
from neural_em.evaluation import Result, Summary
from neural_em.experiments.config import Experiment
from neural_em.experiments.evaluation import INDIFFERENT, Evaluation
from neural_em.experiments.logs import environments, read_object, read_summary, sub_folders
from neural_em.experiments.results import make_folder, stored
from neural_em.experiments.runs import TrainedRun, find_runs, read_experiment
from neural_em.files import write_whole
from neural_em.reproduce.plan import Training
from neural_em.reproduce.sound import is_sound_run
from neural_em.training.run_folder import CHANGEABLE, CONFIG, flat, without

FORMAT = 1
CURVES = ("ami_max", "upper_bound")
_FREE = CHANGEABLE | INDIFFERENT
Record = dict[str, Any]


def collect(training: Training, folder: Path, before: Record | None = None) -> Record:
    """All that is known of a training: of each seed how it went, and its evaluations.

    Args:
        training: which one.
        folder: its run folder; it need not exist.
        before: an earlier record; seeds without a run folder are kept as they are there.
    """
    runs = dict((before or {}).get("runs", {}))
    for path in sub_folders(folder, "seed-"):
        if (path / CONFIG).is_file():
            runs[path.name.removeprefix("seed-")] = _run(training, path)
    return {"format": FORMAT, "training": training.name, "quick": training.quick,
            "runs": dict(sorted(runs.items(), key=lambda item: int(item[0])))}  # fmt: skip


def read_record(path: Path, training: Training) -> Record | None:
    """An earlier record of a training; None where there is none."""
    if not path.is_file():
        return None
    record = read_object(path)
    if record.get("format") != FORMAT or record.get("training") != training.name:
        refuse(f"{path}", f"the record of {training.name} in format {FORMAT}", "something else")
    if record.get("quick") is not training.quick:
        refuse(f"{path}", "a record of runs of the same size", f"one with quick={record.get('quick')}")
    runs = record.get("runs")
    if not isinstance(runs, dict) or not all(seed.isdecimal() and is_sound_run(run) for seed, run in runs.items()):
        refuse(f"{path}", "runs with their evaluations, by seed", "something else")
    return record


def write_record(path: Path, record: Record) -> None:
    """Writes a record, whole or not at all."""
    make_folder(path.parent)
    write_whole(path, f"{laid_out(record)}\n".encode())


def laid_out(value: Any, levels: int = 6, indent: str = "") -> str:
    """JSON with the outer levels on lines of their own and the inner ones on one line, to be read and compared."""
    if not isinstance(value, dict) or not value or levels == 0:
        return json.dumps(value, allow_nan=False)
    deeper = indent + " "
    lines = [f"{deeper}{json.dumps(name)}: {laid_out(part, levels - 1, deeper)}" for name, part in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def wrong_settings(training: Training, path: Path) -> str:
    """In what a run differs from what the paper's experiment is; empty where it does not."""
    found, wanted = _fixed(read_experiment(path)[0]), _fixed(training.experiment())
    differing = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
    return ", ".join(f"{key}={found.get(key)} instead of {wanted.get(key)}" for key in differing)


def _fixed(experiment: Experiment) -> dict[str, Any]:
    """The settings that make it this experiment, of its stages too."""
    settings = flat(configs.to_dict(replace(experiment, stages=without(experiment.stages, _FREE))))
    return {key: value for key, value in settings if key not in _FREE}


def finished(path: Path, experiment: Experiment) -> bool:
    """Whether nothing is left to train in a seed's folder; one that met not-a-number is over too."""
    summary = read_summary(path)
    if summary.get("stopped") == "epochs":
        epochs = summary.get("epochs")
        return isinstance(epochs, int) and epochs >= experiment.parts()[-1].training.epochs  # those of the last stage
    return summary.get("finished") is True or summary.get("problem") is not None


def usable(training: Training, folder: Path, unfinished: bool) -> list[TrainedRun]:
    """The seeds that can be evaluated: trained to their ends, or as far as they are."""
    runs = []
    for path in sub_folders(folder, "seed-"):
        if not unfinished and read_summary(path).get("finished") is not True:
            continue
        try:
            if not wrong_settings(training, path):
                runs += find_runs([path]).runs
        except NeuralEMError:
            continue  # the record says why
    return runs


def _run(training: Training, path: Path) -> Record:
    """One seed."""
    summary = read_summary(path)
    start = (environments(path) or [{}])[-1]
    record: Record = {
        "finished": summary.get("finished") is True,
        "stopped": summary.get("stopped"),
        "problem": summary.get("problem"),
        **{name: summary.get(name) for name in ("epochs", "best_epoch", "seconds")},
        "warnings": summary.get("warnings", []),
        **{name: start.get(name) for name in ("device", "commit", "neural_em", "time", "precision")},
        "torch": start.get("packages", {}).get("torch"),
        "evaluations": {},
    }
    if isinstance(summary.get("stages"), dict):
        stages = summary["stages"].values()
        record["stage_epochs"] = [stage.get("epochs") for stage in stages]
        record["seconds"] = round(sum(stage.get("seconds") or 0 for stage in stages), 3)
    try:
        wrong = wrong_settings(training, path)
        if wrong:
            return {**record, "problem": f"not counted, other settings: {wrong}"}
        if not record["finished"] and record["best_epoch"] is None:
            return record  # stopped before there was anything to evaluate
        (run,) = find_runs([path]).runs
    except NeuralEMError as error:
        return {**record, "problem": record["problem"] or str(error)}
    for name, evaluation in training.evaluations.items():
        result = stored(run, evaluation)
        if result is not None:
            record["evaluations"][name] = _evaluation(result, evaluation)
    return record


def _evaluation(result: Result, evaluation: Evaluation) -> Record:
    made = result.settings.get("made", {})
    return {
        "options": evaluation.options(),
        "components": result.settings["components"],
        "sequences": result.sequences,
        "steps": result.steps,
        "note": result.note,
        "unscored_sequences": result.unscored_sequences,
        "last_step": _summaries(result.last_step),
        "mean_over_steps": _summaries(result.mean_over_steps),
        "whole_sequence": _summaries(result.whole_sequence),
        "baselines": {name: _summaries(scores) for name, scores in result.baselines.items()},
        "curves": {
            name: {
                "mean": _rounded(curve.mean),
                "lower_quartile": _rounded(curve.lower_quartile),
                "upper_quartile": _rounded(curve.upper_quartile),
            }
            for name, curve in result.curves.items()
            if name in CURVES
        },
        "made": {name: made.get(name) for name in ("time", "device", "commit", "seconds")},
    }


def _summaries(scores: Mapping[str, Summary]) -> Record:
    return {
        name: {
            "mean": _round(summary.mean),
            "quartiles": _rounded((summary.lower_quartile, summary.median, summary.upper_quartile)),
        }
        for name, summary in scores.items()
    }


def _rounded(values: tuple[float | None, ...]) -> list[float | None]:
    return [_round(value) for value in values]


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
