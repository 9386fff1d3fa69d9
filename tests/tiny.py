"""A training that takes a second, and what came of it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from neural_em.model import PRESETS
from neural_em.storage.weights import read

# one network of each kind: the others for colour differ from coloured-shapes in size alone
NETWORKS = [name for name in PRESETS if name not in ("coloured-digits", "tetrominoes", "sprites", "objects")]

TINY = [
    "data.frames=4", "data.height=8", "data.width=14", "data.objects=2", "data.train_size=32",
    "data.validation_size=10", "model.theta_size=5", "model.convolutions=[3]", "model.hidden=7",
    "training.batch_size=8", "training.components=2", "training.epochs=2", "training.engine=plain",
    "training.tensorboard=false",
]  # fmt: skip


def best_weights(path: Path) -> dict[str, Tensor]:
    """Those of a run folder."""
    return read(path / "best.safetensors")[2]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """To the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
