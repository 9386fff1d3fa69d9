"""Several runs' results, and results as text."""

from __future__ import annotations

import dataclasses

import pytest

from neural_em.errors import NeuralEMError
from neural_em.evaluation import Curve, MeanDeviation, Result, Summary, aggregate, aggregate_table, result_table
from neural_em.evaluation.results import StartSpread


def made_up(mean: float, **changes: object) -> Result:
    """A result with two steps, whose last-step AMI is the mean given."""
    summary = Summary(mean, mean - 0.1, mean, mean + 0.1, 1234)
    curve = Curve((0.0, mean), (0.0, mean), (0.0, mean), (0.0, mean), (1234, 1234))
    result = Result(
        settings={"components": 3, "static": False, "starts": 1},
        note="", sequences=1234, steps=2, has_groups=True, unscored_images=0, unscored_sequences=0,
        curves={"ami_max": curve}, last_step={"ami_max": summary},
        mean_over_steps={"ami_max": dataclasses.replace(summary, mean=mean / 2)},
        whole_sequence={"ami_max": dataclasses.replace(summary, mean=None)},
        starts={}, baselines={"k-means": {"ami_max": dataclasses.replace(summary, mean=0.25)}}, per_sequence={},
    )  # fmt: skip
    return dataclasses.replace(result, **changes)


def test_mean_and_sample_deviation_over_runs() -> None:
    runs = aggregate([made_up(mean) for mean in (0.5, 0.7, 0.9)])
    assert runs.runs == 3
    assert runs.sections["last step"]["ami_max"].mean == pytest.approx(0.7)
    assert runs.sections["last step"]["ami_max"].deviation == pytest.approx(0.2)  # sqrt((0.04 + 0 + 0.04) / 2)
    assert runs.sections["mean over steps"]["ami_max"].deviation == pytest.approx(0.1)
    assert runs.sections["whole sequence"]["ami_max"] == MeanDeviation(None, None, 0)
    assert runs.sections["baseline: k-means"]["ami_max"].deviation == 0
    assert [step.mean for step in runs.curves["ami_max"]] == pytest.approx([0, 0.7])
    assert runs.curves["ami_max"][1].count == 3


def test_one_run_has_no_deviation() -> None:
    runs = aggregate([made_up(0.5)])
    assert runs.sections["last step"]["ami_max"] == MeanDeviation(0.5, None, 1)
    assert "±" not in aggregate_table(runs)


def test_runs_evaluated_differently_are_not_averaged() -> None:
    first = made_up(0.5)
    with pytest.raises(NeuralEMError, match="components: expected the same in every run, 3, got 5"):
        aggregate([first, made_up(0.5, settings={"components": 5, "static": False, "starts": 1})])
    with pytest.raises(NeuralEMError, match="steps: expected the same in every run, 2, got 3"):
        aggregate([first, made_up(0.5, steps=3)])
    with pytest.raises(NeuralEMError, match="results: expected at least one, got 0"):
        aggregate([])


def test_the_text_of_a_result() -> None:
    lines = result_table(made_up(0.5)).splitlines()
    assert lines == [
        "1,234 sequences, 2 steps, 3 components, 1 start",
        "           last step          quartiles  mean over steps  whole sequence  k-means",
        "AMI (max)      0.500  0.400 0.500 0.600            0.250               –    0.250",
    ]


def test_a_rollout_has_a_line_for_each_step() -> None:
    settings = {"components": 3, "static": False, "starts": 1, "rollout": 2}
    errors = Curve((1.0, 250.0), (0.0, 0.0), (0.0, 0.0), (9.0, 9.0), (9, 9))
    result = made_up(0.5, settings=settings, rollout={"upper_bound": errors, "repeated": errors, "total": errors})
    assert result_table(result).splitlines()[-3:] == [
        "without input, step  next-step error  last frame repeated",
        "1                              1.000                1.000",
        "2                              250.0                250.0",
    ]
    higher = dataclasses.replace(errors, mean=(3.0, 250.0))
    both = aggregate([result, dataclasses.replace(result, rollout={"upper_bound": higher})])
    assert both.rollout["upper_bound"][0] == MeanDeviation(2.0, pytest.approx(2**0.5), 2)
    assert "1                      2.000 ± 1.414" in aggregate_table(both)
    with pytest.raises(NeuralEMError, match="rollout_steps: expected the same in every run, 2, got 0"):
        aggregate([result, made_up(0.5)])


def test_the_text_says_what_is_missing() -> None:
    spread = StartSpread((0.4, 0.6), 0.0625, Summary(0.75, 0.7, 0.75, 0.8, 1234))
    changes = {"starts": {"ami_max": spread}, "unscored_images": 7, "unscored_sequences": 1, "note": "from 20 digits"}
    text = result_table(made_up(0.5, **changes, has_groups=False))
    assert "0.062" in text
    assert "0.750" in text
    assert text.splitlines()[-3:] == [
        "nothing to score in 7 images, 1 whole sequence; left out",
        "no true groups: losses and confidence only",
        "from 20 digits",
    ]


def test_the_text_of_several_runs() -> None:
    lines = aggregate_table(aggregate([made_up(0.5), made_up(0.75)])).splitlines()
    assert lines[0] == "2 runs of 1,234 sequences, 2 steps"
    assert lines[2].split("  ")[0] == "AMI (max)"
    assert "0.625 ± 0.177" in lines[2]
