"""Results as files, and the statistics in them."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from neural_em.data.dataset import MemoryDataset
from neural_em.errors import NeuralEMError
from neural_em.evaluation import EvaluationConfig, evaluate
from neural_em.evaluation.results import (
    Curve,
    Result,
    StartSpread,
    Summary,
    read_json,
    write_json,
)  # fmt: skip
from neural_em.model import ModelConfig, NeuralEM
from neural_em.runs.evaluations import write_result


@pytest.fixture(scope="module")
def result() -> Result:
    """Six small sequences, the first without anything to score."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.randint(0, 4, (6, 5, 8, 8), generator=generator).to(torch.uint8)
    groups[0] = 0
    data = MemoryDataset((groups > 1).float()[:, :, None], groups, note="a note")
    model = NeuralEM(ModelConfig(height=8, width=8, theta_size=4, convolutions=(), hidden=0))
    return evaluate(model, data, EvaluationConfig(components=3, starts=2, rollout=1))


def test_summary_worked_out_by_hand() -> None:
    values = np.array([[4.0, 1.0, np.nan], [2.0, 3.0, 5.0]])
    assert Summary.of(values) == Summary(3.0, 2.0, 3.0, 4.0, 5)
    assert Summary.of(np.array([np.nan])) == Summary(None, None, None, None, 0)
    assert Summary.of(np.array([1.0, np.inf])).mean is None


def test_curve_is_over_the_middle_axis() -> None:
    values = np.arange(12.0).reshape(2, 3, 2)  # starts, steps, sequences: step 0 holds 0, 1, 6, 7
    curve = Curve.of(values)
    assert curve.mean == (3.5, 5.5, 7.5)
    assert curve.median == (3.5, 5.5, 7.5)
    assert curve.lower_quartile == (0.75, 2.75, 4.75)
    assert curve.at(1) == Summary(5.5, 2.75, 5.5, 8.25, 4)


def test_start_spread_worked_out_by_hand() -> None:
    values = np.array([[0.0, 1.0, np.nan], [1.0, 0.5, 0.3]])
    loss = np.array([[5.0, 1.0, np.nan], [4.0, 2.0, 9.0]])
    spread = StartSpread.of(values, loss)
    assert spread.means == pytest.approx((0.5, 0.6))
    assert spread.deviation == pytest.approx((math.sqrt(0.5) + 0.5 / math.sqrt(2)) / 2)
    assert spread.lowest_loss.mean == pytest.approx((1.0 + 1.0 + 0.3) / 3)


def test_json_comes_back_equal(result: Result, tmp_path: Path) -> None:
    write_json(result, tmp_path / "result.json")
    assert read_json(tmp_path / "result.json") == result
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    plain = json.loads((tmp_path / "result.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert plain["per_sequence"]["ari"][0] is None
    assert plain["settings"]["components"] == 3
    assert plain["note"] == "a note"
    assert plain["unscored_sequences"] == 1


def test_csv_holds_every_summary(result: Result, tmp_path: Path) -> None:
    write_result(result, tmp_path, "result")
    with open(tmp_path / "result.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["section"] for row in rows} == {
        "step", "last step", "mean over steps", "whole sequence", "start with the lowest loss",
        "baseline: connected components", "baseline: k-means", "rollout",
    }  # fmt: skip
    steps = [row for row in rows if row["section"] == "step" and row["score"] == "ami_max"]
    assert [int(row["step"]) for row in steps] == [1, 2, 3]
    assert [float(row["upper_quartile"]) for row in steps] == list(result.curves["ami_max"].upper_quartile)
    (last,) = [row for row in rows if row["section"] == "last step" and row["score"] == "ami_max"]
    assert {**last, "section": "step", "step": "3"} == steps[-1]
    (error,) = [row for row in rows if row["section"] == "rollout" and row["score"] == "repeated"]
    assert (error["step"], float(error["mean"])) == ("1", result.rollout["repeated"].mean[0])


def test_sequences_csv_has_a_row_for_each(result: Result, tmp_path: Path) -> None:
    write_result(result, tmp_path, "result")
    with open(tmp_path / "result-sequences.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == list(range(6))
    assert rows[0]["ami_max"] == ""
    assert [float(row["total"]) for row in rows] == list(result.per_sequence["total"])


def test_examples_are_the_extremes_and_the_median(result: Result) -> None:
    values = dict(enumerate(result.per_sequence["ami_max"]))
    order = sorted((index for index in values if values[index] is not None), key=lambda index: values[index])
    assert result.examples() == {"best": order[-1], "typical": order[2], "worst": order[0]}
    same = dataclasses.replace(result, per_sequence={"ami_max": (1.0, 1.0, None, 1.0)})
    assert set(same.examples().values()) == {0, 1, 3}  # three sequences, though they score alike
    losses = result.per_sequence["total"]
    without = dataclasses.replace(result, has_groups=False)
    assert without.examples()["best"] == losses.index(min(losses))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "expected an evaluation result of format 1, got 'list'"),
        ('{"format": 0}', "expected an evaluation result of format 1, got 0"),
        ('{"format": 1}', "not a whole evaluation result"),
    ],
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(NeuralEMError, match=message):
        read_json(path)


def test_a_cut_result_is_refused(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(result, path)
    values = json.loads(path.read_text())
    for name in values:
        cut = {key: value for key, value in values.items() if key != name}
        path.write_text(json.dumps(cut))
        if name in ("with_background", "by_objects", "probe"):  # older files have none
            assert getattr(read_json(path), name) == {}
            continue
        with pytest.raises(NeuralEMError, match="evaluation result"):
            read_json(path)


def test_a_result_from_before_there_were_rollouts_is_read(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(result, path)
    values = json.loads(path.read_text())
    del values["rollout"], values["settings"]["rollout"]
    path.write_text(json.dumps(values))
    old = read_json(path)
    assert old.rollout == {}
    assert old.rollout_steps == 0
    assert old.curves == result.curves
    values["settings"]["rollout"] = 2  # says that there was one
    path.write_text(json.dumps(values))
    with pytest.raises(NeuralEMError, match="rollout: total is missing"):
        read_json(path)
    for wrong in ("many", [1], None, 1.5):
        values["settings"]["rollout"] = wrong
        path.write_text(json.dumps(values))
        with pytest.raises(NeuralEMError, match=r"settings\.rollout: expected a number of steps"):
            read_json(path)


def test_files_that_are_not_there_or_cannot_be(result: Result, tmp_path: Path) -> None:
    with pytest.raises(NeuralEMError, match="cannot be read"):
        read_json(tmp_path / "none.json")
    with pytest.raises(NeuralEMError):
        write_json(result, tmp_path / "no folder" / "result.json")
