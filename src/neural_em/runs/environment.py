"""What a run was made with: versions, commit, device, command."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import neural_em
from neural_em.training import distributed

_PACKAGES = ("torch", "numpy", "scipy", "safetensors", "h5py", "triton")


def describe(device: torch.device, precision: str) -> dict[str, Any]:
    """Everything that may explain a difference between two runs."""
    program = Path(sys.argv[0])
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        # the program by its name alone: where it lies on this machine tells nobody anything
        "command": [program.parent.name if program.name == "__main__.py" else program.name, *sys.argv[1:]],
        "neural_em": neural_em.__version__,
        "commit": commit() or os.environ.get("NEM_COMMIT"),  # for a copy without its history
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "processes": distributed.world_size(),
        "precision": precision,
    }


@cache
def commit() -> str | None:
    """The commit of the checkout that the package runs from, marked where files were changed; None outside of one."""
    folder = Path(__file__).resolve().parent
    if (name := _git(folder, "rev-parse", "HEAD")) is None or _git(folder, "ls-files", "--", __file__) in (None, ""):
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return name + (" with changes" if changes else ", changes unknown" if changes is None else "")


def _git(folder: Path, *words: str) -> str | None:
    try:
        command = ["git", "--no-optional-locks", "-C", str(folder), *words]  # killed, it leaves no lock behind
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
