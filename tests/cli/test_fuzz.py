"""Command lines and run folders made up at random: success, or one line and exit status 2; never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from neural_em import NeuralEMError, cli
from neural_em.cli.app import app
from neural_em.evaluation import result_table
from neural_em.experiments.evaluation import Evaluation, stored
from neural_em.reproduce import TRAININGS
from neural_em.reproduce.records import collect, read_record, write_record
from neural_em.reproduce.results_page import cells, render
from neural_em.runs.evaluations import write_result
from neural_em.runs.find import find_runs
from tests import hostile

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
FIXTURES = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# what a command is given so that it is small enough to run, before what is made up
SMALL = {
    "train": [
        "--device", "cpu", "--epochs", "1", "--train-size", "8", "--batch-size", "4", "--max-minutes", "0.0001",
        "--run", "new", "--set", "data.frames=3", "--set", "data.validation_size=2", "--set", "model.theta_size=3",
        "--set", "model.convolutions=[2]", "--set", "model.hidden=3", "--set", "training.tensorboard=false",
    ],
    "data": ["--train-size", "2", "--validation-size", "1", "--test-size", "1", "--out", "new.h5"],
    "evaluate": ["run", "--size", "2", "--device", "cpu"],
    "figure": ["run", "--kind", "learning", "--device", "cpu"],
    "reproduce": ["--report", "--quick", "--device", "cpu"],
    "segment": ["frame.png", "--out", "new", "--model", "run", "--starts", "1", "--steps", "1", "--device", "cpu"],
    "models": [], "presets": [], "export": ["run", "--format", "none"], "demo": ["--out", "frame.png"],
}  # fmt: skip
# these would be done if they were asked for, and take long
LONG = {"--epochs", "--train-size", "--max-minutes", "--validation-size", "--test-size", "--seeds", "--mp4", "--gif"}

WORDS = (
    "flying-shapes", "static-shapes", "flying-mnist", "run", "new", "frame.png", "nowhere", "run/best.safetensors",
    "run/config.yaml", "best", "last", "test", "training", "cpu", "cuda", "cuda:99", "meta", "out.png", "none",
    "training.learning_rate=0.1", "model.height=1", "data.objects=0", "stages=[[a=b]]", "data.velocities=[9]",
)  # fmt: skip
# the commands really write: no word may name a place outside of the folder they run in
words = st.one_of(st.sampled_from(WORDS), hostile.texts.filter(lambda text: "/" not in text and ".." not in text))


class Ended(NamedTuple):
    """A command that has run."""

    status: int
    out: str
    errors: str


def nem(arguments: list[str]) -> Ended:
    """Runs the command in this process; whatever exception comes out of it fails the test."""
    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["nem", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
    out.flush(), errors.flush()
    written = [stream.buffer.getvalue().decode() for stream in (out, errors)]  # type: ignore[attr-defined]
    return Ended(int(end.value.code or 0), *written)


def answered(arguments: list[str]) -> None:
    """Asserts that the command was done, or refused as it should be."""
    ended = nem(arguments)
    assert ended.status in (0, 2), ended
    assert "Traceback" not in ended.errors
    if ended.status == 2:
        lines = ended.errors.splitlines()
        assert ended.errors.endswith("\n")
        assert lines[-1].startswith("nem: ")
        assert all(line.isprintable() for line in lines)
        assert len(lines) == 1, ended


def clear(place: Path) -> None:
    """Removes what a command made."""
    for path in place.iterdir():
        if path.name not in ("run", "frame.png"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command and options of its own or made up, with values good and bad."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    known = [option for param in COMMANDS[name].params for option in param.opts if option.startswith("--")]
    options = sorted(set(known) - LONG)
    made_up: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 5)):
            made_up.append(draw(st.sampled_from(options)) if options else "--x")
        made_up += [draw(words)] if draw(st.integers(0, 4)) else []
    first = [draw(words)] if draw(st.integers(0, 9)) == 0 else [name]
    positional = ["flying-shapes"] if name in ("train", "data") and draw(st.integers(0, 5)) else []
    return [*first, *positional, *SMALL.get(name, ["--help"]), *made_up]


@pytest.fixture
def place(trained_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a trained run and a picture, in which the commands run."""
    shutil.copytree(trained_once / "seed-0", tmp_path / "run")
    Image.fromarray(np.zeros((14, 16), np.uint8)).save(tmp_path / "frame.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NEM_MNIST", str(Path(__file__).parents[1] / "data" / "mnist"))
    yield tmp_path
    assert not list(tmp_path.glob("**/*.partial"))


WORST = ("", "x" * 5000, "\udcff", "a\nb\x1b[2J", "9" * 30, "nan")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_every_command(name: str, place: Path) -> None:
    """With each of the worst words as its value."""
    parameters = COMMANDS[name].params
    options = [option for each in parameters for option in each.opts if option.startswith("--") and not each.is_flag]
    positional = ["flying-shapes"] if name in ("train", "data") else []
    for word in WORST:
        answered([name, word])
        for option in options:
            if (name, option) != ("demo", "--out"):  # which would be done, and takes long
                answered([name, *positional, *SMALL.get(name, []), option, word])
                clear(place)


@settings(max_examples=200, **FIXTURES)
@given(arguments=lines())
def test_command_lines(arguments: list[str], place: Path) -> None:
    before = set(place.parent.iterdir())
    answered(arguments)
    assert set(place.parent.iterdir()) == before  # nothing was written above the folder
    clear(place)


def refused_or(use: Any) -> None:
    """Runs it; the project's own error in one line will do."""
    try:
        use()
    except NeuralEMError as error:
        if not str(error).isprintable():
            pytest.fail(f"not one line: {error!r}")


def look_at(folder: Path) -> None:
    """All that the commands read of a run folder."""
    for run in find_runs([folder]).runs:
        assert all(note.isprintable() for note in run.notes)
        said = (run.record.stopped, run.record.problem, *run.record.warnings, run.start.device, run.start.commit)
        assert all(text is None or text.isprintable() for text in said)
        assert run.record.epochs is None or 0 <= run.record.epochs < 2**62
        refused_or(lambda: [float(row["epoch"]) for row in run.metrics])  # noqa: B023
        result = stored(run, Evaluation(size=2))
        if result is not None:
            result_table(result)
            list(result.rows())
            result.examples()


@pytest.fixture
def scored(place: Path) -> Path:
    """The run, evaluated."""
    from neural_em.experiments.evaluation import Evaluator

    (run,) = find_runs([place / "run"]).runs
    result = Evaluator("cpu").result(run, Evaluation(size=2))
    write_result(result, place / "run" / "evaluations", Evaluation(size=2).name(run))
    assert stored(run, Evaluation(size=2)) is not None
    return place / "run"


def look_at_it_with(path: Path, content: bytes, run: Path) -> None:
    """Everything that reads a run folder, with another content in one of its files."""
    good = path.read_bytes()
    path.write_bytes(content)
    try:
        refused_or(lambda: look_at(run))
    finally:
        path.write_bytes(good)


@settings(max_examples=400, **FIXTURES)
@given(data=st.data())
def test_what_a_run_folder_says_of_itself(data: st.DataObject, scored: Path) -> None:
    """Summary, starts and stored scores that are other things than they should be."""
    (name,) = (path.name for path in (scored / "evaluations").glob("*.json"))
    path = scored / data.draw(st.sampled_from(["summary.json", "environment.json", f"evaluations/{name}"]))
    other = data.draw(hostile.changed(json.loads(path.read_bytes()), changes=3))
    look_at_it_with(path, json.dumps(other).encode(), scored)


@settings(max_examples=300, **FIXTURES)
@given(data=st.data())
def test_files_of_a_run_folder_byte_by_byte(data: st.DataObject, scored: Path) -> None:
    (name,) = (path.name for path in (scored / "evaluations").glob("*.json"))
    files = ["summary.json", "environment.json", "metrics.csv", "metrics.csv", f"evaluations/{name}", "config.yaml"]
    path = scored / data.draw(st.sampled_from(files))
    good = path.read_bytes()
    look_at_it_with(path, data.draw(hostile.damaged(good, len(good))), scored)


@settings(max_examples=300, **FIXTURES)
@given(data=st.data())
def test_checkpoints_that_say_other_things(data: st.DataObject, place: Path) -> None:
    """Going on from a stranger's checkpoint ends in one line or trains; it writes nowhere else."""
    from neural_em.runs import checkpoint

    (path,) = (place / "run" / "checkpoints").iterdir()
    state = path / "state.json"
    good = state.read_bytes()
    state.write_text(json.dumps(data.draw(hostile.changed(json.loads(good), changes=3))), encoding="utf-8")
    try:
        refused_or(lambda: checkpoint.read(path))
    finally:
        state.write_bytes(good)


@pytest.fixture
def record(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """What is kept of two runs of a training, as ``nem reproduce`` keeps it."""
    scores = {
        "ami_max": {"mean": 0.5, "quartiles": [0.4, 0.5, 0.6]},
        "upper_bound": {"mean": 1.5, "quartiles": [1, 1, 2]},
    }
    evaluation = {
        "last_step": scores, "mean_over_steps": scores, "whole_sequence": scores, "baselines": {"k-means": scores},
        "curves": {"ami_max": {"mean": [0.1, 0.5], "lower_quartile": [0, 0.4], "upper_quartile": [0.2, 0.6]}},
        "sequences": 10, "steps": 2, "components": 4, "note": "", "unscored_sequences": 0, "options": "",
    }  # fmt: skip
    run = {
        "finished": True, "stopped": "patience", "problem": None, "epochs": 8, "best_epoch": 7, "seconds": 5.0,
        "warnings": ["binding failure"], "device": "abacus", "commit": "0123456789abcdef", "torch": "2.13",
        "evaluations": {"test": evaluation},
    }  # fmt: skip
    path = tmp_path / "static-shapes.json"
    return path, {"format": 1, "training": "static-shapes", "quick": False, "runs": {"0": run, "1": run}}


@settings(max_examples=300, **FIXTURES)
@given(data=st.data())
def test_records_of_earlier_runs(data: st.DataObject, record: tuple[Path, dict[str, Any]]) -> None:
    path, good = record
    path.write_text(json.dumps(data.draw(hostile.changed(good, changes=3))), encoding="utf-8")

    def use() -> None:
        training = TRAININGS["static-shapes"]
        found = collect(training, path.parent / "no-runs", read_record(path, training))
        write_record(path.parent / "again.json", found)
        render(cells({"static-shapes": found}), {"static-shapes": found}, Path("runs"))

    refused_or(use)
