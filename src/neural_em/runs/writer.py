"""Listens to a run and keeps it in its folder, in an order that a kill at any moment cannot spoil.

An epoch's checkpoint comes first; weights, metrics and summary are made from what it holds, and made again from it
where a kill came between. The writing is done by a second thread, one task after the other, while training goes on.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes

from neural_em.data import Dataset
from neural_em.errors import NeuralEMError
from neural_em.files import checksum, told, write_whole
from neural_em.model import BaseConfig, Model
from neural_em.runs import checkpoint, environment
from neural_em.runs.folder import BEST, BEST_OPTIMIZER, CHECKPOINTS, LAST, RunFolder
from neural_em.runs.record import Record, add_start, write_metrics
from neural_em.storage import save
from neural_em.storage import weights as stored
from neural_em.training import device as devices
from neural_em.training import distributed
from neural_em.training.config import TrainingConfig
from neural_em.training.display import line
from neural_em.training.loop import Callback, Run, Steps
from neural_em.training.state import NOT_A_NUMBER, Progress, Snapshot
from neural_em.training.stop import Stop

EVENTS = "tensorboard"
NO_EVENTS = "no TensorBoard events are written: tensorboard is not installed (pip install neural-em[tensorboard])"


class Writer:
    """The listener that keeps a run. What it is given, it may keep: tensors are copies on the CPU.

    ``optimizer``: whether to keep Adam's memory of the best epoch beside its weights.
    """

    def __init__(self, folder: RunFolder, model: BaseConfig, config: TrainingConfig, optimizer: bool = False) -> None:
        self.path, self.folder, self.model, self.config, self.optimizer = folder.path, folder, model, config, optimizer
        self.note = ""  # for whoever looks on
        self._events: Any = None  # TensorBoard's writer
        self._newest: Path | None = None  # the checkpoint this process read or wrote last
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._pending: Future[None] | None = None
        self._saved = time.monotonic()

    def resume(self, device: torch.device) -> Snapshot | None:
        """What to go on from; None for a new run. Puts right what a kill left undone."""
        found = checkpoint.newest(self.path / CHECKPOINTS)
        if found is None and (self.path / BEST).exists():  # a checkpoint is written before it: it was lost
            raise NeuralEMError(f"{self.path / CHECKPOINTS}: this run's checkpoints are missing; choose another --run")
        add_start(self.path, environment.describe(device, devices.resolve(self.config.precision, device)))
        self._newest, snapshot = found or (None, None)
        if snapshot is not None and snapshot.progress.epoch and not snapshot.progress.step:
            self._write_epoch(snapshot, again=False)
        if snapshot is not None and snapshot.progress.best_epoch:
            snapshot = dataclasses.replace(snapshot, best=stored.read(self.path / BEST)[2])
        if self.config.tensorboard:
            self._open_events(0 if snapshot is None else snapshot.progress.epoch)
        return snapshot

    def _open_events(self, epoch: int) -> None:
        """Begins TensorBoard's events, if it is installed; those that an earlier start wrote after the epoch go."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.note = NO_EVENTS
            return
        with told(self.path / EVENTS):
            self._events = SummaryWriter(str(self.path / EVENTS), purge_step=epoch + 1 if epoch else None)

    def __call__(self, event: str, info: dict[str, Any]) -> None:
        """Keeps what an event tells."""
        text = line(event, info) if event != "steps" else None
        if text is not None:
            self.folder.log(text)
        if event == "state":
            self._keep(info["state"], info["steps"], info["stopped"])
        elif event == "epoch":
            snapshot: Snapshot = info["state"]()
            self._later(lambda: self._close_epoch(snapshot, info["steps"]))
        elif event == "failed":
            self._wait()
            self._write_summary(info["progress"], NOT_A_NUMBER, info["problem"])
        elif event == "stop":
            self._wait()
            outcome = info["outcome"] = dataclasses.replace(info["outcome"], path=self.path)
            self._write_summary(outcome.progress, outcome.stopped)

    def close(self) -> None:
        """Writes out what is still in memory and lets others have the folder."""
        self._thread.shutdown(wait=True)
        if self._events is not None:
            with contextlib.suppress(OSError):  # what cannot be written any more was said before
                self._events.close()
        self.folder.close()

    def _keep(self, state: Callable[[], Snapshot], steps: int, stopped: bool) -> None:
        """Writes a checkpoint inside an epoch, where it is time for one; the last one's weights too."""
        if not stopped and time.monotonic() - self._saved < self.config.checkpoint_seconds:
            return
        snapshot = state()
        self._later(lambda: self._write_checkpoint(snapshot, steps))
        if stopped:
            self._wait()
            self._save(LAST, snapshot, epoch=snapshot.progress.epoch, step=snapshot.progress.step)

    def _later(self, work: Callable[[], None]) -> None:
        self._wait()
        self._saved = time.monotonic()
        self._pending = self._thread.submit(work)

    def _wait(self) -> None:
        """Waits until everything is written; what went wrong there is raised here."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _close_epoch(self, snapshot: Snapshot, steps: int) -> None:
        """Writes all there is at the end of an epoch."""
        self._write_checkpoint(snapshot, steps)
        self._write_epoch(snapshot, again=True)
        if self._events is not None:
            row = snapshot.progress.rows[-1]
            with told("TensorBoard events"):
                for name, value in dataclasses.asdict(row).items():
                    if name not in ("epoch", "best") and isinstance(value, int | float):
                        self._events.add_scalar(name, value, row.epoch)
                self._events.flush()

    def _write_checkpoint(self, snapshot: Snapshot, steps: int) -> None:
        """Writes a checkpoint and removes the older ones."""
        progress, folder = snapshot.progress, self.path / CHECKPOINTS
        name = checkpoint.name_of(progress.epoch * steps + progress.step, validated=progress.step == 0)
        if self._newest != folder / name:
            self._newest = checkpoint.write(folder, name, snapshot)
        checkpoint.keep_only(folder, self._newest)

    def _write_epoch(self, snapshot: Snapshot, again: bool) -> None:
        """Weights, metrics and summary of a whole epoch; the weights, unless ``again``, where they are not its own."""
        progress = snapshot.progress
        scores = dataclasses.asdict(progress.rows[-1])
        del scores["seconds"]  # the same run gives the same file
        for name in (BEST, LAST) if progress.best_epoch == progress.epoch else (LAST,):
            if again or self._epoch_of(name) != progress.epoch:
                if name == BEST and self.optimizer:  # first: where the weights are this epoch's, so is Adam's memory
                    write_whole(self.path / BEST_OPTIMIZER, to_bytes(snapshot.memory))
                self._save(name, snapshot, epoch=progress.epoch, step=0, validation=scores)
        write_metrics(self.path, progress.rows)
        self._write_summary(progress)

    def _write_summary(self, progress: Progress, stopped: str | None = None, problem: str | None = None) -> None:
        sums = {name: checksum(self.path / name) for name in (BEST, LAST) if (self.path / name).is_file()}
        dataclasses.replace(Record.of(progress, stopped, problem), sha256=sums).write(self.path)

    def _save(self, name: str, snapshot: Snapshot, **notes: Any) -> None:
        """Writes a weight file of the snapshot's tensors, without a copy of them."""
        model = stored.filled(self.model, snapshot.weights, "checkpoint: weights")
        save(model, self.path / name, notes={"components": self.config.components, "seed": self.config.seed, **notes})

    def _epoch_of(self, name: str) -> int | None:
        """Which epoch's end a weight file holds; None for another moment, or no file."""
        try:
            notes = stored.read(self.path / name)[1]
        except NeuralEMError:
            return None
        return notes.get("epoch") if notes.get("step") == 0 else None


def train_in(
    folder: RunFolder | None, model: Model, data: Dataset, validation: Dataset | None, config: TrainingConfig,
    stop: Stop, callbacks: Iterable[Callback], name: str = "", first: Snapshot | None = None, notes: Iterable[str] = (),
    keep_optimizer: bool = False,
) -> Steps:  # fmt: skip
    """Trains a model on its device from where its run stopped, and keeps the run in the folder.

    The folder is opened in the first process, None leaves nothing on disk. Callbacks are told what happens after it was
    written. A new run goes on from ``first``, or from the model as it is; ``notes`` are told before it begins.
    """
    writer = None if folder is None else Writer(folder, model.config, config, keep_optimizer)
    device = next(model.parameters()).device
    try:
        start = distributed.in_first(lambda: None if writer is None else writer.resume(device), device)
        listeners: list[Callback] = [*([] if writer is None else [writer]), *callbacks]
        run = Run(model, data, validation, config, start or first, stop, listeners, name)
        for text in (*notes, "" if writer is None else writer.note):
            if text:
                run.tell("note", text=text)
        return (yield from run.train())
    finally:
        if writer is not None:
            writer.close()
