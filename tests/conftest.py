"""What all tests share: visible skips where a machine lacks something, and repeatable fuzzing."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import torch

import neural_em

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
