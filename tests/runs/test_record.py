"""What a run folder says of its run: written, read again, and read with care where somebody changed it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from neural_em.runs.record import Record, Start, add_start, read_starts, write_metrics
from neural_em.training.state import Progress, Row

ROW = Row(2, 8, 0.5, 0.25, binding="uniform", best=True)
PROGRESS = Progress(epoch=2, best_loss=0.25, best_epoch=2, seconds=5.0, rows=(Row(1, 4, 1.0, 0.5), ROW))


def test_a_record_comes_back(tmp_path: Path) -> None:
    record = Record.of(PROGRESS, "patience")
    assert (record.finished, record.epochs, record.best_epoch, record.seconds_per_epoch) == (True, 2, 2, 2.5)
    assert record.best == record.last == ROW
    assert record.shortfall == ""
    record.write(tmp_path)
    assert Record.read(tmp_path) == record


def test_a_run_that_is_not_finished_says_so() -> None:
    assert Record.of(PROGRESS, None).shortfall == "training is not finished: still running, or killed after 2 epochs"
    assert Record.of(PROGRESS, "interrupted").shortfall == "training is not finished: interrupted after 2 epochs"
    assert Record().shortfall == ""  # nothing is known


def test_a_folder_of_seeds_says_no_more_than_how_many(tmp_path: Path) -> None:
    Record(seeds=3).write(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text()) == {"seeds": 3}
    assert Record.read(tmp_path).seeds == 3


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "3", '{"finished": "yes", "epochs": true, "warnings": 5, "stages": [1], "best": {}}']
)
def test_what_training_cannot_have_written_is_left_out(text: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(text)
    assert Record.read(tmp_path) == Record()
    assert Record.read(tmp_path / "nowhere") == Record()


def test_the_rest_of_a_damaged_summary_is_kept(tmp_path: Path) -> None:
    said = {
        "stopped": "a\x1b[2Jb",
        "epochs": 7,
        "seconds": 1e99,
        "warnings": ["x", 1],
        "stages": {"stage-1": {"epochs": -1}},
    }
    (tmp_path / "summary.json").write_text(json.dumps(said))
    wanted = Record(stopped="a\\x1b[2Jb", epochs=7, warnings=("x",), stages={"stage-1": Record()})
    assert Record.read(tmp_path) == wanted


def test_stages_of_stages_do_not_end_the_process(tmp_path: Path) -> None:
    depth = 400
    (tmp_path / "summary.json").write_text('{"stages": {"s": ' * depth + "{}" + "}}" * depth)
    assert isinstance(Record.read(tmp_path), Record)


def test_starts_add_up(tmp_path: Path) -> None:
    for device in ("abacus", "slide rule"):
        add_start(
            tmp_path, {"device": device, "packages": {"torch": "2.13"}, "command": ["nem", "train"], "threads": 1}
        )
    assert read_starts(tmp_path) == [
        Start(device=device, packages={"torch": "2.13"}) for device in ("abacus", "slide rule")
    ]
    (tmp_path / "environment.json").write_text('{"starts": 5}')
    assert read_starts(tmp_path) == []
    add_start(tmp_path, {"device": "abacus"})
    assert [start.device for start in read_starts(tmp_path)] == ["abacus"]


def test_metrics_are_a_table(tmp_path: Path) -> None:
    """One row an epoch under its names; what is not known is empty."""
    write_metrics(tmp_path, [Row(1, 781, 0.1 + 0.2, 0.7, best=True), Row(2, 1562, 0.25)])
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert float(rows[0]["loss"]) == 0.1 + 0.2
    assert (rows[1]["validation_loss"], rows[1]["ami_last"]) == ("", "")
