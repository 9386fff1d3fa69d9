"""Plots: what is drawn is what was given, and nothing is cut off."""

import statistics

import numpy as np
import pytest
from PIL import Image

from neural_em.report.figures import save_figure
from neural_em.report.plots import StepCurve, bce_figure, learning_curves, score_curve

ROWS = [
    {"epoch": e, "train_loss": 9 / e, "validation_loss": 10 / e, "validation_ami_last": 1 - 1 / e} for e in range(1, 6)
]
ERRORS = {
    ("EM", 3): [1.0, 2.0, 4.0], ("EM", 4): [3.0],
    ("autoencoder", 3): [2.0, 3.0], ("autoencoder", 4): [4.0, 4.0], ("autoencoder", 5): [5.0],
}  # fmt: skip


def curve(steps=50):
    mean = 1 - np.exp(-np.arange(1, steps + 1) / 9)
    return StepCurve(mean, mean - 0.05, mean)


FIGURES = {
    "score": lambda: score_curve({"direct": curve(), "staged": curve(30)}, training_steps=20),
    "bce": lambda: bce_figure(ERRORS),
    "learning": lambda: learning_curves({"seed 1": ROWS, "seed 2": ROWS[:2]}),
    "nothing logged": lambda: learning_curves({"run": []}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_written_whole(name, tmp_path):
    figure = FIGURES[name]()
    for suffix in ("png", "pdf"):
        save_figure(figure, tmp_path / f"figure.{suffix}")
    with Image.open(tmp_path / "figure.png") as image:
        picture = np.asarray(image.convert("L"))
    assert picture.shape == tuple(round(side * 200) for side in figure.get_size_inches())[::-1]
    for edge in (picture[:4], picture[-4:], picture[:, :4], picture[:, -4:]):
        assert (edge == 255).all()  # nothing touches the border, so no label is cut off


def test_score_curve_draws_mean_band_and_training_length():
    figure = score_curve({"run": curve()}, training_steps=20)
    (axes,) = figure.axes
    line, marker = axes.get_lines()
    assert np.allclose(line.get_xydata(), np.c_[np.arange(1, 51), curve().mean])
    assert set(marker.get_xdata()) == {20}
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(curve().lower_quartile[0])
    assert band[:, 1].max() == pytest.approx(curve().upper_quartile[-1])
    assert axes.get_ylabel() == "AMI (max)"
    assert axes.get_legend().get_texts()[0].get_text() == "run"


def test_bce_bars_are_means_with_the_sample_deviation_and_gaps_are_named():
    (axes,) = bce_figure(ERRORS).axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == [pytest.approx(7 / 3), 3.0, 0, 2.5, 4.0, 5.0]
    first = axes.containers[1].lines[2][0].get_segments()[0]  # the first error bar
    assert first[1, 1] - first[0, 1] == pytest.approx(2 * statistics.stdev([1.0, 2.0, 4.0]))
    assert [text.get_text() for text in axes.texts] == ["no run"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["3", "4", "5"]


def test_learning_curves_have_a_line_for_every_column_of_every_run():
    loss, score = learning_curves({"seed 1": ROWS, "seed 2": ROWS[:2]}).axes
    assert [len(line.get_xdata()) for line in loss.get_lines()] == [5, 5, 2, 2]
    assert [len(line.get_xdata()) for line in score.get_lines()] == [5, 2]
    labels = [text.get_text() for text in loss.get_legend().get_texts()]
    assert labels == ["train loss", "validation loss", "seed 1", "seed 2"]
