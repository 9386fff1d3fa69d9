"""What is kept of a run, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neural_em.errors import NeuralEMError
from neural_em.reproduce import TRAININGS, Reproduction
from neural_em.reproduce.records import collect, finished, laid_out, read_record, write_record
from tests.reproduce.made import evaluated, record, trained


def test_records_are_kept_and_only_read_by_their_own_kind(tmp_path: Path) -> None:
    training = TRAININGS["static-shapes"]
    before = record("static-shapes", trained(evaluations={"test": evaluated(0.8)}))
    path = tmp_path / "results" / "static-shapes.json"
    write_record(path, before)
    assert read_record(path, training) == before
    assert collect(training, tmp_path / "no-runs-here", before) == before  # a clone without the runs
    with pytest.raises(NeuralEMError, match="same size"):
        read_record(path, training.small())
    with pytest.raises(NeuralEMError, match="record of flying-mnist"):
        read_record(path, TRAININGS["flying-mnist"])
    path.write_text("{")
    with pytest.raises(NeuralEMError, match=r"static-shapes\.json"):
        read_record(path, training)
    assert read_record(tmp_path / "none.json", training) is None


@pytest.mark.parametrize(
    ("name", "epochs", "asked", "done"),
    [
        ("flying-mnist-plus", 18, None, True),  # as many as the last stage has
        ("flying-mnist-plus", 17, None, False),
        ("flying-mnist-plus", 18, 19, False),
        ("flying-mnist-staged", 25, None, False),
        ("flying-mnist-staged", 25, 25, True),
        ("static-shapes", 500, None, True),
    ],
)
def test_a_run_is_finished_with_the_epochs_of_its_last_stage(
    name: str, epochs: int, asked: int | None, done: bool, tmp_path: Path
) -> None:
    summary = {"stopped": "epochs", "finished": True, "epochs": epochs}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert finished(tmp_path, TRAININGS[name].experiment(asked)) is done


def test_laid_out_is_json() -> None:
    value = {"a": {"b": {"c": [1, {"d": None}]}}, "e": {}, "f": [1.5]}
    assert json.loads(laid_out(value)) == value
    assert json.loads(laid_out(value, levels=1)) == value
    assert laid_out(value, levels=1).count("\n") == 4


def test_toy_runs_never_reach_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for out in ("results", "results/deeper", "elsewhere/../results"):
        with pytest.raises(NeuralEMError, match="outside of results/"):
            Reproduction(Path("runs"), Path(out), quick=True)
    Reproduction(Path("runs"), Path("results-of-mine"), quick=True)
    assert list(tmp_path.iterdir()) == []


def test_toy_runs_reach_no_results_from_another_folder_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name, file in (("results", "first-runs.md"), ("ours", "reproduction.json")):
        folder = tmp_path / "project" / name
        folder.mkdir(parents=True)
        Reproduction(Path("runs"), folder, quick=True)  # nothing there yet
        (folder / file).write_text('{"quick": false, "cells": []}')
        with pytest.raises(NeuralEMError, match="outside of results/"):
            Reproduction(Path("runs"), folder, quick=True)
    with pytest.raises(NeuralEMError, match="outside of results/"):
        Reproduction(Path("runs"), tmp_path / "project" / "results" / "toys", quick=True)
    (tmp_path / "project" / "ours" / "reproduction.json").write_text('{"quick": true, "cells": []}')
    Reproduction(Path("runs"), tmp_path / "project" / "ours", quick=True)  # of toy size itself
