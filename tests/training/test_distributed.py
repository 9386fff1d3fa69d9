"""Several processes that train one model: the same as one process, and a clear end where one of them is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from neural_em.storage.weights import read
from neural_em.training import distributed
from tests.processes import SAFETY

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]  # a port of its own
OPTIONS = [
    "train", "flying-shapes", "--device", "cpu", "--objects", "2", "--components", "2", "--batch-size", "7",
    "--epochs", "1", "--set", "data.frames=4", "--set", "data.height=8", "--set", "data.width=14",
    "--set", "data.validation_size=10", "--set", "model.theta_size=5", "--set", "model.convolutions=[3]",
    "--set", "model.hidden=7", "--set", "training.tensorboard=false",
]  # fmt: skip
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def _started(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=SAFETY, check=False)


def _run(processes: int, *options: str) -> None:
    launch = TORCHRUN if processes == 2 else [sys.executable]
    done = _started(*launch, "-m", "neural_em", *OPTIONS, *options)
    assert done.returncode == 0, done.stderr


def _distance(a: Path, b: Path) -> float:
    first, second = (read(path / "last.safetensors")[2] for path in (a, b))
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def test_two_processes_follow_one(tmp_path: Path) -> None:
    """Float64, 25 + 25 steps of 7 samples (4 for one process, 3 for the other): weights and loss within 1e-9.

    Every step has its own number of components, gradients are clipped, and both go on with the optimizer of the first
    stage, which one reads.
    """
    stages = ["--set", "stages=[[], []]", "--set", "carry_optimizer=true", "--set", "training.components_range=[1,3]"]
    stages += ["--set", "training.clip=20"]
    options = ["--precision", "float64", "--train-size", "175", *stages, "--run-dir"]
    _run(1, *options, str(tmp_path / "one"))
    _run(2, *options, str(tmp_path / "two"))
    assert _distance(tmp_path / "one", tmp_path / "two") < 1e-9
    one, two = (json.loads((tmp_path / name / "summary.json").read_text())["last"] for name in ("one", "two"))
    assert one["steps"] == two["steps"] == 25
    for field in ("loss", "validation_loss", "ami_mean", "confidence"):
        assert one[field] == pytest.approx(two[field], rel=1e-9)


def test_only_the_first_process_reads_the_weights_to_begin_with(tmp_path: Path) -> None:
    """The other one has another home folder, without them, and gets them all the same."""
    options = ["--precision", "float64", "--train-size", "14", "--run-dir"]
    _run(1, *options, str(tmp_path / "home" / "first"))
    _run(1, *options, str(tmp_path / "one"), "--from", str(tmp_path / "home" / "first"))
    program = tmp_path / "program.py"
    program.write_text(f"""
import os
os.environ["HOME"] = {str(tmp_path / "home")!r} if os.environ["RANK"] == "0" else "/nowhere"
from neural_em.cli.app import main
main()
""")
    arguments = [*OPTIONS, *options, str(tmp_path / "two"), "--from", "~/first"]
    done = _started(*TORCHRUN, str(program), *arguments)
    assert done.returncode == 0, done.stderr
    assert _distance(tmp_path / "one", tmp_path / "two") < 1e-9


@pytest.mark.parametrize(
    ("first", "second", "stopped"),
    [("--max-minutes=99", "--max-minutes=1e-9", "max-minutes"), ("--max-minutes=1e-9", "signal", "interrupted")],
)
def test_all_processes_stop_for_the_same_reason(tmp_path: Path, first: str, second: str, stopped: str) -> None:
    """Their clocks are not started at the same moment; a request to stop counts for more than the time."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import os, sys
from neural_em.cli.app import main
from neural_em.training.stop import Stop
option = {(first, second)!r}[int(os.environ["RANK"])]
if option == "signal":
    Stop.reason = property(lambda stop: "interrupted")
else:
    sys.argv.append(option)
main()
""")
    arguments = [*OPTIONS, "--train-size", "70", "--run-dir", str(tmp_path / "run")]
    _started(*TORCHRUN, str(program), *arguments)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == stopped


def test_no_thread_of_the_group_is_left(tmp_path: Path) -> None:
    """Such a thread may free a tensor while the interpreter ends, which aborts the process."""
    script = tmp_path / "join.py"
    script.write_text("""
import os, time, torch
from neural_em.training import distributed

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
with distributed.joined(torch.device("cpu")):
    parameter = torch.nn.Parameter(torch.ones(1))
    torch.optim.Adam([parameter]).zero_grad()
    assert distributed.total(torch.ones(1)).item() == 2
    assert threads() > before
for _ in range(600):  # the system may list a thread for a moment after its end
    if threads() == before:
        break
    time.sleep(1)
assert threads() == before, (before, threads())
""")
    done = _started(*TORCHRUN, str(script))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_float32_losses_follow_too(tmp_path: Path) -> None:
    """To 1e-5 in loss over 10 steps."""
    _run(1, "--train-size", "70", "--run-dir", str(tmp_path / "one"))
    _run(2, "--train-size", "70", "--run-dir", str(tmp_path / "two"))
    one, two = (json.loads((tmp_path / name / "summary.json").read_text())["last"] for name in ("one", "two"))
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-5)


@pytest.mark.slow
def test_checkpoints_move_between_numbers_of_processes(tmp_path: Path) -> None:
    """One epoch with two processes, one with one, one with two: the same as three with one."""
    options = ["--precision", "float64", "--train-size", "70", "--run-dir"]
    for epochs, processes in ((1, 2), (2, 1), (3, 2)):
        _run(processes, *options, str(tmp_path / "moved"), "--epochs", str(epochs))
    _run(1, *options, str(tmp_path / "whole"), "--epochs", "3")
    assert _distance(tmp_path / "moved", tmp_path / "whole") < 1e-9


@pytest.mark.slow
def test_a_killed_worker_ends_the_job_clearly(tmp_path: Path) -> None:
    """The others say what happened and what to do; the run goes on to the same end as an undisturbed one."""
    saving = ["--set", "training.checkpoint_seconds=1e-9"]  # after every step
    options = ["--precision", "float64", "--train-size", "350", *saving, "--run-dir"]
    program = tmp_path / "program.py"
    program.write_text("""
import os, signal
from neural_em.cli.app import main
from neural_em.training.loop import Run

watch = Run._watch

def killed(run):
    if os.environ["RANK"] == "1" and run.progress.step == 25:
        os.kill(os.getpid(), signal.SIGKILL)
    watch(run)

Run._watch = killed
main()
""")
    job = _started(*TORCHRUN, str(program), *OPTIONS, *options, str(tmp_path / "killed"))
    assert job.returncode != 0
    assert "another process of this job ended" in job.stderr
    assert "run the same command again" in job.stderr
    _run(2, *options, str(tmp_path / "killed"))
    _run(1, *options, str(tmp_path / "whole"))
    assert _distance(tmp_path / "killed", tmp_path / "whole") < 1e-9


def test_parts_are_those_of_tensor_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the numbers, each sample belongs to one process."""
    for count, processes in ((64, 4), (7, 2), (10, 3), (2, 5)):
        monkeypatch.setattr(distributed, "world_size", lambda n=processes: n)
        for rank, part in enumerate(torch.tensor_split(torch.arange(count), processes)):
            monkeypatch.setattr(distributed, "rank", lambda r=rank: r)
            assert torch.arange(count)[distributed.part(count)].tolist() == part.tolist()


def test_one_process_needs_no_others() -> None:
    """Every function works alone."""
    device = torch.device("cpu")
    assert distributed.is_first()
    assert distributed.largest(3, device) == 3
    assert distributed.from_first(lambda: {"a": [1, None]}, device) == {"a": [1, None]}
    assert distributed.total(torch.ones(2)).tolist() == [1.0, 1.0]
