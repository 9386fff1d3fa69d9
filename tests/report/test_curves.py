"""Curves: quartiles against the standard library, columns found by name, cells of any kind survived."""

import statistics

import numpy as np
import pytest

from neural_em.errors import NeuralEMError
from neural_em.evaluation import Curve
from neural_em.report.plots import LOSS, SCORE, StepCurve, columns, series, step_lines, words


def test_quartiles_agree_with_the_standard_library():
    scores = np.random.default_rng(1).random((3, 41))
    (line,) = step_lines({"run": Curve.of(scores[None])})
    for t in range(3):
        lower, _, upper = statistics.quantiles(scores[t].tolist(), n=4, method="inclusive")
        assert line.y[t] == pytest.approx(statistics.fmean(scores[t].tolist()))
        assert (line.lower[t], line.upper[t]) == (pytest.approx(lower), pytest.approx(upper))
    assert line.x.tolist() == [1, 2, 3]


def test_sequences_with_nothing_to_score_are_left_out():
    (line,) = step_lines({"run": Curve.of(np.array([[[1.0, np.nan, 0.0], [np.nan] * 3]]))})
    assert line.y[0] == 0.5
    assert np.isnan([line.y[1], line.lower[1], line.upper[1]]).all()


def test_columns_are_found_by_name():
    rows = [
        {"epoch": 1, "train_loss": 3.0, "seconds": 1.0, "note": "loss"},
        {
            "epoch": 2,
            "train_loss": 2.0,
            "validation_loss": "2.5",
            "ami_last": 0.2,
            "validation/ARI": 0.1,
            "variance": 3,
        },
    ]
    assert columns(rows, LOSS) == ["train_loss", "validation_loss"]
    assert columns(rows, SCORE) == ["ami_last", "validation/ARI"]
    assert words("validation/ARI") == "validation ARI"


def test_cells_that_are_no_numbers_are_left_out_and_epochs_are_sorted():
    rows = [
        {"epoch": 3, "loss": 1},
        {"epoch": "1", "loss": "2.5"},
        {"epoch": 2, "loss": ""},
        {"epoch": 4, "loss": "nan"},
    ]
    x, y = series(rows, "loss")
    assert (x.tolist(), y.tolist()) == ([1, 3], [2.5, 1])
    x, y = series([{"loss": 5}, {"other": 1}, {"loss": 4}], "loss")
    assert (x.tolist(), y.tolist()) == ([1, 3], [5, 4])
    assert series([], "loss")[0].shape == (0,)


def test_wrong_shapes_are_refused():
    with pytest.raises(NeuralEMError, match="curve: expected as many quartiles as means, got parts of 2, 1, 2 steps"):
        StepCurve((0.5, 0.5), (0.1,), (0.9, 0.9))
