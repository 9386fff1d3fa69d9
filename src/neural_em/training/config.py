"""How a model is trained; the defaults are the paper's."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from neural_em.errors import check_flag, check_integer, check_number, refuse, show, unknown

MAX_SEED = 2**63 - 1  # PyTorch's generators take no more
SCHEDULES = ("constant", "cosine")
PRECISIONS = ("auto", "float32", "tf32", "bf16", "float64")
ENGINES = ("fast", "plain")
ORDERS = ("shuffled", "fixed-batches")
VALIDATION_NOISES = ("fixed", "fresh")
SMALLEST = sys.float_info.min
_COUNTS = ("components", "steps", "batch_size", "epochs", "patience", "segment", "shard_megabytes")
INTEGERS: dict[str, tuple[int, int | None]] = {  # from, to
    **dict.fromkeys(_COUNTS, (1, None)),
    "score_size": (0, None),
    "seed": (0, MAX_SEED),
}
_CHOICES = {
    "schedule": SCHEDULES, "precision": PRECISIONS, "engine": ENGINES, "order": ORDERS,
    "validation_noise": VALIDATION_NOISES,
}  # fmt: skip


@dataclass(frozen=True)
class TrainingConfig:
    """Training settings.

    Attributes:
        components: K during training.
        components_range: smallest and largest K: every step draws its own from there, and ``components`` is that of the
            validation; not given: ``components`` in every step.
        steps: EM steps of an unroll; all frames of a sequence, or the model's own number for an image, where not given.
        batch_size: samples of one step, over all processes together.
        learning_rate: of Adam.
        schedule: of the learning rate: ``constant``, or ``cosine``, which lets it fall to zero over all ``epochs``; a
            run that has begun then keeps their number.
        epochs: at most so many.
        patience: stop after so many epochs without a better validation loss; None, which a falling learning rate wants:
            never before the last epoch.
        seed: of the weights, the order of the data, the noise and the starts.
        precision: ``float32``, ``tf32`` (float32 with faster, coarser products on a GPU), ``bf16`` (the networks'
            activations in bfloat16 too, on a GPU; weights, E-step and losses stay float32), ``float64``, or ``auto``:
            tf32 on a GPU, float32 elsewhere.
        deterministic: on a GPU, only algorithms that give the same bits each time, and a warning of what has none;
            slower. A CPU always does.
        order: ``shuffled``: each epoch puts the samples together anew; ``fixed-batches``, as the authors' code has it:
            a batch is the same neighbours in every epoch, and only the order of the batches changes.
        validation_noise: ``fixed``: the validation samples' noise and starts are the same in every epoch and for every
            seed, so that both compare; ``fresh``, as the authors' code has it: new ones in each epoch.
        engine: ``fast``, or ``plain`` for the reference implementation, which computes the same.
        segment: keep the activations of so many steps at a time, for sequences that do not fit into memory; each step
            is then computed twice.
        truncate: with ``segment``, stop gradients at the segments' borders, and compute each step once.
        score_size: validation sequences whose ARI and AMI are logged each epoch.
        checkpoint_seconds: time between two checkpoints inside an epoch.
        shard_megabytes: largest file of a checkpoint.
        tensorboard: write TensorBoard events beside ``metrics.csv``, where tensorboard is installed.
    """

    components: int = 3
    components_range: tuple[int, int] | None = None
    steps: int | None = None
    batch_size: int = 64
    learning_rate: float = 0.001
    schedule: Literal["constant", "cosine"] = "constant"
    epochs: int = 500
    patience: int | None = 10
    seed: int = 0
    precision: Literal["auto", "float32", "tf32", "bf16", "float64"] = "auto"
    deterministic: bool = False
    order: Literal["shuffled", "fixed-batches"] = "shuffled"
    validation_noise: Literal["fixed", "fresh"] = "fixed"
    engine: Literal["fast", "plain"] = "fast"
    segment: int | None = None
    truncate: bool = False
    score_size: int = 1000
    checkpoint_seconds: float = 60.0
    shard_megabytes: int = 1024
    tensorboard: bool = True

    def __post_init__(self) -> None:
        """Refuses what makes no sense."""
        for name, (least, most) in INTEGERS.items():
            if name not in ("steps", "patience", "segment") or getattr(self, name) is not None:
                value = check_integer(f"training.{name}", getattr(self, name), least, most)
                object.__setattr__(self, name, value)  # Python's own numbers, whatever came
        if self.components_range is not None:
            self._check_range()
        for name in ("learning_rate", "checkpoint_seconds"):
            number = check_number(f"training.{name}", getattr(self, name), "a number above 0", SMALLEST)
            object.__setattr__(self, name, number)
        for name in ("deterministic", "truncate", "tensorboard"):
            check_flag(f"training.{name}", getattr(self, name))
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                unknown(f"training.{name}", getattr(self, name), allowed)
        if self.truncate and self.segment is None:
            refuse("training.truncate", "training.segment too, the steps of a segment", "none")
        if self.precision == "bf16" and self.engine != "fast":
            refuse("training.precision", "another one with training.engine=plain, the reference", self.precision)

    def _check_range(self) -> None:
        name, given = "training.components_range", self.components_range
        try:
            low, high = given  # type: ignore[misc]
        except (TypeError, ValueError):
            refuse(name, "the smallest and the largest number of components", show(given))
        low = check_integer(f"{name}[0]", low, 1)
        object.__setattr__(self, "components_range", (low, check_integer(f"{name}[1]", high, low)))
