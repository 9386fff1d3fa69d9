"""The loop of one run: steps, validation, early stopping, checkpoints; it can be stopped at any step and gone on with.

A run is a generator that does one step at a time, so that several runs can take turns in one process. Nothing waits
for a GPU but every few steps, when the losses that were collected there are read.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from neural_em import config as configs
from neural_em.errors import NeuralEMError, refuse
from neural_em.model import Model
from neural_em.training import checkpoint, distributed, environment, order
from neural_em.training import device as devices
from neural_em.training.config import TrainingConfig
from neural_em.training.keeper import Keeper
from neural_em.training.outcome import NOT_A_NUMBER, Outcome
from neural_em.training.run_folder import BEST_OPTIMIZER, RunFolder
from neural_em.training.state import Progress, Row
from neural_em.training.step import TrainingStep
from neural_em.training.stop import REASONS, Stop
from neural_em.training.validation import BINDING_FAILURES, Validation, validate

if TYPE_CHECKING:
    from neural_em.data import Dataset

Callback = Callable[[str, dict[str, Any]], None]
_WATCHED = {"cpu": 1, "cuda": 32}  # steps between two looks at the losses; each makes the host wait for the GPU


class Run:
    """One model in training.

    Args:
        model: trained in place; on the device and of the type it is trained in.
        data: the training samples, on that device.
        validation: samples for early stopping and scores; without them the training loss decides.
        config: settings.
        folder: opened run folder, in the first process; None to leave nothing on disk.
        stop: asked after each step whether to stop.
        callbacks: called in the first process with an event and what is known: ``start``, ``steps``, ``epoch``,
            ``warning``, ``note``, ``stop``.
        name: of the run, among those trained together.
        before: folder of the run whose best weights the model has, where the optimizer's memory comes from it too.
        keep_optimizer: whether to leave the optimizer's memory of the best epoch for a next run.
    """

    def __init__(
        self, model: Model, data: Dataset, validation: Dataset | None, config: TrainingConfig,
        folder: RunFolder | None = None, stop: Stop | None = None, callbacks: Iterable[Callback] = (), name: str = "",
        before: Path | None = None, keep_optimizer: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.data, self.validation, self.config, self.name = model, data, validation, config, name
        self.stop, self.callbacks, self.before = stop or Stop(), tuple(callbacks), before
        self.device = next(model.parameters()).device
        self.steps, batch = order.steps_of(len(data), config.batch_size)
        if batch < distributed.world_size():
            refuse("samples of a step", f"at least one for each of {distributed.world_size()} processes", batch)
        self.part = distributed.part(batch)
        self.share = (self.part.stop - self.part.start) / batch
        self.keeper = None if folder is None else Keeper(folder, model.config, config, self.steps, keep_optimizer)
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}  # weights of the best epoch, in the first process
        self.stopped: str | None = None
        self._watched = 0  # steps of this epoch whose losses were looked at
        self._clock = self._saved = time.monotonic()

    def train(self) -> Generator[None, None, Outcome]:
        """Trains from where the run stands until it is finished or stopped; yields after each step."""
        try:
            self._set_up()
            self.tell("start", step=self.progress.step, epoch=self.progress.epoch)
            while self.stopped is None and self.progress.settled(self.config) is None:
                yield from self._epoch()
            return self._end()
        finally:
            if self.keeper is not None:
                self.keeper.close()

    def _epoch(self) -> Generator[None, None, None]:
        """The rest of the present epoch."""
        progress = self.progress
        indices, keys = order.plan(
            self.config.seed, progress.epoch, len(self.data), self.config.batch_size, self.device, self.data.endless,
            self.config.order == "fixed-batches",
        )  # fmt: skip
        indices, keys = indices[:, self.part].contiguous(), keys[:, self.part].contiguous()
        numbers = self.config.components_range or (self.config.components,) * 2
        components = order.components(self.config.seed, progress.epoch, self.steps, *numbers)
        while progress.step < self.steps:
            if self.config.schedule == "cosine":
                done = (progress.epoch + progress.step / self.steps) / self.config.epochs
                self._step.set_rate(self.config.learning_rate * 0.5 * (1 + math.cos(math.pi * done)))
            loss = self._step(indices[progress.step], keys[progress.step], self.share, components[progress.step])
            self._losses[progress.step].copy_(loss)
            progress.step += 1
            if progress.step % _WATCHED.get(self.device.type, 1) == 0 or progress.step == self.steps:
                self._watch()
                if self.stopped is not None:
                    return
            yield
        self._close_epoch()

    def _watch(self) -> None:
        """Looks at the losses since the last look, at the clock and at who wants to stop."""
        progress = self.progress
        losses = self._losses[self._watched : progress.step].tolist()
        for step, loss in enumerate(losses, start=self._watched + 1):
            if not math.isfinite(loss):
                self._refuse_number(f"training loss at epoch {progress.epoch + 1}, step {step} of {self.steps}", loss)
        self._watched = progress.step
        self._pass_time()
        self.tell("steps", epoch=progress.epoch + 1, step=progress.step, loss=losses[-1])
        # the first process whose time is over stops all of them, and so does one that was asked to
        self.stopped = REASONS[distributed.largest(REASONS.index(self.stop.reason), self.device)]
        if self.stopped is not None:
            return
        due = time.monotonic() - self._saved >= self.config.checkpoint_seconds
        if due and self.keeper is not None and progress.step < self.steps:
            self.keeper.checkpoint(progress, self._tensors())
            self._saved = time.monotonic()

    def _close_epoch(self) -> None:
        """Validates, judges and saves."""
        progress, scores = self.progress, None
        if self.validation is not None:
            scores = validate(self._step.exact, self.validation, self.config, self._interrupted, progress.epoch)
            if scores is None:
                self.stopped = self.stop.reason
                return
            if scores.loss is None or not math.isfinite(scores.loss):
                self._refuse_number(f"validation loss after epoch {progress.epoch + 1}", scores.loss)
        self._pass_time()
        row = self._row(scores)
        if row.binding and (not progress.rows or progress.rows[-1].binding != row.binding):
            self.tell("warning", text=f"binding failure from epoch {row.epoch} on: {BINDING_FAILURES[row.binding]}")
        progress.close_epoch(row)
        self._watched = 0
        if distributed.is_first() and (row.best or self.keeper is not None):
            tensors = self._tensors()
            if row.best:
                self.best = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
            if self.keeper is not None:
                self.keeper.epoch(progress, tensors)
                self._saved = time.monotonic()
        self.tell("epoch", row=row, waited=progress.waited, seconds=progress.seconds)

    def _row(self, scores: Validation | None) -> Row:
        progress = self.progress
        loss = float(self._losses.to(torch.float64).mean())
        row = Row(progress.epoch + 1, (progress.epoch + 1) * self.steps, loss, seconds=round(progress.epoch_seconds, 3))
        if scores is None or scores.loss is None:
            return dataclasses.replace(row, best=progress.improves(loss))
        return dataclasses.replace(
            row, validation_loss=scores.loss, best=progress.improves(scores.loss),
            binding=scores.binding_failure(self.config.components),
            **{name: value for name, value in scores._asdict().items() if name != "loss"},
        )  # fmt: skip

    def _end(self) -> Outcome:
        """Leaves everything so that the run can go on, and the best weights in the model."""
        stopped = self.stopped or self.progress.settled(self.config) or ""
        if self.keeper is not None:
            if self.stopped is not None:
                self.keeper.last(self.progress, self._tensors())
            self.keeper.summary(self.progress, stopped)
        best = distributed.tensors_from_first(self.best, self.device)
        if best:
            self.model.load_state_dict(best)
        path = None if self.keeper is None else self.keeper.folder.path
        outcome = Outcome(self.name, self.model, stopped, self.progress, path)
        self.tell("stop", outcome=outcome)
        return outcome

    def _set_up(self) -> None:
        """Goes back to the newest checkpoint, in all processes alike."""
        held: dict[str, Tensor] = {}

        def newest() -> dict[str, Any] | None:
            found = self.keeper.newest() if self.keeper is not None else None
            held.update(self._tensors(optimizer=False) if found is None else found.tensors)
            if found is None and self.before is not None:
                held.update(checkpoint.read_file(self.before / BEST_OPTIMIZER))
            return None if found is None else configs.to_dict(found.progress)

        self._losses = torch.zeros(self.steps, device=self.device, dtype=next(self.model.parameters()).dtype)
        values = distributed.from_first(newest, self.device)
        self.progress = Progress() if values is None else configs.from_dict(Progress, values)
        tensors = distributed.tensors_from_first(held, self.device)
        self._load(tensors)
        self._step = TrainingStep(self.model, self.data, self.config, distributed.world_size())
        memory = {name: tensor for name, tensor in tensors.items() if name.startswith("optimizer.")}
        if memory or self.before is not None:
            self._step.load_state({name.removeprefix("optimizer."): tensor for name, tensor in memory.items()})
        self._watched = self.progress.step
        self._clock = self._saved = time.monotonic()
        if self.keeper is not None:
            precision = devices.resolve(self.config.precision, self.device)
            note = self.keeper.begin(self.progress, held, environment.describe(self.device, precision))
            if note:
                self.tell("note", text=note)
            if self.progress.best_epoch:
                self.best = self.keeper.best_weights()

    def _load(self, tensors: dict[str, Tensor]) -> None:
        """Weights and losses of a checkpoint into the model and the buffer, if they fit."""
        state = self.model.state_dict()
        expected = {f"model.{name}": tuple(tensor.shape) for name, tensor in state.items()}
        if self.progress.step:
            expected["losses"] = (self.progress.step,)
        for name, shape in expected.items():
            if name not in tensors or tuple(tensors[name].shape) != shape or self.progress.step > self.steps:
                got = tuple(tensors[name].shape) if name in tensors else "nothing"
                refuse(f"checkpoint: {name}", f"shape {shape}", got)
        for name, tensor in state.items():
            tensor.copy_(tensors[f"model.{name}"])
        if self.progress.step:
            self._losses[: self.progress.step].copy_(tensors["losses"])

    def _tensors(self, optimizer: bool = True) -> dict[str, Tensor]:
        """Everything a checkpoint holds, on the CPU; refuses to let broken weights replace good ones."""
        tensors = {f"model.{name}": t.detach().to("cpu", copy=True) for name, t in self.model.state_dict().items()}
        if optimizer:
            tensors |= {f"optimizer.{name}": tensor for name, tensor in self._step.state().items()}
        if self.progress.step:
            tensors["losses"] = self._losses[: self.progress.step].to("cpu", copy=True)
        for name, tensor in tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                where = f"epoch {self.progress.epoch + 1}, step {self.progress.step} of {self.steps}"
                self._refuse_number(f"{name} at {where}", "not-a-number or infinity")
        return tensors

    def _refuse_number(self, what: str, value: object) -> NoReturn:
        problem = (
            f"{self.name + ': ' if self.name else ''}{what}: expected a finite number, got {value}; "
            "the best weights and the last good checkpoint are kept; in a new run try a smaller "
            f"training.learning_rate (it is {self.config.learning_rate:g}), or training.precision=float32"
        )
        self.tell("warning", text=problem)
        if self.keeper is not None:
            self.keeper.summary(self.progress, NOT_A_NUMBER, problem)
        raise NeuralEMError(problem)

    def _interrupted(self) -> bool:
        """Whether validation is to be broken off: for Ctrl-C alone, so that short times still come to an end of it."""
        return distributed.world_size() == 1 and self.stop.asked  # among several, the others would wait for ever

    def _pass_time(self) -> None:
        now = time.monotonic()
        self.progress.seconds += now - self._clock
        self.progress.epoch_seconds += now - self._clock
        self._clock = now

    def tell(self, event: str, **info: Any) -> None:
        """Tells everybody who wants to know, in the first process."""
        if not distributed.is_first():
            return
        info = {"run": self.name, "epochs": self.config.epochs, "steps": self.steps, **info}
        for callback in self.callbacks:
            callback(event, info)
