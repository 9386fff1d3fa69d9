"""What comes out of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from neural_em.model import Model
from neural_em.training.state import SETTLED, Progress
from neural_em.training.validation import BINDING_FAILURES

NOT_A_NUMBER = "not-a-number"


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
        return warnings(self.progress)


def warnings(progress: Progress) -> list[str]:
    """Binding failures of the epoch whose weights are the result."""
    row = progress.best_row
    if row is None or not row.binding:
        return []
    count = sum(bool(other.binding) for other in progress.rows)
    what = BINDING_FAILURES.get(row.binding, row.binding)
    when = f"at the best epoch, {row.epoch} (failures in {count} of {len(progress.rows)} epochs)"
    return [f"binding failure: {what} {when}"]
