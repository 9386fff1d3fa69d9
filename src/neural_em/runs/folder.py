"""The folder of one run: its config, weights, checkpoints, metrics, log and summary.

A folder belongs to one config for good and to one process at a time.
"""

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import torch

from neural_em import config as configs
from neural_em.errors import NeuralEMError, refuse
from neural_em.files import told, write_whole
from neural_em.storage.folders import refuse_links
from neural_em.training import distributed
from neural_em.training.config import CHANGEABLE

CONFIG, METRICS, SUMMARY, LOG = "config.yaml", "metrics.csv", "summary.json", "log.txt"
ENVIRONMENT, CHECKPOINTS, BEST, LAST = "environment.json", "checkpoints", "best.safetensors", "last.safetensors"
BEST_OPTIMIZER = "best-optimizer.safetensors"  # of a stage whose optimizer is carried to the next one
_LOCK = ".lock"
FOLDERS = (CHECKPOINTS, "tensorboard", "evaluations", "figures")  # what is written into, beside the files above
_PARTS = ("seed-", "stage-")  # sub-folders of a run that consists of runs


class RunFolder:
    """An opened run folder, made where there is none; nobody else can open it until it is closed.

    The whole config is written into it. ``parts``: the run consists of runs in sub-folders, one for each seed or stage.
    """

    def __init__(self, path: str | os.PathLike[str], config: Any, parts: bool = False) -> None:
        self.path = Path(path)
        self._lock: TextIO | None = None
        self._check_kind(parts)
        with told(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        try:
            for left in self.path.glob(".*.partial*"):  # by killed processes: nobody else writes while it is locked
                with contextlib.suppress(OSError):
                    left.unlink()
            if has_begun(self.path):
                compare(self.path, config)
            write_whole(self.path / CONFIG, configs.dump(config).encode())
        except NeuralEMError:
            self.close()
            raise

    def log(self, line: str) -> None:
        """Adds a line to the log."""
        path = self.path / LOG
        with told(path), open(path, "a", encoding="utf-8", opener=_no_link) as file:
            file.write(f"{datetime.now().isoformat(sep=' ', timespec='seconds')} {line}\n")

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
        with told(self.path, "read"):
            names = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
        if not names:
            return
        refuse_links(self.path, (*FOLDERS, *(name for name in names if name.startswith(_PARTS))))
        if CONFIG not in names:
            refuse(f"{self.path}", f"a new folder or a run folder with its {CONFIG}", f"one that holds {names[0]}")
        has_parts = any(name.startswith(_PARTS) for name in names)
        if (CHECKPOINTS in names and parts) or (has_parts and not parts):
            kinds = ("a single run", "runs in sub-folders (several seeds or stages)")
            refuse(f"{self.path}", f"{kinds[parts]} or a new folder", kinds[not parts])

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
            raise NeuralEMError(f"{self.path}: another process is training in this run folder") from None


@contextlib.contextmanager
def opened(
    path: str | os.PathLike[str], config: Any, device: torch.device, parts: bool = False
) -> Iterator[RunFolder | None]:
    """The folder, opened by the first process and None in the others; where that fails, it fails in all."""
    folder = distributed.in_first(lambda: RunFolder(path, config, parts), device)
    with contextlib.nullcontext() if folder is None else contextlib.closing(folder):
        yield folder


def has_begun(folder: Path) -> bool:
    """Whether there is a checkpoint, of the run or of one of its parts; else nothing can be lost."""
    patterns = (CHECKPOINTS, f"*/{CHECKPOINTS}", f"*/*/{CHECKPOINTS}")
    return (folder / CONFIG).exists() and any(any(folder.glob(f"{pattern}/step-*")) for pattern in patterns)


def compare(path: Path, config: Any) -> None:
    """Refuses a folder whose config is another one, naming every field that differs."""
    before = configs.read(type(config), path / CONFIG)
    old, new, free = _fields(before), _fields(config), configs.changeable(before)
    differing = [key for key in {**old, **new} if old.get(key) != new.get(key) and key not in free]
    if differing:
        expected = ", ".join(f"{key}={old.get(key)}" for key in differing)
        got = ", ".join(f"{key}={new.get(key)}" for key in differing)
        raise NeuralEMError(f"{path}: expected the config of this run ({expected}), got {got}; choose another --run")


def _fields(config: Any) -> dict[str, Any]:
    """By dotted names; of the stages what no stage may change, as the folder of each says itself what it may."""
    fields = configs.flat(config)
    return {**fields, "stages": configs.without(fields["stages"], CHANGEABLE)} if "stages" in fields else fields


def sub_folders(folder: Path, prefix: str) -> list[Path]:
    """``seed-0``, ``seed-1``, ... or ``stage-1``, ... of a run, by number."""
    numbered = [(path.name.removeprefix(prefix), path) for path in folder.glob(f"{prefix}*") if path.is_dir()]
    return [path for _, path in sorted((int(number), path) for number, path in numbered if number.isdecimal())]


def _no_link(path: str, flags: int) -> int:
    """Opens a file that is no link: a stranger's run folder must not make us write to somewhere else."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
