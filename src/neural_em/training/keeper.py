"""Writes what a run leaves behind, in an order that a kill at any moment cannot spoil.

An epoch's checkpoint comes first; weights, metrics and summary are made from what it holds, and made again from it
where a kill came between.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_em.errors import NeuralEMError
from neural_em.model import NeuralEM
from neural_em.storage import save
from neural_em.storage import weights as stored
from neural_em.training import checkpoint
from neural_em.training.checkpoint import Checkpoint
from neural_em.training.config import TrainingConfig
from neural_em.training.events import Events
from neural_em.training.outcome import summarise
from neural_em.training.run_folder import BEST, CHECKPOINTS, LAST, SUMMARY, RunFolder
from neural_em.training.state import Progress, Row


def read_finished(path: Path, config: TrainingConfig, sealed: bool = False) -> tuple[str, Progress] | None:
    """Why a run is finished, and its progress; None where there is something left to do.

    Args:
        path: the run folder.
        config: how long to train.
        sealed: somebody builds on the result already: it is finished even where the config would train longer.
    """
    found = checkpoint.found(path / CHECKPOINTS)
    try:
        summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
        progress = checkpoint.read_progress(found[0])
    except (OSError, ValueError, IndexError, NeuralEMError):
        return None
    if not isinstance(summary, dict) or summary.get("finished") is not True:  # the last file a run writes
        return None
    stopped = progress.settled(config) or (str(summary.get("stopped")) if sealed else None)
    return None if stopped is None else (stopped, progress)


class Keeper:
    """The hand that writes into a run folder.

    Args:
        folder: opened for this process.
        config: size of the checkpoints' files, and what the weight files say of their making.
        steps: of an epoch.
    """

    def __init__(self, folder: RunFolder, config: TrainingConfig, steps: int) -> None:
        self.folder, self.config, self.steps = folder, config, steps
        self._events: Events | None = None
        self._newest: Path | None = None  # the checkpoint this process read or wrote last

    def newest(self) -> Checkpoint | None:
        """The checkpoint to go on from."""
        found = checkpoint.newest(self.folder.checkpoints)
        if found is None:
            return None
        self._newest = found[0]
        return found[1]

    def begin(self, model: NeuralEM, progress: Progress, environment: Mapping[str, Any]) -> str:
        """Puts right what a kill left undone; returns a line for the log, empty for none."""
        self.folder.add_environment(environment)
        if progress.epoch and not progress.step:
            self._write_epoch(model, progress, again=False)
        self._events, line = Events.open(self.folder.path, progress.epoch, self.config.tensorboard)
        return line

    def checkpoint(self, progress: Progress, tensors: dict[str, Tensor]) -> None:
        """Writes a checkpoint and removes the older ones."""
        steps = progress.epoch * self.steps + progress.step
        name = checkpoint.name_of(steps, validated=progress.step == 0)
        folder = self.folder.checkpoints
        if self._newest != folder / name:
            self._newest = checkpoint.write(folder, name, progress, tensors, self.config.shard_megabytes)
        checkpoint.keep_only(folder, self._newest)

    def epoch(self, model: NeuralEM, progress: Progress, tensors: dict[str, Tensor]) -> None:
        """Writes all there is at the end of an epoch."""
        self.checkpoint(progress, tensors)
        self._write_epoch(model, progress, again=True)
        if self._events is not None:
            self._events.add(progress.rows[-1])

    def last(self, model: NeuralEM, progress: Progress) -> None:
        """Writes the present weights as the last ones."""
        save(model, self.folder.path / LAST, notes={"epoch": progress.epoch, "step": progress.step, **self._notes()})

    def best_weights(self) -> dict[str, Tensor]:
        """The best epoch's weights so far."""
        return stored.read(self.folder.path / BEST)[2]

    def summary(self, progress: Progress, stopped: str | None, problem: str | None = None) -> None:
        """Writes how the run went."""
        self.folder.write_summary(summarise(progress, stopped, problem))

    def close(self) -> None:
        """Writes out what is still in memory and lets others have the folder."""
        if self._events is not None:
            self._events.close()
        self.folder.close()

    def _write_epoch(self, model: NeuralEM, progress: Progress, again: bool) -> None:
        row = progress.rows[-1]
        if progress.best_epoch == progress.epoch and (again or self._epoch_of(BEST) != progress.epoch):
            save(model, self.folder.path / BEST, notes=self._notes(row))
        if again or self._epoch_of(LAST) != progress.epoch:
            save(model, self.folder.path / LAST, notes=self._notes(row))
        self.folder.write_metrics(progress.rows)
        self.summary(progress, stopped=None)

    def _notes(self, row: Row | None = None) -> dict[str, Any]:
        notes: dict[str, Any] = {"components": self.config.components, "seed": self.config.seed}
        if row is not None:
            scores = dataclasses.asdict(row)
            del scores["seconds"]  # the same run gives the same file
            notes |= {"epoch": row.epoch, "step": 0, "validation": scores}
        return notes

    def _epoch_of(self, name: str) -> int | None:
        """Which epoch's end a weight file holds; None for another moment, or no file."""
        try:
            notes = stored.read(self.folder.path / name)[1]
        except NeuralEMError:
            return None
        return notes.get("epoch") if notes.get("step") == 0 else None
