"""The table of Tagger beside the other models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neural_em.reproduce import GROUPS, TRAININGS, Reproduction
from neural_em.reproduce.results_page import cells, render
from tests.reproduce.made import evaluated, record, row, trained


def curve(*values: float) -> dict[str, Any]:
    """An evaluation that was best at its end."""
    points = {"mean": values, "lower_quartile": values, "upper_quartile": values}
    return {**evaluated(values[-1]), "curves": {"ami_max": points}}


def test_the_trainings_are_of_both_sizes() -> None:
    trainings = {training.name: training.experiment() for training in Reproduction.chosen(["tagger"])}
    assert set(trainings) == set(GROUPS["tagger"])
    assert len(trainings) == 12
    for name, experiment in trainings.items():
        side = 20 if name.endswith("-20") else 28
        assert {experiment.data.height, experiment.data.width} == {side}
        assert {experiment.model.height, experiment.model.width} == {side}
    for name in ("tagger-20", "tagger-batch-norm-20", "tagger-28", "tagger-batch-norm-28"):
        model, training = trainings[name].model, trainings[name].training
        assert model.norm == ("batch" if "batch" in name else "layer")
        assert (training.learning_rate, training.batch_size, training.epochs, training.patience) == (
            0.0004, 100, 100, None
        )  # fmt: skip
        assert TRAININGS[name].evaluations["clean"].clean
        assert TRAININGS[name].evaluations["clean"].steps == 5
    command = TRAININGS["static-shapes-20"].command(Path("runs"), 3)
    assert command == (
        "nem train static-shapes --set data.height=20 --set data.width=20 --set model.height=20 --set model.width=20 "
        "--seeds 3 --run runs"
    )


def test_iterations_are_shown_one_by_one() -> None:
    """Means and deviations of two seeds, worked out by hand; weights counted by hand."""
    one = trained(seconds=100.0, evaluations={"clean": curve(0.1, 0.3, 0.5, 0.6, 0.7)})
    other = trained(seconds=110.0, evaluations={"clean": curve(0.2, 0.3, 0.5, 0.6, 0.9)})
    records = {
        "tagger-20": record("tagger-20", one, other),
        "static-shapes": record("static-shapes", trained(evaluations={"test": evaluated(0.8)})),
        "flying-shapes-3-5-20": record("x", trained(evaluations={"standing, clean": evaluated(0.95)})),
    }
    page = render(cells({}), records, Path("runs"))
    page = page[page.index("## Tagger") : page.index("## Runs")]
    assert row(page, "Tagger, layer norm")[1:] == [
        "20 x 20", "no", "0.150 ± 0.071", "0.300 ± 0.000", "0.500 ± 0.000", "0.600 ± 0.000", "0.800 ± 0.141",
        "0.800 ± 0.141", "2", "9,839,801", "105 s",
    ]  # fmt: skip
    assert row(page, "| RNN-EM  ")[1:] == [
        "28 x 28", "yes", *["–"] * 5, "0.800", "1", "455,534", "90 min"
    ]  # fmt: skip
    assert row(page, "RNN-EM, trained on flying shapes")[2] == "no"
    assert "Not run, or not scored so: static-shapes-nem-20, static-shapes-20, " in page
    assert ", flying-shapes-3-5-20 (with noise), " in page
    assert ", tagger-20 (with noise), " in page
    assert ", tagger-batch-norm-20, " in page
    assert ", static-shapes (without noise), " in page


def test_without_runs_there_is_a_line() -> None:
    page = render(cells({}), {}, Path("runs"))
    assert "0.97 ± 0.009 with layer norm. `nem reproduce tagger` has not been run." in page
    assert "## Tagger" not in page
