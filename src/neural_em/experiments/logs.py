"""What run folders say of themselves, read with care: a summary, the starts, and the metrics of each epoch."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from neural_em.errors import NeuralEMError, printable, refuse, show
from neural_em.training.run_folder import ENVIRONMENT, METRICS, SUMMARY
from neural_em.training.state import Row

_MAX_BYTES = 1 << 26  # of a file
_COLUMNS = {row.name for row in fields(Row)} - {"binding", "best"}  # of the metrics, those that hold numbers
# what a summary may hold under each name; anything else is left out
_KINDS: dict[str, type | tuple[type, ...]] = {
    "stopped": str, "finished": bool, "problem": str, "epochs": int, "best_epoch": int, "seconds": (int, float),
    "warnings": list, "stages": dict, "sha256": dict, "seeds": int,
}  # fmt: skip


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; empty where there is none that can be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return {}
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def read_summary(folder: Path) -> dict[str, Any]:
    """How training went: what ``summary.json`` says, as far as it can be what training wrote."""
    return _sound(read_object(folder / SUMMARY))


def environments(folder: Path) -> list[dict[str, Any]]:
    """Each start of a run, or of its last stage."""
    starts = read_object(folder / ENVIRONMENT).get("starts")
    if starts is None and (stages := sub_folders(folder, "stage-")):
        return environments(stages[-1])
    return [_start(start) for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of ``metrics.csv``, of all stages one after another; a damaged file is refused, a missing one empty."""
    rows: list[dict[str, Any]] = []
    for part in sub_folders(folder, "stage-") or [folder]:
        path = part / METRICS
        if path.is_file():
            before = int(rows[-1]["epoch"]) if rows else 0
            rows += [{**row, "epoch": row["epoch"] + before} for row in _read_table(path)]
    return rows


def sub_folders(folder: Path, prefix: str) -> list[Path]:
    """``seed-0``, ``seed-1``, ... or ``stage-1``, ... of a run, by number."""
    numbered = [(path.name.removeprefix(prefix), path) for path in folder.glob(f"{prefix}*") if path.is_dir()]
    return [path for _, path in sorted((int(number), path) for number, path in numbered if number.isdecimal())]


def _sound(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are of the kind they should be; others unknown here are kept."""
    kept: dict[str, Any] = {
        name: value for name, value in summary.items() if isinstance(value, _KINDS.get(name, object))
    }
    if "warnings" in kept:
        kept["warnings"] = [printable(text) for text in kept["warnings"] if isinstance(text, str)]
    if "stages" in kept:
        kept["stages"] = {str(k): _sound(stage) for k, stage in kept["stages"].items() if isinstance(stage, dict)}
    return {name: printable(value) if isinstance(value, str) else value for name, value in kept.items()}


def _start(values: Mapping[str, Any]) -> dict[str, Any]:
    """One start: its texts, and the versions of its packages."""
    packages = values.get("packages")
    versions = packages.items() if isinstance(packages, dict) else ()
    texts = {name: printable(value) for name, value in values.items() if isinstance(value, str)}
    return {**texts, "packages": {name: printable(value) for name, value in versions if isinstance(value, str)}}


def _read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of one file of metrics, each checked: a damaged one must not be drawn as if it were measured."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            refuse(f"{path}", f"at most {_MAX_BYTES} bytes", path.stat().st_size)
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, dict(row)) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise NeuralEMError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    epoch = 0
    for line, row in rows:
        where = f"{path}: line {line}"
        if None in row or None in row.values():
            refuse(where, "as many cells as the first line has", "others")
        for name, cell in row.items():
            if name in _COLUMNS and cell != "" and not _is_number(cell):
                refuse(f"{where}: {name}", "a finite number", show(cell))
        text = row.get("epoch", "")
        if not (text.isdecimal() and len(text) < 10 and epoch < int(text)):
            refuse(f"{where}: epoch", f"an integer above {epoch}", show(text))
        epoch = row["epoch"] = int(text)
    return [row for _, row in rows]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
