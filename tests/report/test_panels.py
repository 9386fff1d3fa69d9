"""Panels: shapes are checked, pixels are what the arrays say."""

import dataclasses

import numpy as np
import pytest

from neural_em.errors import NeuralEMError
from neural_em.report.colours import palette
from neural_em.report.panels import SequenceReport, framed, magnification_for, magnify, sprite, to_rgb


def test_one_channel_is_grey_and_three_are_colour():
    grey = to_rgb(np.array([[[0.0, 0.5, 1.0]]]))
    assert grey.tolist() == [[[0, 0, 0], [128, 128, 128], [255, 255, 255]]]
    colour = to_rgb(np.array([[[1.0]], [[0.2]], [[-3.0]]]))
    assert colour.tolist() == [[[255, 51, 0]]]


def test_magnify_repeats_every_pixel():
    small = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    large = magnify(small, 3)
    assert large.shape == (6, 6, 3)
    for row in range(6):
        for column in range(6):
            assert np.array_equal(large[row, column], small[row // 3, column // 3])


def test_magnification_comes_near_the_target():
    assert magnification_for(28, 112) == 4
    assert magnification_for(500, 112) == 1
    assert magnification_for(1, 10_000) == 64


def test_framed_leaves_the_panel_untouched():
    panel = np.full((2, 3, 3), 7, np.uint8)
    whole = framed(panel, (1, 2, 3), 2)
    assert whole.shape == (6, 7, 3)
    assert np.array_equal(whole[2:4, 2:5], panel)
    assert (whole[[0, 1, 4, 5]] == (1, 2, 3)).all()


def test_components_are_shown_in_their_colour(squares):
    sequence = squares(components=3)
    shown = sequence.component_rgb()
    on = sequence.psi[:, :, 0] == 1
    assert list(shown) == ["component 1", "component 2", "component 3"]
    for k, strip in enumerate(shown.values()):
        assert (strip[on[:, k]] == palette(3)[k]).all()
        assert not strip[~on[:, k]].any()


def test_the_librarys_gamma_with_its_channel_axis_is_taken_too(squares):
    sequence = squares()
    again = dataclasses.replace(sequence, gamma=sequence.gamma[:, :, None])
    assert np.array_equal(again.gamma, sequence.gamma)
    assert (again.steps, again.components) == (4, 3)


def test_sprite_breaks_lines_at_the_widest():
    strip = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 4, 3), np.uint8)
    picture, columns = sprite(strip, widest=9)
    assert columns == 2
    assert picture.shape == (6, 8, 3)
    for index in range(5):
        line, column = divmod(index, 2)
        assert (picture[line * 2 : line * 2 + 2, column * 4 : column * 4 + 4] == index).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": np.zeros((4, 2, 12, 15))}, r"frames: expected the shape \(T,C,H,W\) with 1 or 3 channels, got"),
        ({"frames": np.zeros((0, 1, 12, 15))}, "frames: expected the shape"),
        ({"gamma": np.zeros((4, 3, 12, 14))}, r"gamma: expected the shape \(4, K, 12, 15\), got \(4, 3, 12, 14\)"),
        ({"gamma": np.zeros((3, 3, 12, 15))}, "gamma: expected the shape"),
        ({"psi": np.zeros((4, 3, 3, 12, 15))}, r"psi: expected the shape \(4, 3, 1, 12, 15\)"),
        ({"psi": np.full((4, 3, 1, 12, 15), np.nan)}, "psi: expected finite numbers"),
        ({"groups": np.zeros((12, 15), int)}, "groups: expected the shape"),
        ({"inputs": np.zeros((4, 1, 12, 14))}, r"inputs: expected the shape \(4, 1, 12, 15\), got"),
        ({"inputs": np.full((4, 1, 12, 15), np.nan)}, "inputs: expected finite numbers"),
        ({"rollout": 5}, "rollout: expected a number from 0 to 4, got 5"),
    ],
)
def test_wrong_shapes_are_refused(squares, change, message):
    with pytest.raises(NeuralEMError, match=message):
        dataclasses.replace(squares(), **change)


def test_steps_without_input_are_counted_from_the_last_input(rolled_out):
    assert [rolled_out.step_name(step) for step in range(1, 6)] == ["1", "2", "3", "+1", "+2"]
    shown = rolled_out.frames_rgb()
    assert list(shown) == ["input", "what happened", "prediction"]
    white = (rolled_out.groups > 0)[..., None]
    assert np.array_equal(shown["what happened"], np.uint8(255) * white.repeat(3, -1))
    assert np.array_equal(shown["input"], shown["what happened"][:, ::-1])
    assert np.array_equal(shown["prediction"], np.uint8(128) * white.repeat(3, -1))  # the largest psi, a half


def test_a_magnification_that_is_no_integer_is_refused():
    for wrong in (0, 1.5, True, 65):
        with pytest.raises(NeuralEMError, match="magnification: expected an integer from 1 to 64"):
            magnify(np.zeros((1, 1, 3), np.uint8), wrong)


def test_text_for_frames_is_refused():
    with pytest.raises(NeuralEMError, match="frames"):
        SequenceReport("x", np.zeros((1, 1, 1, 1), "U1"), np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1, 1)))
