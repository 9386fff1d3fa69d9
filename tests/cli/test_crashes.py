"""Real processes that are killed, or that meet a full disk or a folder they may not write: what was good stays good."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import neural_em
from neural_em.data import DataConfig, load_split
from tests.processes import ENVIRONMENT, SAFETY, killed, run_killed

pytestmark = pytest.mark.slow
EXPORT = ["data", "flying-shapes", "--train-size", "1000", "--validation-size", "50", "--test-size", "50"]
QUICK = ["reproduce", "--quick", "--device", "cpu", "static-shapes", "static-shapes-nem", "--seeds", "1"]
# SIGKILL when so many bytes of the HDF5 file are written
KILLED_EXPORT = """
import os, signal, sys
from neural_em.cli import main
from neural_em.data import hdf5

left, write = int(sys.argv.pop(1)), hdf5._Target.write

def counted(target, data):
    global left
    left -= memoryview(data).nbytes
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(target, data)

hdf5._Target.write = counted
main()
"""
# leaves the process the owner's rights alone, even where it runs as root, and then runs the command
UNPRIVILEGED = """
import ctypes, struct
header, none = struct.pack("<Ii", 0x20080522, 0), bytes(24)
assert ctypes.CDLL(None, use_errno=True).syscall({number}, header, none) == 0
from neural_em.cli import main
main()
"""
CAPSET = {"x86_64": 126, "aarch64": 91}.get(os.uname().machine)


def run(options: list[str], folder: Path, limit: Callable[[], None] | None = None) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "neural_em", *options], cwd=folder, env=ENVIRONMENT, preexec_fn=limit, text=True,
        capture_output=True, timeout=SAFETY, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def one_line(ended: tuple[int, str, str]) -> str:
    """The line of a command that was refused."""
    status, _, errors = ended
    assert status == 2, ended
    assert errors.startswith("nem: "), errors
    assert errors.count("\n") == 1, errors
    return errors


def test_an_export_killed_at_random_moments(tmp_path: Path) -> None:
    """The file that was there before stays whole until the new one is; and the same command then makes that."""
    chance = random.Random(0)
    assert run(["data", "flying-shapes", "--seed", "7", "--train-size", "5", "--validation-size", "2", "--test-size",
                "2", "--out", "a.h5"], tmp_path)[0] == 0  # fmt: skip
    before = (tmp_path / "a.h5").read_bytes()
    whole = tmp_path / "whole"
    whole.mkdir()
    assert run([*EXPORT, "--out", "a.h5"], whole)[0] == 0
    size = (whole / "a.h5").stat().st_size

    for number in range(3):
        written = int(size * (number + chance.random()) / 4)
        killed(["-c", KILLED_EXPORT, str(written), *EXPORT, "--out", "a.h5"], tmp_path)
        assert (tmp_path / "a.h5").read_bytes() == before
        assert len(load_split(DataConfig("file", path=str(tmp_path / "a.h5")), "training", 0)) == 5
    assert run([*EXPORT, "--out", "a.h5"], tmp_path)[0] == 0
    with h5py.File(tmp_path / "a.h5") as ours, h5py.File(whole / "a.h5") as theirs:
        for split in ("training", "validation", "test"):
            assert np.array_equal(ours[f"{split}/features"][:], theirs[f"{split}/features"][:])
            assert np.array_equal(ours[f"{split}/groups"][:], theirs[f"{split}/groups"][:])


def cells(folder: Path) -> list[dict[str, object]]:
    """The numbers of the page, without the time that they took, nor the commit, which a developer may move on."""
    found = json.loads((folder / "runs/quick/results/reproduction.json").read_text())["cells"]
    for cell in found:
        for each in cell["runs"]:
            del each["seconds"], each["commit"]
    return found


def test_a_reproduction_killed_at_random_moments(tmp_path: Path) -> None:
    """The same command again and again comes to the same numbers as one that was left alone."""
    chance = random.Random(1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    status, _, errors = run(QUICK, whole)
    assert status == 0, errors
    for _ in range(3):  # it touches some three hundred files, a hundred of them where there is nothing left to do
        run_killed(QUICK, broken / "runs", chance.randrange(1, 100), broken)
        for path in broken.rglob("best.safetensors"):
            neural_em.load(path)
    status, _, errors = run(QUICK, broken)
    assert status == 0, errors
    assert cells(broken) == cells(whole)
    assert not list((broken / "runs/quick").glob("*/seed-0/.*.partial"))


@pytest.mark.parametrize(
    "options",
    [
        ["evaluate", "tiny/seed-0", "--size", "4"],
        ["export", "tiny/seed-0", "--format", "torch", "--out", "exported"],
        ["reproduce", "--quick", "--device", "cpu", "static-shapes", "--seeds", "1"],
    ],
    ids=lambda options: options[0],
)
def test_a_full_disk_is_one_line_and_leaves_nothing_half_done(options: list[str], trained: Path) -> None:
    """Training, data and segmentation have tests of their own."""
    folder = trained.parent
    before = {path for path in folder.rglob("*") if path.is_file()}
    ended = run(options, folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)))
    assert "File too large" in one_line(ended)
    left = {path for path in folder.rglob("*") if path.is_file()} - before
    assert not [path for path in left if ".partial" in str(path)]
    if options[0] != "reproduce":  # which begins a run folder with small files
        assert left == set()
    if options[0] == "evaluate":
        assert run(options, folder)[0] == 0  # with room again


@pytest.mark.skipif(CAPSET is None, reason="the number of the system call is not known here")
def test_a_folder_that_may_not_be_written(trained: Path) -> None:
    """One line, nothing changed; and when it may be written again, the work goes on."""
    folder = trained / "seed-0"
    code = UNPRIVILEGED.format(number=CAPSET)
    commands = [["train", "--resume", "--run", str(folder), "--epochs", "3"], ["evaluate", str(folder), "--size", "4"]]
    content = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        for options in commands:
            done = subprocess.run([sys.executable, "-c", code, *options], env=ENVIRONMENT, capture_output=True,
                                  text=True, check=False)  # fmt: skip
            assert "Permission denied" in one_line((done.returncode, done.stdout, done.stderr))
            assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == content
    finally:
        for path in folders:
            path.chmod(0o755)
    for options in commands:
        assert run(options, folder.parent)[0] == 0
    assert len((folder / "metrics.csv").read_text().splitlines()) == 4


def test_two_processes_at_once_on_one_folder(tmp_path: Path) -> None:
    """However close together they start, one trains and the other is refused, or both find it finished."""
    options = [
        "train", "static-shapes", "--device", "cpu", "--train-size", "256", "--epochs", "4", "--run", "run",
        "--set", "data.validation_size=64", "--set", "training.tensorboard=false",
    ]  # fmt: skip
    command = [sys.executable, "-m", "neural_em", *options]
    processes = [
        subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
        for _ in range(2)
    ]  # fmt: skip
    ended = [(process.communicate(timeout=SAFETY), process.returncode) for process in processes]
    assert sorted(status for _, status in ended)[0] == 0
    for (_, errors), status in ended:
        assert status in (0, 2)
        if status == 2:
            assert "another process is training in this run folder" in errors
            assert errors.count("\n") == 1
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 5
    neural_em.load(tmp_path / "run" / "best.safetensors")
