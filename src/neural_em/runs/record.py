"""What a run folder says of the run, written and read with care: its outcome, its starts, and each epoch in numbers."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neural_em import config as configs
from neural_em.errors import NeuralEMError, refuse, show
from neural_em.files import read_json, told, write_table, write_whole
from neural_em.runs.folder import ENVIRONMENT, METRICS, SUMMARY, sub_folders
from neural_em.training.state import SETTLED, Progress, Row

_MAX_BYTES = 1 << 26  # of a file
_COLUMNS = [column.name for column in dataclasses.fields(Row)]
_NUMBERS = set(_COLUMNS) - {"binding", "best"}


@dataclass(frozen=True)
class Ended:
    """How the training of a run ended."""

    finished: bool = False  # whether nothing is left to do
    stopped: str | None = None  # why it stopped; None while it runs, or where it was killed
    problem: str | None = None  # what made it impossible to go on
    epochs: int | None = None  # how many it has done; None where nobody wrote it down
    best_epoch: int | None = None  # the one whose weights are the result
    seconds: float | None = None  # time spent, over all interruptions
    warnings: tuple[str, ...] = ()  # what a user should know before trusting the result

    @property
    def shortfall(self) -> str:
        """What to say of a run that is not finished; empty for one that is, or of which nothing is known."""
        if self.finished or self == type(self)():
            return ""
        return f"training is not finished: {self.stopped or 'still running, or killed'} after {self.epochs} epochs"


@dataclass(frozen=True)
class Record(Ended):
    """The outcome of a run, as ``summary.json`` holds it."""

    best: Row | None = None  # the best epoch in numbers
    last: Row | None = None  # the last one
    seconds_per_epoch: float | None = None  # on average
    # of the weight files, so that others put in their place are noticed
    sha256: dict[str, str] = field(default_factory=dict)
    stages: dict[str, Record] = field(default_factory=dict)  # the outcome of each stage, by the name of its folder
    seeds: int | None = None  # of a folder of several seeds, how many there are to be
    runs: dict[str, Record] = field(default_factory=dict)  # the outcome of each seed, by the name of its folder

    @classmethod
    def of(cls, progress: Progress, stopped: str | None, problem: str | None = None) -> Record:
        """The record of a run with this progress."""
        seconds, epochs = progress.seconds, progress.epoch
        return cls(
            stopped in SETTLED, stopped, problem, epochs, progress.best_epoch or None, round(seconds, 3),
            progress.warnings, progress.best_row, progress.rows[-1] if progress.rows else None,
            round(seconds / epochs, 3) if epochs else None,
        )  # fmt: skip

    @classmethod
    def read(cls, folder: Path) -> Record:
        """What a run folder says, as far as training can have written it; an empty record where it says nothing."""
        try:
            return configs.from_dict(cls, read_object(folder / SUMMARY), leave_out="unfit")
        except RecursionError:  # stages of stages of stages
            return cls()

    def write(self, folder: Path) -> None:
        """Writes it into the run folder."""
        write_whole(folder / SUMMARY, json.dumps(self.to_dict(), indent=2, allow_nan=False).encode())

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values; of parts that a run does not have, nothing."""
        parts = {name: runs for name, runs in (("stages", self.stages), ("runs", self.runs)) if runs}
        plain = {name: {each: part.to_dict() for each, part in runs.items()} for name, runs in parts.items()}
        if self.seeds is not None:
            return {"seeds": self.seeds, **plain}
        values = configs.to_dict(dataclasses.replace(self, stages={}, runs={}))
        return {**{name: value for name, value in values.items() if name != "seeds" and value != {}}, **plain}


@dataclass(frozen=True)
class Start:
    """What is told of one start of a run; see `neural_em.runs.environment`."""

    time: str | None = None
    neural_em: str | None = None
    commit: str | None = None
    device: str | None = None
    precision: str | None = None
    packages: dict[str, str] = field(default_factory=dict)


def read_starts(folder: Path) -> list[Start]:
    """Each start of a run, or of its last stage."""
    starts = read_object(folder / ENVIRONMENT).get("starts")
    if starts is None and (stages := sub_folders(folder, "stage-")):
        return read_starts(stages[-1])
    found = [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []
    return [configs.from_dict(Start, start, leave_out="unfit") for start in found]


def add_start(folder: Path, start: Mapping[str, Any]) -> None:
    """Adds a start of the run: versions, commit, device, command."""
    starts = read_object(folder / ENVIRONMENT).get("starts")
    starts = [*starts, start] if isinstance(starts, list) else [start]
    write_whole(folder / ENVIRONMENT, json.dumps({"starts": starts}, indent=2).encode())


def write_metrics(folder: Path, rows: Iterable[Row]) -> None:
    """All epochs as CSV."""
    write_table(folder / METRICS, _COLUMNS, map(dataclasses.astuple, rows))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of ``metrics.csv``, of all stages one after another; a damaged file is refused, a missing one empty."""
    rows: list[dict[str, Any]] = []
    for part in sub_folders(folder, "stage-") or [folder]:
        path = part / METRICS
        if path.is_file():
            before = int(rows[-1]["epoch"]) if rows else 0
            rows += [{**row, "epoch": row["epoch"] + before} for row in _read_table(path)]
    return rows


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; empty where there is none that can be read."""
    try:
        values = read_json(path, _MAX_BYTES)
    except NeuralEMError:
        return {}
    return values if isinstance(values, dict) else {}


def _read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of one file of metrics, each checked: a damaged one must not be drawn as if it were measured."""
    with told(path, "read"):
        if path.stat().st_size > _MAX_BYTES:
            refuse(f"{path}", f"at most {_MAX_BYTES} bytes", path.stat().st_size)
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, dict(row)) for row in reader]
    epoch = 0
    for line, row in rows:
        where = f"{path}: line {line}"
        if None in row or None in row.values():
            refuse(where, "as many cells as the first line has", "another number")
        for name, cell in row.items():
            if name in _NUMBERS and cell != "" and not _is_number(cell):
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
