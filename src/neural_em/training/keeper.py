"""Writes what a run leaves behind, in an order that a kill at any moment cannot spoil, and beside the training.

An epoch's checkpoint comes first; weights, metrics and summary are made from what it holds, and made again from it
where a kill came between. The writing is done by a second thread, one task after the other, while training goes on.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes
from torch import Tensor

from neural_em.errors import NeuralEMError, refuse
from neural_em.files import checksum, write_whole
from neural_em.model import Model, ModelConfig
from neural_em.storage import save
from neural_em.storage import weights as stored
from neural_em.training import checkpoint
from neural_em.training.checkpoint import Checkpoint
from neural_em.training.config import TrainingConfig
from neural_em.training.events import Events
from neural_em.training.outcome import summarise
from neural_em.training.run_folder import BEST, BEST_OPTIMIZER, CHECKPOINTS, LAST, SUMMARY, RunFolder
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
    """The hand that writes into a run folder. What it is given, it may keep: tensors are copies on the CPU.

    Args:
        folder: opened for this process.
        model: what the weights are for.
        config: size of the checkpoints' files, and what the weight files say of their making.
        steps: of an epoch.
        optimizer: whether to keep the optimizer's memory of the best epoch beside its weights.
    """

    def __init__(
        self, folder: RunFolder, model: ModelConfig, config: TrainingConfig, steps: int, optimizer: bool = False
    ) -> None:
        self.folder, self.model, self.config, self.steps, self.optimizer = folder, model, config, steps, optimizer
        self._events: Events | None = None
        self._newest: Path | None = None  # the checkpoint this process read or wrote last
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="keeper")
        self._pending: Future[None] | None = None

    def newest(self) -> Checkpoint | None:
        """The checkpoint to go on from."""
        found = checkpoint.newest(self.folder.checkpoints)
        if found is None and (self.folder.path / BEST).exists():  # a checkpoint is written before it: it was lost
            have = f"a checkpoint, since the run has its {BEST}"
            refuse(f"{self.folder.checkpoints}", have, "none; choose another --run")
        if found is None:
            return None
        self._newest = found[0]
        return found[1]

    def begin(self, progress: Progress, tensors: dict[str, Tensor], environment: Mapping[str, Any]) -> str:
        """Puts right what a kill left undone; returns a line for the log, empty for none."""
        self.folder.add_environment(environment)
        if progress.epoch and not progress.step:
            self._write_epoch(progress, tensors, again=False)
        self._events, line = Events.open(self.folder.path, progress.epoch, self.config.tensorboard)
        return line

    def checkpoint(self, progress: Progress, tensors: dict[str, Tensor]) -> None:
        """Writes a checkpoint and removes the older ones."""
        progress = dataclasses.replace(progress)
        self._later(lambda: self._write_checkpoint(progress, tensors))

    def epoch(self, progress: Progress, tensors: dict[str, Tensor]) -> None:
        """Writes all there is at the end of an epoch."""
        progress = dataclasses.replace(progress)

        def work() -> None:
            self._write_checkpoint(progress, tensors)
            self._write_epoch(progress, tensors, again=True)
            if self._events is not None:
                self._events.add(progress.rows[-1])

        self._later(work)

    def last(self, progress: Progress, tensors: dict[str, Tensor]) -> None:
        """Writes a checkpoint inside an epoch, and its weights as the last ones."""
        self.checkpoint(progress, tensors)
        self.wait()
        notes = {"epoch": progress.epoch, "step": progress.step, **self._notes()}
        save(self._model(tensors), self.folder.path / LAST, notes=notes)

    def best_weights(self) -> dict[str, Tensor]:
        """The best epoch's weights so far."""
        return stored.read(self.folder.path / BEST)[2]

    def summary(self, progress: Progress, stopped: str | None, problem: str | None = None) -> None:
        """Writes how the run went, after all that is still to be written."""
        self.wait()
        self._write_summary(progress, stopped, problem)

    def wait(self) -> None:
        """Waits until everything is written; what went wrong there is raised here."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Writes out what is still in memory and lets others have the folder."""
        self._thread.shutdown(wait=True)
        if self._events is not None:
            self._events.close()
        self.folder.close()

    def _later(self, work: Callable[[], None]) -> None:
        self.wait()
        self._pending = self._thread.submit(work)

    def _write_checkpoint(self, progress: Progress, tensors: dict[str, Tensor]) -> None:
        steps = progress.epoch * self.steps + progress.step
        name = checkpoint.name_of(steps, validated=progress.step == 0)
        folder = self.folder.checkpoints
        if self._newest != folder / name:
            self._newest = checkpoint.write(folder, name, progress, tensors, self.config.shard_megabytes)
        checkpoint.keep_only(folder, self._newest)

    def _write_epoch(self, progress: Progress, tensors: dict[str, Tensor], again: bool) -> None:
        row, model = progress.rows[-1], self._model(tensors)
        if progress.best_epoch == progress.epoch and (again or self._epoch_of(BEST) != progress.epoch):
            if self.optimizer:  # first: where the weights are this epoch's, so is the optimizer's memory
                memory = {name: tensor for name, tensor in tensors.items() if name.startswith("optimizer.")}
                write_whole(self.folder.path / BEST_OPTIMIZER, to_bytes(memory))
            save(model, self.folder.path / BEST, notes=self._notes(row))
        if again or self._epoch_of(LAST) != progress.epoch:
            save(model, self.folder.path / LAST, notes=self._notes(row))
        self.folder.write_metrics(progress.rows)
        self._write_summary(progress)

    def _write_summary(self, progress: Progress, stopped: str | None = None, problem: str | None = None) -> None:
        """With the sums of the weight files, so that others put in their place are noticed."""
        files = {name: self.folder.path / name for name in (BEST, LAST)}
        sums = {name: checksum(path) for name, path in files.items() if path.is_file()}
        self.folder.write_summary({**summarise(progress, stopped, problem), "sha256": sums})

    def _model(self, tensors: dict[str, Tensor]) -> Model:
        """The model of a checkpoint's tensors, without a copy of them."""
        weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        return stored.filled(self.model, weights, "checkpoint: weights")

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
