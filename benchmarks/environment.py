"""Where and with what a measurement was made, so that it can be compared and repeated."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Commit, date, device, threads and versions."""
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _processor(),
        "gpus": torch.cuda.device_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
    }


def commit() -> str:
    """The commit of the working tree, with ``+changes`` where files differ; ``NEM_COMMIT`` where there is no git."""
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("NEM_COMMIT", "unknown")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
