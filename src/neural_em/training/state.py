"""How far a run has come: all that it needs to go on as if it had never stopped, and what comes out of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from neural_em.model import Model
from neural_em.training.validation import BINDING_FAILURES

PATIENCE, EPOCHS, NOT_A_NUMBER = "patience", "epochs", "not-a-number"
SETTLED = (PATIENCE, EPOCHS)  # the reasons for which a run is finished


@dataclass(frozen=True)
class Row:
    """One epoch in numbers; the columns of ``metrics.csv``. AMI is normalised by the larger entropy ('max')."""

    epoch: int  # counted from 1
    steps: int  # training steps since the start
    loss: float  # mean training loss of the epoch's steps
    validation_loss: float | None = None  # mean loss on the validation samples
    upper_bound: float | None = None  # their next-frame upper-bound loss at the last step
    ami_last: float | None = None  # AMI at the last step; ``None`` where there are no true groups, as below
    ami_mean: float | None = None  # mean AMI over all steps
    ari_last: float | None = None  # ARI at the last step
    ari_mean: float | None = None  # mean ARI over all steps
    confidence: float | None = None  # mean over scored pixels of the largest responsibility, last step
    largest_share: float | None = None  # share of them that the component with the most explains, last step
    binding: str = ""  # what kind of binding failure the validation showed; empty for none
    best: bool = False  # whether its validation loss is the lowest so far; training loss, where there is none
    seconds: float = 0.0  # time the epoch took


@dataclass
class Progress:
    """Where a run stands."""

    epoch: int = 0  # whole epochs done, each with its validation
    step: int = 0  # steps done in the present epoch
    best_loss: float | None = None  # lowest validation loss so far; training loss, where there is no validation
    best_epoch: int = 0  # the epoch that had it, counted from 1; 0 for none yet
    waited: int = 0  # epochs since then
    seconds: float = 0.0  # time spent, over all interruptions
    epoch_seconds: float = 0.0  # time spent on the present epoch
    rows: tuple[Row, ...] = ()  # the finished epochs

    def settled(self, epochs: int, patience: int | None) -> str | None:
        """Why the run is finished; None where it is not."""
        if self.step:
            return None
        if patience is not None and self.waited >= patience:
            return PATIENCE
        return EPOCHS if self.epoch >= epochs else None

    def close_epoch(self, steps: int, loss: float, numbers: Mapping[str, Any]) -> Row:
        """Adds the present epoch, now finished: its steps, its training loss and what validation found."""
        epoch, judged = self.epoch + 1, numbers.get("validation_loss", loss)
        best = self.best_loss is None or judged < self.best_loss
        row = Row(epoch, epoch * steps, loss, best=best, seconds=round(self.epoch_seconds, 3), **numbers)
        if best:
            self.best_loss, self.best_epoch, self.waited = judged, epoch, 0
        else:
            self.waited += 1
        self.epoch, self.step, self.epoch_seconds = epoch, 0, 0.0
        self.rows = (*self.rows, row)
        return row

    @property
    def best_row(self) -> Row | None:
        """The best epoch."""
        return next((row for row in self.rows if row.epoch == self.best_epoch), None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know before trusting the result: a binding failure of the best epoch."""
        row = self.best_row
        if row is None or not row.binding:
            return ()
        count = sum(bool(other.binding) for other in self.rows)
        what = BINDING_FAILURES.get(row.binding, row.binding)
        when = f"at the best epoch, {row.epoch} (failures in {count} of {len(self.rows)} epochs)"
        return (f"binding failure: {what} {when}",)


@dataclass(frozen=True)
class Snapshot:
    """What a run goes on from."""

    progress: Progress  # where it stands
    # on the CPU: weights (``model.``), Adam's memory (``optimizer.``; none before the first step) and the losses of the
    # present epoch
    tensors: dict[str, Tensor]
    best: dict[str, Tensor] = field(default_factory=dict)  # the best epoch's weights, where there was one

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> Self:
        """A new run with these weights, by the model's own names, and this memory of Adam, which may be empty."""
        tensors = {f"model.{name}": tensor.cpu() for name, tensor in weights.items()}
        kept = {f"optimizer.{name.removeprefix('optimizer.')}": tensor for name, tensor in memory.items()}
        return cls(Progress(), {**tensors, **kept})

    @property
    def weights(self) -> dict[str, Tensor]:
        """Those of the model, by its own names."""
        return {n.removeprefix("model."): tensor for n, tensor in self.tensors.items() if n.startswith("model.")}

    @property
    def memory(self) -> dict[str, Tensor]:
        """What Adam remembers."""
        return {name: tensor for name, tensor in self.tensors.items() if name.startswith("optimizer.")}


@dataclass(frozen=True)
class Outcome:
    """A run that stopped."""

    name: str  # of the run, among those trained together
    model: Model  # with the weights of the best epoch
    stopped: str  # why: ``patience``, ``epochs``, ``max-minutes`` or ``interrupted``
    progress: Progress  # every epoch in numbers, the best one, the time
    path: Path | None = None  # the run folder, where there is one

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.stopped in SETTLED

    @property
    def warnings(self) -> list[str]:
        """What a user should know before trusting the result."""
        return list(self.progress.warnings)
