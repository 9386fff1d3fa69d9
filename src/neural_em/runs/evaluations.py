"""Results of evaluations: written as files, and found again in a run's folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from neural_em import config as configs
from neural_em.data import DataConfig
from neural_em.errors import NeuralEMError
from neural_em.evaluation.results import COLUMNS, Result, read_json, write_json
from neural_em.evaluation.summary import Aggregate
from neural_em.files import make, write_table, write_whole

EVALUATIONS = "evaluations"  # sub-folder of a run folder


def read_result(path: Path, settings: Mapping[str, Any]) -> Result | None:
    """A result that was made before with these settings; None where there is none."""
    try:
        result = read_json(path) if path.is_file() else None
    except NeuralEMError:
        return None
    if result is None:
        return None
    found = {"rollout": 0, "clean": False, **result.settings, "data": _filled(result.settings.get("data"))}
    return result if all(found.get(name) == value for name, value in settings.items()) else None


def _filled(data: Any) -> Any:
    """The data's settings with the defaults of fields that are newer than the file; None where they are none."""
    try:
        return json.loads(json.dumps(configs.to_dict(configs.from_dict(DataConfig, data))))
    except NeuralEMError:
        return None


def write_result(result: Result, folder: Path, name: str) -> Path:
    """Writes a result as JSON, its summaries and curves as CSV, and its single sequences as CSV."""
    make(folder)
    write_json(result, folder / f"{name}.json")
    write_table(folder / f"{name}.csv", COLUMNS, result.rows())
    sequences = zip(range(result.sequences), *result.per_sequence.values(), strict=True)
    write_table(folder / f"{name}-sequences.csv", ("index", *result.per_sequence), sequences)
    return folder / f"{name}.json"


def write_aggregate(aggregate: Aggregate, runs: Sequence[str], folder: Path, name: str) -> Path:
    """Writes mean and deviation over runs as JSON and as CSV."""
    make(folder)
    values = {"of": list(runs), **asdict(aggregate)}
    write_whole(folder / f"{name}.json", (json.dumps(values, indent=1, allow_nan=False) + "\n").encode())
    rows = [
        (section, score, step, *astuple(value))
        for section, curves in (("step", aggregate.curves), ("rollout", aggregate.rollout))
        for score, curve in curves.items()
        for step, value in enumerate(curve, start=1)
    ]
    for section, scores in aggregate.sections.items():
        rows += [(section, score, None, *astuple(value)) for score, value in scores.items()]
    write_table(folder / f"{name}.csv", ("section", "score", "step", "mean", "deviation", "runs"), rows)
    return folder / f"{name}.json"
