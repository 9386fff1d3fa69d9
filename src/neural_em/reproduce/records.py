"""What is known of the runs behind the results: from the run folders, and from earlier records."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from neural_em import config as configs
from neural_em.errors import NeuralEMError, refuse
from neural_em.evaluation import Curve, Result, Summary
from neural_em.experiments.evaluation import INDIFFERENT, stored
from neural_em.files import make, write_whole
from neural_em.presets import Experiment
from neural_em.report.plots import StepCurve
from neural_em.reproduce.plan import Training
from neural_em.runs.find import TrainedRun, find_runs, read_experiment
from neural_em.runs.folder import CONFIG, sub_folders
from neural_em.runs.record import Ended, Record, Start, read_object, read_starts
from neural_em.training.config import CHANGEABLE

FORMAT = 1
CURVES, ROLLOUT_CURVES = ("ami_max", "upper_bound"), ("upper_bound", "repeated", "ari")
_FREE = CHANGEABLE | INDIFFERENT
_OF_A_START = ("device", "commit", "neural_em", "time", "precision")


@dataclass(frozen=True)
class Mean:
    """One score over all sequences."""

    mean: float | None
    quartiles: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Scores:
    """One evaluation of a run; its parts are those of `neural_em.evaluation.Result`."""

    last_step: dict[str, Mean]
    mean_over_steps: dict[str, Mean]
    whole_sequence: dict[str, Mean] = field(default_factory=dict)
    baselines: dict[str, dict[str, Mean]] = field(default_factory=dict)
    curves: dict[str, StepCurve] = field(default_factory=dict)
    options: str | None = None
    components: int | None = None
    sequences: int | None = None
    steps: int | None = None
    note: str | None = None
    unscored_sequences: int | None = None
    made: dict[str, float | str | None] = field(default_factory=dict)
    rollout: dict[str, StepCurve] = field(default_factory=dict)


@dataclass(frozen=True)
class SeedRecord(Ended):
    """How the training of one seed went, what it was made with, and its evaluations by name.

    Of the settings those stand here that are free in its training and not as its preset has them.
    """

    device: str | None = None
    commit: str | None = None
    neural_em: str | None = None
    time: str | None = None
    precision: str | None = None
    torch: str | None = None
    stage_epochs: tuple[int | None, ...] = ()
    evaluations: dict[str, Scores] = field(default_factory=dict)
    settings: dict[str, int | float | str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingRecord:
    """All seeds of a training, by number."""

    format: int
    training: str
    quick: bool
    runs: dict[str, SeedRecord]


def evaluated(records: Mapping[str, TrainingRecord], training: str, evaluation: str) -> list[Scores]:
    """One evaluation of all seeds of a training that have it."""
    runs = records[training].runs.values() if training in records else ()
    return [run.evaluations[evaluation] for run in runs if evaluation in run.evaluations]


def mean_of(scores: Mapping[str, Mean], name: str) -> float | None:
    """A score's mean, where it is there."""
    return scores[name].mean if name in scores else None


def collect(training: Training, folder: Path, before: TrainingRecord | None = None) -> TrainingRecord:
    """All that is known of a training: of each seed how it went, and its evaluations.

    Its run folder need not exist; seeds that are not there are kept as they are in an earlier record.
    """
    runs = dict(before.runs) if before is not None else {}
    for path in sub_folders(folder, "seed-"):
        if (path / CONFIG).is_file():
            runs[path.name.removeprefix("seed-")] = _run(training, path)
    runs = dict(sorted(runs.items(), key=lambda item: int(item[0])))
    return TrainingRecord(FORMAT, training.name, training.quick, runs)


def read_record(path: Path, training: Training) -> TrainingRecord | None:
    """An earlier record of a training; None where there is none."""
    if not path.is_file():
        return None
    values = read_object(path)
    if values.get("format") != FORMAT or values.get("training") != training.name:
        refuse(f"{path}", f"the record of {training.name} in format {FORMAT}", "another file")
    if values.get("quick") is not training.quick:
        refuse(f"{path}", "a record of runs of the same size", f"one with quick={values.get('quick')}")
    try:
        record = configs.from_dict(TrainingRecord, values, leave_out="unknown")
    except NeuralEMError as error:
        raise NeuralEMError(f"{path}: {error}") from None
    if not all(seed.isdecimal() for seed in record.runs):
        refuse(f"{path}", "the numbers of seeds as the names of its runs", ", ".join(record.runs))
    return record


def write_record(path: Path, record: TrainingRecord) -> None:
    """Writes a record, whole or not at all."""
    values = configs.to_dict(record)
    for run in values["runs"].values():
        rollouts = [(each, "rollout") for each in run["evaluations"].values()]
        for part, name in ((run, "stage_epochs"), (run, "settings"), *rollouts):
            if not part[name]:
                del part[name]
    make(path.parent)
    write_whole(path, f"{laid_out(values)}\n".encode())


def laid_out(value: Any, levels: int = 6, indent: str = "") -> str:
    """JSON with the outer levels on lines of their own and the inner ones on one line, to be read and compared."""
    if not isinstance(value, dict) or not value or levels == 0:
        return json.dumps(value, allow_nan=False)
    deeper = indent + " "
    lines = [f"{deeper}{json.dumps(name)}: {laid_out(part, levels - 1, deeper)}" for name, part in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def wrong_settings(training: Training, experiment: Experiment) -> str:
    """In what an experiment differs from what the training is; empty where it does not."""
    found, wanted = _fixed(training, experiment), _fixed(training, training.experiment())
    differing = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
    return ", ".join(f"{key}={found.get(key)} instead of {wanted.get(key)}" for key in differing)


def _fixed(training: Training, experiment: Experiment) -> dict[str, Any]:
    """The settings that make it this experiment, of its stages too."""
    free = _FREE | training.free
    settings = configs.flat(replace(experiment, stages=configs.without(experiment.stages, free)))
    return {key: value for key, value in settings.items() if key not in free}


def finished(path: Path, experiment: Experiment) -> bool:
    """Whether nothing is left to train in a seed's folder; one that met not-a-number is over too."""
    record = Record.read(path)
    if record.stopped == "epochs":
        return (record.epochs or 0) >= experiment.parts()[-1].training.epochs  # those of the last stage
    return record.finished or record.problem is not None


def usable(training: Training, folder: Path, unfinished: bool) -> list[TrainedRun]:
    """The seeds that can be evaluated: trained to their ends, or as far as they are."""
    runs = []
    for path in sub_folders(folder, "seed-"):
        if not unfinished and not Record.read(path).finished:
            continue
        try:
            if not wrong_settings(training, read_experiment(path)[0]):
                runs += find_runs([path]).runs
        except NeuralEMError:
            continue  # the record says why
    return runs


def _run(training: Training, path: Path) -> SeedRecord:
    record, start = Record.read(path), (read_starts(path) or [Start()])[-1]
    ended: dict[str, Any] = {each.name: getattr(record, each.name) for each in fields(Ended)}
    made = {name: getattr(start, name) for name in _OF_A_START}
    seed = SeedRecord(**ended, **made, torch=start.packages.get("torch"))
    if record.stages:
        stages = record.stages.values()
        seconds = round(sum(stage.seconds or 0 for stage in stages), 3)
        seed = replace(seed, seconds=seconds, stage_epochs=tuple(stage.epochs for stage in stages))
    try:
        experiment = read_experiment(path)[0]
        now, usual = configs.flat(experiment), configs.flat(training.experiment())
        chosen = {key: now[key] for key in sorted(training.free) if now.get(key) != usual.get(key)}
        seed = replace(seed, settings=chosen)
        wrong = wrong_settings(training, experiment)
        if wrong:
            return replace(seed, problem=f"not counted, other settings: {wrong}")
        if not seed.finished and seed.best_epoch is None:
            return seed  # stopped before there was anything to evaluate
        (run,) = find_runs([path]).runs
    except NeuralEMError as error:
        return replace(seed, problem=seed.problem or str(error))
    found = {name: (stored(run, each), each.options()) for name, each in training.evaluations.items()}
    scores = {name: _scores(result, options) for name, (result, options) in found.items() if result is not None}
    return replace(seed, evaluations=scores)


def _scores(result: Result, options: str) -> Scores:
    made = result.settings.get("made", {})
    return Scores(
        _means(result.last_step), _means(result.mean_over_steps), _means(result.whole_sequence),
        {name: _means(scores) for name, scores in result.baselines.items()},
        _curves(result.curves, CURVES),
        options, result.settings["components"], result.sequences, result.steps, result.note,
        result.unscored_sequences, {name: made.get(name) for name in ("time", "device", "commit", "seconds")},
        _curves(result.rollout, ROLLOUT_CURVES),
    )  # fmt: skip


def _curves(curves: Mapping[str, Curve], names: Iterable[str]) -> dict[str, StepCurve]:
    return {
        name: StepCurve(_rounded(curve.mean), _rounded(curve.lower_quartile), _rounded(curve.upper_quartile))
        for name, curve in curves.items()
        if name in names
    }


def _means(scores: Mapping[str, Summary]) -> dict[str, Mean]:
    parts = {name: _rounded((each.mean, each.lower_quartile, each.median, each.upper_quartile))
             for name, each in scores.items()}  # fmt: skip
    return {name: Mean(mean, tuple(quartiles)) for name, (mean, *quartiles) in parts.items()}


def _rounded(values: Iterable[float | None]) -> tuple[float | None, ...]:
    return tuple(None if value is None else float(f"{value:.6g}") for value in values)
