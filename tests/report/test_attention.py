"""Attention drawn: lines where they belong, as thick as they should be, and the numbers as a table."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from neural_em.errors import NeuralEMError
from neural_em.report.animation import animation_frames
from neural_em.report.attention import attention_rgb, table_rgb
from neural_em.report.colours import palette
from neural_em.report.figures import sequence_figure
from neural_em.report.page import RunReport, render_page
from neural_em.report.panels import SequenceReport

SIDE, FACTOR = 40, 5


@pytest.fixture
def two() -> SequenceReport:
    """Component 1 left, component 2 right, at one height; component 3 holds the dark; attention 1 to 2 and 0.5 back."""
    frames = np.zeros((1, 1, SIDE, SIDE), np.float32)
    frames[..., 18:22, 2:6] = frames[..., 18:22, 34:38] = 1
    gamma = np.zeros((1, 3, SIDE, SIDE), np.float32)
    gamma[0, 0, 18:22, 2:6] = gamma[0, 1, 18:22, 34:38] = 1
    gamma[0, 2] = 1 - gamma[0, :2].sum(axis=0)
    attention = np.array([[[0, 1, 0.25], [0.5, 0, 0.25], [1, 1, 0]]], np.float32)
    return SequenceReport("one", frames, gamma, gamma[:, :, None] * frames[:, None], attention=attention)


def thickness(picture: np.ndarray, column: int, colour: np.ndarray) -> int:
    return int((picture[:, column] == colour).all(axis=-1).sum())


def test_each_half_of_a_line_is_as_thick_as_the_attention_of_its_end(two: SequenceReport) -> None:
    (picture,) = attention_rgb(two, FACTOR)
    colours, whole = palette(3), 0.08 * SIDE * FACTOR  # pixels of attention 1
    assert picture.shape == (SIDE * FACTOR, SIDE * FACTOR, 3)
    left, right = 12 * FACTOR, 28 * FACTOR
    assert thickness(picture, left, colours[0]) == pytest.approx(whole, abs=1)
    assert thickness(picture, right, colours[1]) == pytest.approx(whole / 2, abs=1)
    assert thickness(picture, left, colours[1]) == thickness(picture, right, colours[0]) == 0
    assert not picture[: 15 * FACTOR].any()  # nothing goes to the component that holds no object
    rows = np.flatnonzero(picture[:, left].any(axis=-1))
    assert rows.mean() == pytest.approx(20 * FACTOR, abs=1)  # between the centres


def test_no_attention_no_line(two: SequenceReport) -> None:
    none = dataclasses.replace(two, attention=np.zeros((1, 3, 3), np.float32))
    (picture,) = attention_rgb(none, FACTOR)
    assert not picture[:, 8 * FACTOR : 32 * FACTOR].any()
    assert picture[:, : 8 * FACTOR].any()  # the object is there


def test_the_table_has_the_numbers(two: SequenceReport) -> None:
    (picture,) = table_rgb(two, 40, 40)
    cell = picture[5::10, 5::10]  # the middles of 4 x 4 cells
    assert (cell[1:, 0] == palette(3)).all()
    assert (cell[0, 1:] == palette(3)).all()
    assert (cell[1, 2] == 255).all()
    assert (cell[2, 1] == 128).all()
    assert (cell[1, 3] == 64).all()


def test_figure_animation_and_page_show_it_where_it_is_known(two: SequenceReport) -> None:
    plain = dataclasses.replace(two, attention=None)
    height, width, _ = animation_frames(two)[0].shape
    before = animation_frames(plain)[0].shape
    assert height == 2 * before[0]  # components below
    assert width < before[1]
    assert 'aria-label="attention"' in render_page([RunReport("run", sequences=[two])])
    assert 'aria-label="attention"' not in render_page([RunReport("run", sequences=[plain])])
    names = [text.get_text() for text in sequence_figure(two, kind="attention").texts]
    assert {"input", "assignment", "attention", "as a table"} <= set(names)
    with pytest.raises(NeuralEMError, match="attention: expected a sequence with how much components heed each other"):
        sequence_figure(plain, kind="attention")


def test_attention_of_another_size_is_refused(two: SequenceReport) -> None:
    with pytest.raises(NeuralEMError, match=r"attention: expected the shape \(1, 3, 3\), got \(1, 2, 2\)"):
        dataclasses.replace(two, attention=np.zeros((1, 2, 2), np.float32))
