"""Commands in processes of their own that end themselves, or wait, at a moment that no clock decides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SAFETY = 1800  # seconds: ends a test that hangs, never one that is slow
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
# SIGKILL as soon as something in a folder is opened, made, renamed or removed for the given time
PROGRAM = """
import os, signal, sys
from neural_em.cli import main

left, folder = int(sys.argv[1]), sys.argv[2]
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")

def watch(event, arguments):
    global left
    if event in EVENTS and isinstance(arguments[0], (str, os.PathLike)):
        left -= os.path.abspath(arguments[0]).startswith(folder)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
sys.argv[1:] = sys.argv[3:]
main()
"""


def run_killed(options: list[str], folder: Path, touches: int, place: Path | None = None) -> None:
    """Runs the command, which is killed when it touches the folder for the given time."""
    killed(["-c", PROGRAM, str(touches), str(folder), *options], place)


def killed(arguments: list[str], place: Path | None = None) -> None:
    """Runs a Python program that kills itself."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=place, capture_output=True, text=True, env=ENVIRONMENT, timeout=SAFETY,
        check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stdout, done.stderr)
