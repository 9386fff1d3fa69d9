"""How a model is trained; the defaults are the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from neural_em import fields
from neural_em.errors import NeuralEMError, check_integer, refuse, show

MAX_SEED = 2**63 - 1  # PyTorch's generators take no more
# what may differ between two starts of one run: it decides how long and how, never what is computed
_CHANGEABLE = frozenset({"epochs", "patience", "checkpoint_seconds", "engine", "tensorboard"})
CHANGEABLE = frozenset(f"training.{name}" for name in _CHANGEABLE)


def _range(name: str, value: Any) -> tuple[int, int]:
    try:
        low, high = value
    except (TypeError, ValueError):
        refuse(name, "the smallest and the largest number of components", show(value))
    low = check_integer(f"{name}[0]", low, 1)
    return low, check_integer(f"{name}[1]", high, low)


@dataclass(frozen=True)
class TrainingConfig(fields.Checked):
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
        first_deviation: of the E-step in the first training step; it then changes by the same factor each step, to the
            model's own after ``deviation_epochs``. Validation and tests always have the model's own. Not given: always.
        deviation_epochs: see ``first_deviation``.
        clip: the longest that the gradient of a step may be, over all weights; a longer one is shortened to it. Not
            given: never.
        epochs: largest number of epochs.
        patience: number of epochs without a better validation loss before training stops; None, which a falling
            learning rate wants: never before the last epoch.
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
        segment: number of steps whose activations are kept at a time, for sequences that do not fit into memory; each
            step is then computed twice.
        truncate: with ``segment``, stop gradients at the segments' borders, and compute each step once.
        score_size: validation sequences whose ARI and AMI are logged each epoch.
        checkpoint_seconds: time between two checkpoints inside an epoch.
        tensorboard: write TensorBoard events beside ``metrics.csv``, where tensorboard is installed.
    """

    components: int = 3
    components_range: tuple[int, int] | None = None
    steps: int | None = None
    batch_size: int = 64
    learning_rate: float = 0.001
    schedule: Literal["constant", "cosine"] = "constant"
    first_deviation: float | None = None
    deviation_epochs: int = 10
    clip: float | None = None
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
    tensorboard: bool = True

    GROUP: ClassVar[str] = "training."
    CHECKS: ClassVar[Mapping[str, fields.Check]] = {
        **dict.fromkeys(("components", "batch_size", "epochs", "deviation_epochs"), fields.integer(1)),
        **dict.fromkeys(("steps", "patience", "segment"), fields.optional(fields.integer(1))),
        "first_deviation": fields.optional(fields.number("a number from 0.001 to 1000", 0.001, 1000)),
        "clip": fields.optional(fields.number("a number above 0", fields.TINY)),
        "components_range": fields.optional(_range),
        "score_size": fields.integer(0),
        "seed": fields.integer(0, MAX_SEED),
        **dict.fromkeys(("learning_rate", "checkpoint_seconds"), fields.number("a number above 0", fields.TINY)),
        **dict.fromkeys(("deterministic", "truncate", "tensorboard"), fields.flag),
        "schedule": fields.choice(("constant", "cosine")),
        "precision": fields.choice(("auto", "float32", "tf32", "bf16", "float64")),
        "order": fields.choice(("shuffled", "fixed-batches")),
        "validation_noise": fields.choice(("fixed", "fresh")),
        "engine": fields.choice(("fast", "plain")),
    }

    def check_together(self) -> None:
        if self.truncate and self.segment is None:
            raise NeuralEMError("training.truncate=true needs training.segment, the steps of a segment")
        if self.precision == "bf16" and self.engine != "fast":
            raise NeuralEMError("training.precision=bf16 needs training.engine=fast")

    @property
    def changeable(self) -> frozenset[str]:
        """What may differ between two starts of one run."""
        # the learning rate of every step of a schedule follows from how many epochs there are
        return _CHANGEABLE if self.schedule == "constant" else _CHANGEABLE - {"epochs"}

    @staticmethod
    def from_older(values: Mapping[str, Any]) -> dict[str, Any]:
        """A config file's values without the size of a checkpoint's files, which could be chosen once."""
        return {name: value for name, value in values.items() if name != "shard_megabytes"}
