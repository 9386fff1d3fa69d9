"""What all tests share: visible skips where a machine lacks something, repeatable fuzzing, and a tiny experiment."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import neural_em
from neural_em.data import DataConfig, Dataset, load_split
from neural_em.model import ModelConfig, NeuralEM
from neural_em.training import TrainingConfig

os.environ.setdefault("MPLBACKEND", "Agg")  # also for the commands that tests start

collect_ignore: list[str] = []
try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a CUDA machine may lack it; no GPU test needs it, and the header says how many files are left out
    needs = re.compile(r"^from (hypothesis|tests\.hostile|tests\.test_config) ", re.MULTILINE)
    files = Path(__file__).parent.rglob("test_*.py")
    collect_ignore += [str(path) for path in files if needs.search(path.read_text(encoding="utf-8"))]
else:
    # the same cases on every run and no time limits: a busy machine must not fail a test
    slow = [HealthCheck.too_slow]
    settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=slow)
    settings.load_profile("repeatable")


def pytest_report_header() -> str:
    """Which package and which PyTorch is tested: the tree's or an installed wheel's."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU only"
    package = f"neural_em {neural_em.__version__} from {neural_em.__path__[0]}"
    left_out = f"; {len(collect_ignore)} files left out for want of hypothesis" if collect_ignore else ""
    return f"{package}; torch {torch.__version__}, {device}{left_out}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips by name what this machine cannot run."""
    missing = {}
    if not torch.cuda.is_available():
        missing["gpu"] = "no CUDA device"
    if find_chromium() is None:
        missing["browser"] = "no Chromium"
    for item in items:
        for mark, reason in missing.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome, if this machine has one."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser; only tests marked ``browser`` may ask for it."""
    path = find_chromium()
    assert path is not None
    return path


class Tiny(NamedTuple):
    """Model, data and settings of a run of a few small steps."""

    model: ModelConfig
    training: Dataset
    validation: Dataset
    config: TrainingConfig

    def build(self, seed: int = 0) -> NeuralEM:
        """A fresh model."""
        return NeuralEM(self.model, seed=seed)

    def with_(self, **changes: object) -> TrainingConfig:
        """The settings with changes."""
        return replace(self.config, **changes)


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    """Two shapes in 8 x 14 pixels, four frames, four steps an epoch."""
    torch.set_num_threads(1)
    data = DataConfig("flying-shapes", objects=2, frames=4, height=8, width=14, train_size=34, validation_size=10)
    model = ModelConfig(height=8, width=14, theta_size=5, convolutions=(3,), hidden=7)
    config = TrainingConfig(components=2, batch_size=8, epochs=3, engine="plain", tensorboard=False)
    return Tiny(model, load_split(data, "training", 0), load_split(data, "validation", 0), config)
