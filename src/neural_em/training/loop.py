"""The loop of a run: steps, validation, early stopping; it can be stopped at any step and gone on with.

A run is a generator that does one step at a time, so that several runs can take turns in one process. Nothing waits
for a GPU but every few steps, when the losses that were collected there are read. It leaves nothing behind but a
trained model: whoever wants to keep what it does listens to its events.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from neural_em import config as configs
from neural_em.data import Dataset
from neural_em.errors import NeuralEMError, refuse
from neural_em.model import Model
from neural_em.training import distributed, order
from neural_em.training.config import TrainingConfig
from neural_em.training.state import Outcome, Progress, Snapshot
from neural_em.training.step import TrainingStep, fill
from neural_em.training.stop import REASONS, Stop
from neural_em.training.validation import BINDING_FAILURES, USUAL_STEPS, validate

Callback = Callable[[str, dict[str, Any]], None]
Steps = Generator[None, None, Outcome]
_WATCHED = {"cpu": 1, "cuda": 32}  # steps between two looks at the losses; each makes the host wait for the GPU


class Run:
    """One model in training.

    The model is trained in place, on the device and of the type it has; the data are on that device. Without validation
    samples the training loss decides. ``start`` is what to go on from, in the first process.

    Callbacks are called in the first process with an event and what is known of it:

    - ``start``: ``epoch`` and ``step`` that it goes on after;
    - ``steps``: losses were looked at: ``epoch``, ``step``, ``loss``, ``seconds`` since the epoch began;
    - ``state``: it may be kept now: ``state()`` gives the `Snapshot`, ``stopped`` says if it is the last;
    - ``epoch``: one is over: its ``row``, how many epochs it ``waited``, ``seconds``, ``state``;
    - ``warning``, ``note``: a ``text``;
    - ``failed``: there is no number any more: ``problem``, and the ``progress`` until then;
    - ``stop``: the ``outcome``.
    """

    def __init__(
        self, model: Model, data: Dataset, validation: Dataset | None, config: TrainingConfig,
        start: Snapshot | None = None, stop: Stop | None = None, callbacks: Iterable[Callback] = (), name: str = "",
    ) -> None:  # fmt: skip
        self.model, self.data, self.validation, self.config, self.name = model, data, validation, config, name
        self.start, self.stop, self.callbacks, self.epochs = start, stop or Stop(), tuple(callbacks), config.epochs
        self.device = next(model.parameters()).device
        self.steps, batch = order.steps_of(len(data), config.batch_size)
        if batch < distributed.world_size():
            refuse("samples of a step", f"at least one for each of {distributed.world_size()} processes", batch)
        self.part = distributed.part(batch)
        self.share = (self.part.stop - self.part.start) / batch
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}  # weights of the best epoch, in the first process
        self.stopped: str | None = None
        self._watched = 0  # steps of this epoch whose losses were looked at
        self._clock = time.monotonic()

    def train(self) -> Steps:
        """Trains from where the run stands until it is finished or stopped; yields after each step."""
        self._set_up()
        self.tell("start", step=self.progress.step, epoch=self.progress.epoch)
        epochs, patience = self.config.epochs, self.config.patience
        while (settled := self.progress.settled(epochs, patience)) is None and self.stopped is None:
            yield from self._epoch()
        return self._end(settled)

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
            self._step.set_deviation((progress.epoch + progress.step / self.steps) / self.config.deviation_epochs)
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
        self.tell(
            "steps", epoch=progress.epoch + 1, step=progress.step, loss=losses[-1], seconds=progress.epoch_seconds
        )
        # the first process whose time is over stops all of them, and so does one that was asked to
        self.stopped = REASONS[distributed.largest(REASONS.index(self.stop.reason), self.device)]
        if self.stopped is None and progress.step < self.steps:
            self.tell("state", state=self.snapshot, stopped=False)

    def _close_epoch(self) -> None:
        """Validates, judges and saves."""
        progress, numbers = self.progress, dict[str, Any]()
        if self.validation is not None:
            scores = validate(self._step.exact, self.validation, self.config, self._interrupted, progress.epoch)
            if scores is None:
                self.stopped = self.stop.reason
                return
            loss = scores.validation_loss
            if loss is None or not math.isfinite(loss):
                self._refuse_number(f"validation loss after epoch {progress.epoch + 1}", loss)
            numbers = {**scores._asdict(), "binding": scores.binding_failure(self.config.components)}
        self._pass_time()
        before = progress.rows[-1].binding if progress.rows else ""
        row = progress.close_epoch(self.steps, float(self._losses.to(torch.float64).mean()), numbers)
        if row.binding and row.binding != before:
            text = f"binding failure from epoch {row.epoch} on: {BINDING_FAILURES[row.binding]}"
            early = f"; usual in the first {USUAL_STEPS} steps, of which this run has done {row.steps}, and then gone"
            self.tell("warning", text=text + early * (row.steps < USUAL_STEPS))
        elif before and not row.binding:
            text = f"binding failure gone after epoch {row.epoch}: the components share the picture out"
            self.tell("note", text=text)
        self._watched = 0
        state = functools.cache(self.snapshot)  # made once, and only if somebody wants it
        if row.best and distributed.is_first():
            self.best = state().weights
        self.tell("epoch", row=row, waited=progress.waited, seconds=progress.seconds, state=state)

    def _end(self, settled: str | None) -> Outcome:
        """Leaves everything so that the run can go on, and the best weights in the model."""
        if self.stopped is not None:
            self.tell("state", state=self.snapshot, stopped=True)
        best = distributed.tensors_from_first(self.best, self.device)
        if best:
            self.model.load_state_dict(best)
        outcome = Outcome(self.name, self.model, self.stopped or settled or "", self.progress)
        return self.tell("stop", outcome=outcome)["outcome"]  # who keeps the run says where

    def _set_up(self) -> None:
        """Goes back to the start, in all processes alike."""
        self._losses = torch.zeros(self.steps, device=self.device, dtype=next(self.model.parameters()).dtype)
        start = self.start or self.snapshot(optimizer=False)
        values = distributed.from_first(lambda: configs.to_dict(start.progress), self.device)
        self.progress, self.best = configs.from_dict(Progress, values), start.best
        tensors = distributed.tensors_from_first(start.tensors, self.device)
        if not 0 <= self.progress.step <= self.steps:
            refuse("checkpoint: step", f"from 0 to {self.steps}, the steps of an epoch", self.progress.step)
        places = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.progress.step:
            places["losses"] = self._losses[: self.progress.step]
        fill(places, tensors, "checkpoint")
        self._step = TrainingStep(self.model, self.data, self.config, distributed.world_size())
        memory = {n.removeprefix("optimizer."): tensor for n, tensor in tensors.items() if n.startswith("optimizer.")}
        if memory:
            fill(self._step.memory(), memory, "optimizer")
        self._watched = self.progress.step
        self._clock = time.monotonic()

    def snapshot(self, optimizer: bool = True) -> Snapshot:
        """What the run goes on from, as it is now; broken weights are refused, so that they replace no good ones."""
        held = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if optimizer:
            held |= {f"optimizer.{name}": tensor for name, tensor in self._step.memory().items()}
        if self.progress.step:
            held["losses"] = self._losses[: self.progress.step]
        tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in held.items()}
        for name, tensor in tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                where = f"epoch {self.progress.epoch + 1}, step {self.progress.step} of {self.steps}"
                self._refuse_number(f"{name} at {where}", "not-a-number or infinity")
        return Snapshot(dataclasses.replace(self.progress), tensors, self.best)

    def _refuse_number(self, what: str, value: object) -> NoReturn:
        problem = (
            f"{self.name + ': ' if self.name else ''}{what}: expected a finite number, got {value}; "
            "the best weights and the last good checkpoint are kept; in a new run try a smaller "
            f"training.learning_rate (it is {self.config.learning_rate:g}), or training.precision=float32"
        )
        self.tell("warning", text=problem)
        self.tell("failed", problem=problem, progress=self.progress)
        raise NeuralEMError(problem)

    def _interrupted(self) -> bool:
        """Whether validation is to be broken off: for Ctrl-C alone, so that short times still come to an end of it."""
        return distributed.world_size() == 1 and self.stop.asked  # among several, the others would wait for ever

    def _pass_time(self) -> None:
        now = time.monotonic()
        self.progress.seconds += now - self._clock
        self.progress.epoch_seconds += now - self._clock
        self._clock = now

    def tell(self, event: str, **info: Any) -> dict[str, Any]:
        """Tells everybody who wants to know, in the first process; gives what they left of it."""
        info = {"run": self.name, "epochs": self.epochs, "steps": self.steps, **info}
        for callback in self.callbacks if distributed.is_first() else ():
            callback(event, info)
        return info


def take_turns(runs: Mapping[str, Steps], device: torch.device) -> dict[str, Outcome | NeuralEMError]:
    """Trains all runs to their ends, one step of each in turn; one that fails does not hold up the others.

    On a GPU each has a stream of its own, so that they overlap.
    """
    results: dict[str, Outcome | NeuralEMError] = {}
    streams = {name: _stream(device, len(runs)) for name in runs}
    waiting = dict(runs)
    while waiting:
        for name, run in list(waiting.items()):
            try:
                with torch.cuda.stream(streams[name]), distributed.peers_watched():
                    next(run)
                continue
            except StopIteration as end:
                results[name] = end.value
            except NeuralEMError as error:
                if distributed.world_size() > 1:  # the processes could no longer keep in step
                    raise
                results[name] = error
            except OSError as error:
                where = ": ".join(str(part) for part in (name, error.filename) if part) or "run"
                results[name] = NeuralEMError(f"{where}: {error.strerror or error}")
            del waiting[name]
    return {name: results[name] for name in runs}


def outcomes(results: Mapping[str, Outcome | NeuralEMError]) -> list[Outcome]:
    """The outcomes, if all runs have one; the errors in one line if not."""
    errors = [result for result in results.values() if isinstance(result, NeuralEMError)]
    if len(errors) == 1 and len(results) == 1:
        raise errors[0]
    if errors:
        text = "; ".join(str(error) for error in errors)
        raise NeuralEMError(f"{len(errors)} of {len(results)} runs failed, the others finished: {text}")
    return [result for result in results.values() if isinstance(result, Outcome)]


def _stream(device: torch.device, count: int) -> torch.cuda.Stream | None:
    if device.type != "cuda" or count == 1:
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # the data were made there
    return stream
