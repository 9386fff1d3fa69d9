"""What an evaluation makes of a run's own data."""

from __future__ import annotations

from pathlib import Path

import pytest

from neural_em.experiments import build
from neural_em.experiments.evaluation import Evaluation
from neural_em.runs.find import TrainedRun


@pytest.mark.parametrize(
    ("preset", "changes", "objects", "wanted"),
    [
        ("bouncing-balls", [], 6, (6, 8)),
        ("bouncing-balls", [], 9, (9, None)),  # more than in training: exactly so many
        ("bouncing-balls", ["data.most_objects=4"], 6, (6, None)),  # trained with exactly four
        ("bouncing-balls", ["data.most_objects=4"], 3, (3, None)),
        ("flying-shapes", [], 4, (4, None)),
    ],
)
def test_how_many_objects_are_meant(
    preset: str, changes: list[str], objects: int, wanted: tuple[int, int | None]
) -> None:
    """At least so many, where the model was trained with a range that has them."""
    run = TrainedRun("one", build(preset, changes), Path("best.safetensors"))
    data = Evaluation(objects=objects).data_config(run)
    assert (data.objects, getattr(data, "most_objects", None)) == wanted
