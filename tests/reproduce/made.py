"""Records as a reproduction makes them, made by hand."""

from __future__ import annotations

from typing import Any

from neural_em import config as configs
from neural_em.reproduce.records import TrainingRecord


def evaluated(last: float, score: str = "ami_max", mean: float = 0.5) -> dict[str, Any]:
    """What a record holds of one evaluation."""
    return {
        "last_step": {score: {"mean": last, "quartiles": [0, 0, 0]}},
        "mean_over_steps": {score: {"mean": mean, "quartiles": [0, 0, 0]}},
        "baselines": {"k-means": {score: {"mean": 0.25, "quartiles": [0, 0, 0]}}},
        "sequences": 10_000,
        "steps": 20,
        "curves": {},
    }


def trained(**changes: Any) -> dict[str, Any]:
    """What a record holds of one run."""
    run = {
        "finished": True, "stopped": "patience", "problem": None, "epochs": 83, "best_epoch": 73, "seconds": 5400.0,
        "warnings": [], "precision": "bf16", "device": "abacus", "commit": "0123456789abcdef", "torch": "2.13",
        "evaluations": {},
    }  # fmt: skip
    return {**run, **changes}


def record(name: str, *runs: dict[str, Any]) -> TrainingRecord:
    """What is kept of a training, as it is read from its file."""
    seeds = {str(seed): run for seed, run in enumerate(runs)}
    return configs.from_dict(TrainingRecord, {"format": 1, "training": name, "quick": False, "runs": seeds})


def row(page: str, *words: str) -> list[str]:
    """The cells of the one table row with these words."""
    (line,) = (line for line in page.splitlines() if line.startswith("|") and all(word in line for word in words))
    return [cell.strip() for cell in line.strip("|").split("|")]
