"""``nem train`` as a user meets it: real processes, killed and resumed, and every mistake answered in one line."""

from __future__ import annotations

import csv
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import neural_em
from neural_em.cli import main
from tests.processes import ENVIRONMENT, SAFETY, run_killed

TINY = [
    "train", "flying-shapes", "--device", "cpu", "--objects", "2", "--components", "2", "--train-size", "32",
    "--batch-size", "8", "--set", "data.frames=4", "--set", "data.height=8", "--set", "data.width=14",
    "--set", "data.validation_size=10", "--set", "model.theta_size=5", "--set", "model.convolutions=[3]",
    "--set", "model.hidden=7", "--set", "training.tensorboard=false",
]  # fmt: skip
STAGED = ["--set", "stages=[[training.learning_rate=0.01],[training.learning_rate=0.001]]"]
SAVING = ["--set", "training.patience=20", "--set", "training.checkpoint_seconds=1e-9"]  # a checkpoint after every step


def _run(options: list[str], limit: Callable[[], None] | None = None) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the real command."""
    command = [sys.executable, "-m", "neural_em", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env=ENVIRONMENT, preexec_fn=limit, timeout=SAFETY, check=False
    )
    return done.returncode, done.stdout, done.stderr


def _run_here(options: list[str]) -> None:
    """The same without a process of its own, which takes seconds to start."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["nem", *options])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code in (0, None)


def _refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    """The one line on standard error of a command that is refused with exit status 2."""
    monkeypatch.setattr(sys, "argv", ["nem", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    assert errors.startswith("nem: ")
    assert errors.count("\n") == 1
    return errors


def _left(path: Path) -> dict[str, object]:
    """All that equal runs must agree on: weights to the byte, metrics but for the time."""
    found: dict[str, object] = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.safetensors")
                                if "checkpoints" not in file.parts}  # fmt: skip
    for file in path.rglob("metrics.csv"):
        rows = list(csv.DictReader(file.open()))
        found[str(file.relative_to(path))] = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
    return found


def _steps_done(path: Path) -> int:
    """Steps up to the newest checkpoints of all runs in a folder."""
    folders = [
        path / "checkpoints",
        *(path / name / "checkpoints" for name in ("seed-0", "seed-1", "stage-1", "stage-2")),
    ]
    names = [os.listdir(folder) if folder.exists() else [] for folder in folders]
    return sum(max((int(name.split("-")[1]) for name in each if name[0] == "s"), default=0) for each in names)


def _kill_and_resume(
    tmp_path: Path, options: list[str], kills: int, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed so often at random moments, then left alone: the same end as a run that was left alone from the start."""
    chance, path = random.Random(seed), tmp_path / "killed"
    _run_here([*options, "--run", str(tmp_path / "whole")])
    for _ in range(kills):  # a start touches ten files, an epoch of four checkpoints fifty-five
        run_killed([*options, "--run", str(path)], path, chance.randrange(1, 100))
    assert 0 < _steps_done(path) < _steps_done(tmp_path / "whole")
    _run_here([*options, "--run", str(path)])
    assert "resumes" in capsys.readouterr().out
    whole = _left(tmp_path / "whole")
    assert len(whole) >= 3
    assert _left(path) == whole


def test_killed_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL at three random moments of the real command."""
    _kill_and_resume(tmp_path, [*TINY, *SAVING, "--epochs", "6"], kills=3, seed=0, capsys=capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "kills"), [([], 10), (["--seeds", "2"], 6), (STAGED, 6)], ids=["single", "seeds", "staged"]
)
def test_killed_many_times_and_resumed(
    tmp_path: Path, extra: list[str], kills: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """At random moments, with one model, with several, and in stages."""
    _kill_and_resume(tmp_path, [*TINY, *SAVING, "--epochs", "20", *extra], kills=kills, seed=1, capsys=capsys)


# waits after the second step until somebody writes a line
HELD = """
import sys
from neural_em.cli import main
from tests.processes import ENVIRONMENT, SAFETY, run_killed
from neural_em.training.loop import Run

watch = Run._watch

def held(run):
    if (run.progress.epoch, run.progress.step) == (1, 2):
        print("held", flush=True)
        sys.stdin.readline()
    watch(run)

Run._watch = held
main()
"""


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    """The step is finished, everything is saved, and what it says works."""
    options = [*TINY, *SAVING, "--epochs", "3", "--run", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert process.stdout is not None
    assert "held\n" in iter(process.stdout.readline, "")
    second = _run(options)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate("go on\n", timeout=SAFETY)
    assert second[0] == 2
    assert "another process is training in this run folder" in second[2]
    assert process.returncode == 130
    assert "stopped: interrupted" in out
    assert out.rstrip().endswith(f"resume with: nem train --resume --run {tmp_path / 'run'}")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == "interrupted"
    assert _steps_done(tmp_path / "run") == 6  # four of the first epoch, two of the second
    neural_em.load(tmp_path / "run" / "last.safetensors")
    _run_here(["train", "--resume", "--run", str(tmp_path / "run")])
    _run_here([*options[:-1], str(tmp_path / "whole")])
    assert _left(tmp_path / "run") == _left(tmp_path / "whole")


def test_more_epochs_for_a_run_in_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the preset or without it: they hold in the last stage, and the other one stays as it is."""
    options = ["--set", "stages=[[training.epochs=1],[training.epochs=1]]", "--run", str(tmp_path)]
    _run_here([*TINY, *options])
    for words in (["train", "--resume", "--run", str(tmp_path)], [*TINY, *options[2:], "--set", "stages=[[],[]]"]):
        epochs = _steps_done(tmp_path) // 4  # of both stages, four steps each
        _run_here([*words, "--epochs", str(epochs)])
        assert f"stage-2: epoch {epochs}/{epochs}" in capsys.readouterr().out
        assert _steps_done(tmp_path) // 4 == epochs + 1


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """One clear error, the last epoch still there, and with room again the run goes on."""
    options = [*TINY, "--run", str(tmp_path / "run")]
    _run_here([*options, "--epochs", "1"])
    before = _left(tmp_path / "run")
    size = (tmp_path / "run" / "best.safetensors").stat().st_size

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * size, 2 * size))

    status, _, errors = _run([*options, "--epochs", "2"], limit)
    assert status == 2
    assert "cannot be written: File too large" in errors
    assert errors.count("\n") == 1
    assert _left(tmp_path / "run") == before
    assert not list(tmp_path.rglob("*.partial"))
    _run_here([*options, "--epochs", "2"])
    _run_here([*TINY, "--run", str(tmp_path / "whole"), "--epochs", "2"])
    assert _left(tmp_path / "run") == _left(tmp_path / "whole")


def test_from_start_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains, stops in time, goes on, says that it is finished, and refuses another config."""
    monkeypatch.chdir(tmp_path)

    def nem(*options: str) -> str:
        _run_here([*TINY, *options])
        return capsys.readouterr().out

    first = nem("--epochs", "2", "--max-minutes", "1e-9")
    assert "time limit reached" in first
    assert "resume with: nem train --resume --run runs/flying-shapes-" in first
    assert "epoch 2/2: loss" in nem("--epochs", "2")
    assert "this run is finished" in nem("--epochs", "2")
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith("-seed0")
    neural_em.load(run / "best.safetensors")
    message = _refused(capsys, monkeypatch, *TINY, "--run", str(run), "--set", "training.learning_rate=0.01")
    assert "training.learning_rate=0.001" in message
    assert "training.learning_rate=0.01" in message
    message = _refused(capsys, monkeypatch, *TINY, "--run", str(run), "--seeds", "2")
    assert "got a single run" in message
    best = (run / "best.safetensors").read_bytes()
    shutil.rmtree(run / "checkpoints")  # what is left must not be written over by a run from the start
    message = _refused(capsys, monkeypatch, "train", "--resume", "--run", str(run))
    assert "this run's checkpoints are missing; choose another --run" in message
    assert (run / "best.safetensors").read_bytes() == best


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["flying-shape"], "did you mean 'flying-shapes'?"),
        (["flying-shapes", "--set", "training.epoch=3"], "did you mean 'epochs'?"),
        (["flying-shapes", "--set", "trainning.epochs=3"], "did you mean 'training'?"),
        (["flying-shapes", "--set", "training.epochs=many"], "training.epochs: expected an integer, got 'many'"),
        (["flying-shapes", "--set", "training"], "override: expected name=value, got 'training'"),
        (["flying-shapes", "--epochs", "0"], "training.epochs: expected an integer >= 1, got 0"),
        (["flying-shapes", "--components", "0"], "training.components: expected an integer >= 1, got 0"),
        (["flying-shapes", "--objects", "900"], "objects: expected"),
        (["flying-shapes", "--batch-size", "-1"], "training.batch_size: expected an integer >= 1, got -1"),
        (["flying-shapes", "--train-size", "0"], "train_size: expected"),
        (["flying-shapes", "--precision", "float8"], "training.precision: expected one of"),
        (["flying-shapes", "--device", "abacus"], "device: expected auto, cpu, cuda or cuda:N, got 'abacus'"),
        (["flying-shapes", "--seed", str(2**63)], f"training.seed: expected an integer from 0 to {2**63 - 1}, got"),
        (["flying-shapes", "--seeds", "0"], "seeds: expected an integer from 1 to 1000, got 0"),
        (["flying-shapes", "--max-minutes", "0"], "max-minutes: expected a number above 0, got 0"),
        (["flying-shapes", "--data", "/no/such/file"], "/no/such/file"),
        (
            ["flying-shapes", "--data", "/no/such/file", "--objects", "3"],
            "objects is for generated data; leave it out",
        ),
        (["flying-shapes", "--masks", "/no/such/file"], "--masks needs --data"),
        (["flying-shapes", "--resume"], "expected a run folder to resume, got nothing there"),
        (["--resume", "--run", "/no/such/run"], "/no/such/run: expected a run folder to resume"),
        (["--run", "somewhere"], "nem train: expected a preset"),
        (["--resume", "--run", "here", "--from", "flying-shapes"], "--from needs a preset; leave it out"),
        (["flying-shapes", "--from", "flying-shape"], "model: expected a shipped model (bouncing-balls, "),
        (["flying-shapes", "--from", "~nobody-of-that-name/run"], "model: expected a shipped model"),
        (["flying-shapes", "--data", "~nobody-of-that-name/clips"], "~nobody-of-that-name/clips"),
        (["flying-shapes", "--from", "flying-mnist"], "weights: expected those of a model with height 28, width 28"),
        (["flying-mnist", "--set", "data.mnist=/no/such/folder"], "/no/such/folder"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    options: list[str], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With the right name where there is a near one; nothing is left behind that could be taken for a run."""
    monkeypatch.chdir(tmp_path)
    assert message in _refused(capsys, monkeypatch, "train", *options)
    assert not list(tmp_path.rglob("checkpoints"))


def test_an_unwritable_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run folder below a file."""
    (tmp_path / "file").write_text("")
    message = _refused(capsys, monkeypatch, *TINY, "--run", str(tmp_path / "file" / "run"))
    assert "cannot be written: Not a directory" in message


def test_presets_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the paper's, one line each; all fields of one."""
    for options, parts in (
        (["presets"], ["static-shapes ", "static-shapes-nem", "flying-shapes", "flying-mnist ", "flying-mnist-staged"]),
        (["presets", "flying-mnist-staged"], ["learning_rate: 0.0005", "data.digits=20", "patience: 10"]),
        (
            ["train", "--help"],
            [
                "--objects",
                "--max-minutes",
                "(50000; static-",
                "(500, some presets fewer)",
                "(64, balls 16, Tagger 100)",
            ],
        ),
    ):
        _run_here(options)
        out = capsys.readouterr().out
        for part in parts:
            assert part in out
    assert "did you mean 'flying-mnist'?" in _refused(capsys, monkeypatch, "presets", "flying-mnits")


@pytest.mark.slow
def test_static_shapes_learn(tmp_path: Path) -> None:
    """Three epochs of 2,048 images: validation loss falls each epoch, and the run folder loads."""
    options = ["--epochs", "3", "--train-size", "2048", "--seed", "0", "--device", "cpu", "--run", str(tmp_path)]
    status, _, errors = _run(["train", "static-shapes", *options])
    assert status == 0, errors
    losses = [float(row["validation_loss"]) for row in csv.DictReader((tmp_path / "metrics.csv").open())]
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]
    model = neural_em.load(tmp_path / "best.safetensors")
    assert (model.config.theta_size, model.config.height) == (250, 28)
