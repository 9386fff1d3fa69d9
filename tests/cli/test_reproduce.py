"""``nem reproduce`` at toy size: does what is missing, goes on where it stopped, and marks what is not there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from neural_em.reproduce import COMPARISONS, NUMBERS, TRAININGS
from neural_em.training import loop

Run = Callable[..., Any]
RUNS, PAGE = Path("runs/quick"), Path("runs/quick/results/reproduction.md")
MNIST = Path(__file__).parents[1] / "data" / "mnist"
QUICK = ("reproduce", "--quick", "--device", "cpu")


def cells() -> dict[tuple[str, str, str], dict[str, Any]]:
    found = json.loads(PAGE.with_suffix(".json").read_text(encoding="utf-8"))["cells"]
    return {(c["paper"]["training"], c["paper"]["evaluation"], c["paper"]["score"]): c for c in found}


def stamps(pattern: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in RUNS.glob(pattern)}


def test_it_goes_on_where_it_stopped(run_nem: Run) -> None:
    ended = run_nem(*QUICK, "static-shapes", "--seeds", 1)
    assert ended.status == 0, ended.errors
    key = ("static-shapes", "test", "ami_max")
    assert cells()[key]["seeds"] == ["0"]
    before = stamps("*/seed-0/**/*.*")
    ended = run_nem(*QUICK, "static-shapes", "--seeds", 2)  # one more joins
    assert ended.status == 0, ended.errors
    assert cells()[key]["seeds"] == ["0", "1"]
    assert cells()[key]["last_step"]["count"] == 2
    trained = {path: stamp for path, stamp in before.items() if path.suffix == ".safetensors"}
    assert trained
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    (RUNS / "static-shapes" / "seed-1" / "evaluations" / "test.json").unlink()
    before = stamps("*/seed-0/evaluations/*")
    ended = run_nem(*QUICK, "static-shapes")
    assert "seed-1: test" in ended.out
    assert "seed-0" not in ended.out
    assert "training" not in ended.out
    assert stamps("*/seed-0/evaluations/*") == before
    assert not Path("results").exists()


def test_a_stop_leaves_cells_missing_and_the_same_command_fills_them(run_nem: Run) -> None:
    ended = run_nem(*QUICK, "static-shapes-nem", "--max-minutes", 1e-9)
    assert ended.status == 0, ended.errors
    assert "the same command goes on" in ended.out
    key = ("static-shapes-nem", "test", "ami_max")
    assert cells()[key]["missing"]
    assert "stopped early: max-minutes" in PAGE.read_text(encoding="utf-8")
    assert run_nem(*QUICK, "static-shapes-nem").status == 0
    assert cells()[key]["last_step"]["count"] == 2
    assert "stopped early:" not in PAGE.read_text(encoding="utf-8")


def test_unfinished_runs_count_only_when_asked_for(run_nem: Run) -> None:
    assert run_nem(*QUICK, "static-shapes", "--seeds", 1).status == 0
    seed = RUNS / "static-shapes" / "seed-0"
    summary = json.loads((seed / "summary.json").read_text())
    (seed / "summary.json").write_text(json.dumps({**summary, "finished": False, "stopped": "max-minutes"}))
    shutil.rmtree(seed / "evaluations")
    shutil.rmtree(PAGE.parent)
    key = ("static-shapes", "test", "ami_max")
    assert run_nem(*QUICK, "--report").status == 0
    assert cells()[key]["missing"]
    assert run_nem(*QUICK, "static-shapes", "--seeds", 1, "--unfinished", "--max-minutes", 10**6).status == 0
    assert not cells()[key]["missing"]


def test_weights_that_changed_are_evaluated_anew(run_nem: Run) -> None:
    assert run_nem(*QUICK, "static-shapes").status == 0
    folder = RUNS / "static-shapes"
    shutil.copy(folder / "seed-1" / "best.safetensors", folder / "seed-0" / "best.safetensors")
    assert run_nem(*QUICK, "--report").status == 0
    assert cells()["static-shapes", "test", "ami_max"]["seeds"] == ["1"]  # the old score is not of these weights
    ended = run_nem(*QUICK, "static-shapes")
    assert "seed-0: test" in ended.out
    found = cells()["static-shapes", "test", "ami_max"]
    assert found["last_step"]["deviation"] == 0  # the same weights twice


def test_runs_with_other_settings_are_not_counted(run_nem: Run) -> None:
    assert run_nem(*QUICK, "static-shapes").status == 0
    path = RUNS / "static-shapes" / "seed-1" / "config.yaml"
    values = yaml.safe_load(path.read_text())
    values["training"]["learning_rate"] = 0.5
    path.write_text(yaml.safe_dump(values))
    assert run_nem(*QUICK, "--report").status == 0
    assert cells()["static-shapes", "test", "ami_max"]["seeds"] == ["0"]
    page = PAGE.read_text(encoding="utf-8")
    assert "seed 1: not counted, other settings: training.learning_rate=0.5 instead of 0.001" in page


def test_stages_may_have_epochs_of_their_own(run_nem: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEM_MNIST", str(MNIST))
    assert run_nem(*QUICK, "flying-mnist-staged", "--seeds", 1).status == 0
    path = RUNS / "flying-mnist-staged" / "seed-0" / "config.yaml"
    values = yaml.safe_load(path.read_text())
    for epochs, stage in enumerate(values["stages"], start=1):
        stage.append(f"training.epochs={epochs}")
    path.write_text(yaml.safe_dump(values))
    assert run_nem(*QUICK, "--report").status == 0
    key = ("flying-mnist-staged", "test", "ami_max")
    assert cells()[key]["seeds"] == ["0"]
    values["stages"][0].append("training.learning_rate=0.5")
    path.write_text(yaml.safe_dump(values))
    assert run_nem(*QUICK, "--report").status == 0
    assert cells()[key]["missing"]


def test_results_outlive_the_runs(run_nem: Run) -> None:
    assert run_nem(*QUICK, "static-shapes", "--seeds", 1, "--out", "kept").status == 0
    before = json.loads(Path("kept/reproduction.json").read_text())
    shutil.rmtree(RUNS)
    assert run_nem(*QUICK, "--report", "--out", "kept").status == 0
    assert json.loads(Path("kept/reproduction.json").read_text()) == before


def test_a_report_of_nothing(run_nem: Run) -> None:
    assert run_nem("reproduce", "--report").status == 0
    page = Path("results/reproduction.md").read_text(encoding="utf-8")
    assert page.count("*missing*") == len(NUMBERS) + 1  # and the sentence that explains it
    assert [path.name for path in sorted(Path("results").iterdir())] == ["reproduction.json", "reproduction.md"]


def test_one_that_cannot_be_done_does_not_hold_up_the_others(run_nem: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEM_MNIST", "/nowhere")
    ended = run_nem(*QUICK, "flying-mnist", "static-shapes", "--seeds", 1)
    assert ended.status == 2
    assert "1 of 2 trainings" in ended.errors
    assert "/nowhere" in ended.errors
    assert not cells()["static-shapes", "test", "ami_max"]["missing"]
    assert cells()["flying-mnist", "test", "ami_max"]["missing"]


def test_a_seed_that_meets_not_a_number_does_not_hold_up_the_others(
    run_nem: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = loop.Run._watch

    def spoilt(run: loop.Run) -> None:
        if run.name == "seed-1":
            run._losses.fill_(float("nan"))
        watch(run)

    monkeypatch.setattr(loop.Run, "_watch", spoilt)
    ended = run_nem(*QUICK, "static-shapes")
    assert ended.status == 2
    assert "1 of 2 runs failed" in ended.errors
    assert ended.errors.count("training loss at epoch 1") == 1
    assert cells()["static-shapes", "test", "ami_max"]["seeds"] == ["0"]
    assert "- static-shapes, seed 1: seed-1: training loss at epoch 1" in PAGE.read_text(encoding="utf-8")
    ended = run_nem(*QUICK, "static-shapes")  # nothing is left to do
    assert (ended.status, ended.out) == (0, f"{PAGE}\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["flying-shape-3-3"], "did you mean 'flying-shapes-3-3'?"),
        (["--quick", "--out", "results"], "out: expected a folder outside of results/"),
        (["--seeds", "0"], "seeds: expected an integer >= 1, got 0"),
        (["--max-minutes", "0"], "max-minutes: expected a number above 0"),
    ],
)
def test_mistakes_are_answered_in_one_line(refused: Run, options: list[str], words: str) -> None:
    assert words in refused("reproduce", *options)
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.slow
def test_everything_at_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every experiment end to end in one process; a second time there is nothing left to do."""
    environment = {**os.environ, "NEM_MNIST": str(MNIST)}
    command = [sys.executable, "-m", "neural_em", *QUICK]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    for key, cell in cells().items():
        assert cell["seeds"] == ["0", "1"], key
        assert cell["last_step"]["mean"] is not None
        assert cell["unfinished"] == []
    assert len(cells()) == len(NUMBERS) + len(COMPARISONS)
    page = PAGE.read_text(encoding="utf-8")
    assert "Toy size" in page
    assert page.count("*missing*") == 1
    pictures = {path.stem for path in (PAGE.parent / "figures").glob("*.png")}
    assert pictures == {"static-shapes", "static-shapes-nem", "flying-shapes", "flying-mnist", "bce", "curve"}
    assert all(f"figures/{name}.png" in page for name in pictures)
    assert {path.stem for path in (PAGE.parent / "runs").iterdir()} == set(TRAININGS)
    before = {path: stamp for path, stamp in stamps("**/*").items() if "results" not in path.parts}
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert again.stdout == f"{PAGE}\n"
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not (tmp_path / "results").exists()


def test_a_missing_mnist_is_said_once(run_nem: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEM_MNIST", str(Path.cwd()))  # a folder without digits
    ended = run_nem(*QUICK, "flying-mnist", "flying-mnist-staged", "--seeds", 1)
    assert ended.status == 2
    assert ended.out.count("MNIST's t10k") + ended.out.count("MNIST's train") == 1
    assert ended.out.count("MNIST is missing, as above") >= 1
    assert ended.errors.count("MNIST's") == 1
    assert "flying-mnist, flying-mnist-staged: " in ended.errors
