"""How far a run has come: everything that it needs to go on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from neural_em.training.config import TrainingConfig

PATIENCE, EPOCHS = "patience", "epochs"
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
    # share of the scored pixels that the component with the most of them explains, last step
    largest_share: float | None = None
    binding: str = ""  # what kind of binding failure the validation showed; empty for none
    # whether this epoch had the lowest validation loss so far; training loss, where there is no validation
    best: bool = False
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

    def settled(self, config: TrainingConfig) -> str | None:
        """Why the run is finished; None where it is not."""
        if self.step:
            return None
        if config.patience is not None and self.waited >= config.patience:
            return PATIENCE
        return EPOCHS if self.epoch >= config.epochs else None

    def improves(self, loss: float) -> bool:
        """Whether a loss is the lowest so far."""
        return self.best_loss is None or loss < self.best_loss

    def next_row(self, steps: int, loss: float, numbers: Mapping[str, Any]) -> Row:
        """The present epoch in numbers: its steps, training loss, and what validation found."""
        epoch, best = self.epoch + 1, self.improves(numbers.get("validation_loss", loss))
        return Row(epoch, epoch * steps, loss, best=best, seconds=round(self.epoch_seconds, 3), **numbers)

    def close_epoch(self, row: Row) -> None:
        """Adds a finished epoch; the lower loss counts, that of the training where there is no validation."""
        loss = row.loss if row.validation_loss is None else row.validation_loss
        if self.improves(loss):
            self.best_loss, self.best_epoch, self.waited = loss, row.epoch, 0
        else:
            self.waited += 1
        self.epoch, self.step, self.epoch_seconds = row.epoch, 0, 0.0
        self.rows = (*self.rows, row)

    @property
    def best_row(self) -> Row | None:
        """The best epoch."""
        return next((row for row in self.rows if row.epoch == self.best_epoch), None)


@dataclass(frozen=True)
class Snapshot:
    """What a run goes on from."""

    progress: Progress  # where it stands
    # on the CPU: weights (``model.``), Adam's memory (``optimizer.``; none before the first step) and the losses of the
    # present epoch
    tensors: dict[str, Tensor]
    best: dict[str, Tensor] = field(default_factory=dict)  # the best epoch's weights, where there was one

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> Snapshot:
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
