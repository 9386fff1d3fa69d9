"""The folder of one run: its config, weights, checkpoints, metrics, log and summary.

A folder belongs to one config for good and to one process at a time.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import torch

from neural_em import config as configs
from neural_em.errors import NeuralEMError, refuse
from neural_em.files import write_whole
from neural_em.storage.folders import refuse_links
from neural_em.training import distributed
from neural_em.training.state import Row

CONFIG, METRICS, SUMMARY, LOG = "config.yaml", "metrics.csv", "summary.json", "log.txt"
ENVIRONMENT, CHECKPOINTS, BEST, LAST = "environment.json", "checkpoints", "best.safetensors", "last.safetensors"
BEST_OPTIMIZER = "best-optimizer.safetensors"  # of a stage whose optimizer is carried to the next one
_LOCK = ".lock"
FOLDERS = (CHECKPOINTS, "tensorboard", "evaluations", "figures")  # what is written into, beside the files above
# all of it, as patterns
_FILES = (CONFIG, METRICS, SUMMARY, LOG, ENVIRONMENT, BEST, LAST, BEST_OPTIMIZER, _LOCK)
WRITTEN = (*_FILES, *(f"{name}/*" for name in FOLDERS))
_PARTS = ("seed-", "stage-")  # sub-folders of a run that consists of runs

# what may differ between two starts of one run: it decides how long and how, never what is computed
_CHANGEABLE = ("epochs", "patience", "checkpoint_seconds", "shard_megabytes", "engine", "tensorboard")
CHANGEABLE = frozenset(f"training.{name}" for name in _CHANGEABLE)


class RunFolder:
    """An opened run folder; nobody else can open it until it is closed.

    Args:
        path: the folder; made where it does not exist.
        config: the whole config of the run, written into the folder.
        parts: whether the run consists of runs in sub-folders, one for each seed or stage.
    """

    def __init__(self, path: str | os.PathLike[str], config: Any, parts: bool = False) -> None:
        self.path = Path(path)
        self._lock: TextIO | None = None
        self._check_kind(parts)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        except OSError as error:
            raise NeuralEMError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        try:
            self._clear()
            if has_begun(self.path):
                compare(self.path, config)
            write_whole(self.path / CONFIG, configs.dump(config).encode())
        except NeuralEMError:
            self.close()
            raise

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / CHECKPOINTS

    def write_metrics(self, rows: Iterable[Row]) -> None:
        """All epochs as CSV."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(field.name for field in dataclasses.fields(Row))
        writer.writerows(["" if v is None else v for v in dataclasses.astuple(row)] for row in rows)
        write_whole(self.path / METRICS, text.getvalue().encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """How the run went and why it stopped."""
        write_whole(self.path / SUMMARY, json.dumps(summary, indent=2, allow_nan=False).encode())

    def add_environment(self, environment: Mapping[str, Any]) -> None:
        """Adds a start of the run: versions, commit, device, command."""
        path = self.path / ENVIRONMENT
        try:
            starts = json.loads(path.read_text(encoding="utf-8"))["starts"] if path.exists() else []
        except (OSError, ValueError, KeyError, TypeError):
            starts = []
        starts = [*starts, environment] if isinstance(starts, list) else [environment]
        write_whole(path, json.dumps({"starts": starts}, indent=2).encode())

    def log(self, line: str) -> None:
        """Adds a line to the log."""
        try:
            with open(self.path / LOG, "a", encoding="utf-8", opener=_no_link) as file:
                file.write(f"{datetime.now().isoformat(sep=' ', timespec='seconds')} {line}\n")
        except OSError as error:
            raise NeuralEMError(f"{self.path / LOG}: cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Lets others open the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check_kind(self, parts: bool) -> None:
        """Refuses a folder that is something else."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            refuse(f"{self.path}", "a folder", "a file")
        try:
            names = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
        except OSError as error:
            raise NeuralEMError(f"{self.path}: cannot be read: {error.strerror}") from None
        if not names:
            return
        refuse_links(self.path, (*FOLDERS, *(name for name in names if name.startswith(_PARTS))))
        if CONFIG not in names:
            refuse(f"{self.path}", f"a new folder or a run folder with its {CONFIG}", f"one that holds {names[0]}")
        has_parts = any(name.startswith(_PARTS) for name in names)
        if (CHECKPOINTS in names and parts) or (has_parts and not parts):
            kinds = ("a single run", "runs in sub-folders (several seeds or stages)")
            refuse(f"{self.path}", f"{kinds[parts]} or a new folder", kinds[not parts])

    def _clear(self) -> None:
        """Removes what killed processes left half-written; nobody else writes here while the folder is locked."""
        for path in self.path.glob(".*.partial*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def _take_lock(self) -> None:
        self._lock = open(  # noqa: SIM115 (open as long as the run)
            self.path / _LOCK, "a", encoding="utf-8", opener=_no_link
        )
        try:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            return
        except BlockingIOError:
            self.close()
            refuse(f"{self.path}", "a run folder that no other process uses", "one that is being trained in")


def open_in_first(
    path: str | os.PathLike[str], config: Any, device: torch.device, parts: bool = False
) -> RunFolder | None:
    """The folder, opened by the first process and None in the others; where that fails, it fails in all."""
    opened: list[RunFolder] = []
    distributed.from_first(lambda: opened.append(RunFolder(path, config, parts)), device)
    return opened[0] if opened else None


def has_begun(folder: Path) -> bool:
    """Whether there is a checkpoint, of the run or of one of its parts; else nothing can be lost."""
    patterns = (CHECKPOINTS, f"*/{CHECKPOINTS}", f"*/*/{CHECKPOINTS}")
    return (folder / CONFIG).exists() and any(any(folder.glob(f"{pattern}/step-*")) for pattern in patterns)


def compare(path: Path, config: Any) -> None:
    """Refuses a folder whose config is another one, naming every field that differs."""
    old, new = (_fields(each) for each in (configs.read(type(config), path / CONFIG), config))
    free = changeable(old)
    differing = [key for key in {**old, **new} if old.get(key) != new.get(key) and key not in free]
    if differing:
        expected = ", ".join(f"{key}={old.get(key)}" for key in differing)
        got = ", ".join(f"{key}={new.get(key)}" for key in differing)
        raise NeuralEMError(f"{path}: expected the config of this run ({expected}), got {got}; choose another --run")


def _fields(config: Any) -> dict[str, Any]:
    """By dotted names; of the stages what no stage may change, as the folder of each says itself what it may."""
    fields = dict(flat(configs.to_dict(config)))
    return {**fields, "stages": without(fields["stages"], CHANGEABLE)} if "stages" in fields else fields


def without(stages: Iterable[Iterable[str]], fields: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Stages, each a list of ``field=value``, without what they say of some fields."""
    left_out = frozenset(fields)
    return tuple(tuple(each for each in stage if field_of(each) not in left_out) for stage in stages)


def field_of(assignment: str) -> str:
    """The dotted name in ``name=value``."""
    return assignment.partition("=")[0].strip()


def changeable(fields: Mapping[str, Any]) -> frozenset[str]:
    """Which of a config's fields, by dotted names, may differ between two starts of one run."""
    if fields.get("training.schedule", "constant") == "constant":
        return CHANGEABLE
    return CHANGEABLE - {"training.epochs"}  # the learning rate of every step follows from how many there are


def _no_link(path: str, flags: int) -> int:
    """Opens a file that is no link: a stranger's run folder must not make us write to somewhere else."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested config as dotted names and values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
