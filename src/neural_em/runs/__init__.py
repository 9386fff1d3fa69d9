"""All that is on disk about a run: its folder, checkpoints, records and evaluations, written and found again."""

from neural_em.runs.find import TrainedRun, find_runs
from neural_em.runs.fit import fit
from neural_em.runs.record import Record

__all__ = ["Record", "TrainedRun", "find_runs", "fit"]
