"""Run folders from strangers: links that lead elsewhere, weights that are others', metrics that nobody measured."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neural_em import NeuralEMError
from neural_em.experiments import PRESETS
from neural_em.runs.folder import RunFolder
from neural_em.runs.record import read_metrics

Run = Callable[..., Any]
GO_ON = ["train", "--resume", "--device", "cpu", "--epochs", "3"]


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a folder, with its content."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Somebody's own folder, with things in it that a run folder has too."""
    folder = tmp_path / "elsewhere"
    (folder / "step-00000001").mkdir(parents=True)
    (folder / ".step-00000001.7.partial").mkdir()
    for name in ("diary.txt", "step-00000001/state.json", ".step-00000001.7.partial/thesis.txt"):
        (folder / name).write_text("mine\n")
    return folder


@pytest.mark.parametrize("name", ["checkpoints", "evaluations", "figures", "tensorboard"])
def test_a_folder_that_is_a_link_is_refused(name: str, refused: Run, trained: Path, elsewhere: Path) -> None:
    run = trained / "seed-0"
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).symlink_to(elsewhere)
    before = snapshot(elsewhere)
    for command in (["evaluate", run, "--size", 2], ["figure", run, "--kind", "learning"], [*GO_ON, "--run", run]):
        assert "expected a folder of its own, got a link" in refused(*command)
    assert snapshot(elsewhere) == before


def test_a_seed_that_is_a_link_is_refused_and_left_out(
    run_nem: Run, refused: Run, trained: Path, elsewhere: Path
) -> None:
    shutil.move(trained / "seed-1", elsewhere / "theirs")
    (trained / "seed-1").symlink_to(elsewhere / "theirs")
    before = snapshot(elsewhere)
    ended = run_nem("evaluate", trained, "--size", 2)
    assert ended.status == 0
    assert "seed-1: expected a folder of its own, got a link" in ended.errors
    assert "got a link" in refused(*GO_ON, "--run", trained)
    assert snapshot(elsewhere) == before


@pytest.mark.parametrize("name", ["log.txt", ".lock"])
def test_a_file_that_is_a_link_is_not_written_through(name: str, refused: Run, trained: Path, elsewhere: Path) -> None:
    """These two are opened, not replaced."""
    run = trained / "seed-0"
    (run / name).unlink()
    (run / name).symlink_to(elsewhere / "diary.txt")
    before = snapshot(elsewhere)
    assert "cannot be written" in refused(*GO_ON, "--run", run)
    assert snapshot(elsewhere) == before


def test_files_that_are_links_are_replaced(run_nem: Run, trained: Path, elsewhere: Path) -> None:
    """What is written whole takes the link's place; and so it does where somebody guessed the temporary name."""
    run = trained / "seed-0"
    for name in ("metrics.csv", "summary.json", "last.safetensors", "environment.json"):
        shutil.move(run / name, elsewhere / name)
        (run / name).symlink_to(elsewhere / name)
        (run / f".{name}.{os.getpid()}.partial").symlink_to(elsewhere / "diary.txt")
    before = snapshot(elsewhere)
    assert run_nem(*GO_ON, "--run", run).status == 0
    assert snapshot(elsewhere) == before
    assert not any(path.is_symlink() for path in run.iterdir())
    assert len(read_metrics(run)) == 3


def test_a_pickle_as_a_checkpoint_is_not_run(refused: Run, trained: Path, tmp_path: Path) -> None:
    import torch

    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    (step,) = (trained / "seed-0" / "checkpoints").iterdir()
    for file in step.iterdir():
        torch.save({"x": Bomb()}, file)
    assert "no checkpoint can be read" in refused(*GO_ON, "--run", trained / "seed-0")
    assert not (tmp_path / "exploded").exists()


def test_weights_of_another_run_are_named(run_nem: Run, trained: Path) -> None:
    """They fit, so they are evaluated; but whoever reads the score is told."""
    run, other = trained / "seed-0", trained / "seed-1"
    told = "best.safetensors is not the file that this run wrote"
    ended = run_nem("evaluate", run, "--size", 2)
    assert (ended.status, told in ended.out) == (0, False)
    shutil.copy(other / "best.safetensors", run / "best.safetensors")
    ended = run_nem("evaluate", run, "--size", 2)
    assert (ended.status, told in ended.out) == (0, True)
    (result,) = (run / "evaluations").glob("test*.json")
    assert told in json.loads(result.read_text())["note"]
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "stopped": None, "finished": False}))
    assert told not in run_nem("evaluate", run, "--size", 2).out  # a run that goes on may have written newer ones


GOOD = "epoch,steps,loss,validation_loss,binding,best\n1,4,0.5,0.6,,True\n2,8,0.4,,uniform,False\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("0.4", "lots"), "line 3: loss: expected a finite number, got 'lots'"),
        (GOOD.replace("0.6", "nan"), "line 2: validation_loss: expected a finite number, got 'nan'"),
        (GOOD.replace("2,8", "1,8"), "line 3: epoch: expected an integer above 1, got '1'"),
        (GOOD.replace("2,8", "-2,8"), "line 3: epoch: expected an integer above 1, got '-2'"),
        (GOOD.replace("2,8", f"{'9' * 5000},8"), "line 3: epoch: expected a"),
        (GOOD.replace(",uniform", ""), "line 3: expected as many cells as the first line has"),
        (GOOD.replace(",uniform", ",uniform,,,"), "line 3: expected as many cells as the first line has"),
        (GOOD.replace("epoch,", "era,"), "line 2: epoch: expected an integer above 0, got ''"),
        (GOOD.encode() + b"\xff\xfe", "cannot be read"),
        (GOOD + "3,12,\0,,,\n", "metrics.csv: "),
    ],
)
def test_damaged_metrics_are_not_drawn(text: str | bytes, words: str, refused: Run, trained: Path) -> None:
    (trained / "seed-0" / "metrics.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused("figure", trained / "seed-0", "--kind", "learning")
    assert "metrics.csv" in message
    assert words in message


def test_good_metrics_of_any_columns_are_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(GOOD.replace("binding", "colour"))
    rows = read_metrics(tmp_path)
    assert [(row["epoch"], row["loss"], row["validation_loss"]) for row in rows] == [(1, "0.5", "0.6"), (2, "0.4", "")]
    assert read_metrics(tmp_path / "nowhere") == []


def test_a_link_among_the_stages_is_refused(tmp_path: Path, elsewhere: Path) -> None:
    RunFolder(tmp_path / "run", PRESETS["flying-mnist-staged"], parts=True).close()
    (tmp_path / "run" / "stage-1").symlink_to(elsewhere)
    with pytest.raises(NeuralEMError, match="stage-1: expected a folder of its own, got a link"):
        RunFolder(tmp_path / "run", PRESETS["flying-mnist-staged"], parts=True)
