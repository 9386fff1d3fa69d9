"""Results of evaluations: written as files, and found again in a run's folder."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from neural_em import config as configs
from neural_em.data import DataConfig
from neural_em.errors import NeuralEMError
from neural_em.evaluation import Aggregate, Result, read_json, write_csv, write_json, write_sequences_csv
from neural_em.experiments.evaluation import Evaluation, identity, noted
from neural_em.experiments.runs import TrainedRun
from neural_em.files import write_whole

EVALUATIONS = "evaluations"  # sub-folder of a run folder


def stored_path(run: TrainedRun, evaluation: Evaluation) -> Path | None:
    """Where a run keeps the evaluation; None for one without a folder."""
    return None if run.folder is None else run.folder / EVALUATIONS / f"{evaluation.name(run)}.json"


def stored(run: TrainedRun, evaluation: Evaluation) -> Result | None:
    """An evaluation that was made before, of the very same weights in the very same way."""
    path = stored_path(run, evaluation)
    if path is None or not path.is_file():
        return None
    try:
        result = read_json(path)
    except NeuralEMError:
        return None
    wanted = {**asdict(evaluation.config(run)), **identity(run, evaluation)}
    del wanted["batch_size"]
    found = {"rollout": 0, **result.settings, "data": _filled(result.settings.get("data"))}
    same = all(found.get(name) == value for name, value in wanted.items())
    return noted(run, result) if same else None


def _filled(data: Any) -> Any:
    """The data's settings with the defaults of fields that are newer than the file; None where they are none."""
    try:
        return json.loads(json.dumps(configs.to_dict(configs.from_dict(DataConfig, data))))
    except NeuralEMError:
        return None


def write_result(result: Result, folder: Path, name: str) -> Path:
    """Writes a result as JSON, its summaries and curves as CSV, and its single sequences as CSV."""
    make_folder(folder)
    write_json(result, folder / f"{name}.json")
    write_csv(result, folder / f"{name}.csv")
    write_sequences_csv(result, folder / f"{name}-sequences.csv")
    return folder / f"{name}.json"


def write_aggregate(aggregate: Aggregate, runs: Sequence[str], folder: Path, name: str) -> Path:
    """Writes mean and deviation over runs as JSON and as CSV."""
    make_folder(folder)
    values = {"of": list(runs), **asdict(aggregate)}
    write_whole(folder / f"{name}.json", (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("section", "score", "step", "mean", "deviation", "runs"))
    for section, curves in (("step", aggregate.curves), ("rollout", aggregate.rollout)):
        for score, curve in curves.items():
            writer.writerows((section, score, step, *astuple(value)) for step, value in enumerate(curve, start=1))
    for section, scores in aggregate.sections.items():
        writer.writerows((section, score, None, *astuple(value)) for score, value in scores.items())
    write_whole(folder / f"{name}.csv", text.getvalue().encode())
    return folder / f"{name}.json"


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, where it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NeuralEMError(f"{folder}: cannot be written: {error.strerror or error}") from None
