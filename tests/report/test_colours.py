"""Colours: stable, distinguishable, and exactly the palette for a hard assignment."""

import numpy as np
import pytest

from neural_em.errors import NeuralEMError
from neural_em.report.colours import LIMIT, as_components, blend, colour_groups, palette

# Simulation matrices on linear RGB (Machado 2009, severity 1.0)
VISION = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def perceived(colours, matrix):
    """OKLab coordinates (n,3) as seen through the matrix; an independent colour space from the one the table used."""
    scaled = np.asarray(colours, float) / 255
    linear = np.where(scaled <= 0.04045, scaled / 12.92, ((scaled + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ matrix.T, 0, 1)
    to_lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    to_lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return np.cbrt(linear @ to_lms.T) @ to_lab.T


def test_a_components_colour_does_not_depend_on_how_many_there_are():
    for count in range(LIMIT + 1):
        assert np.array_equal(palette(count), palette(LIMIT)[:count])


def test_all_colours_differ():
    assert len(np.unique(palette(LIMIT), axis=0)) == LIMIT == 64


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(("count", "apart"), [(5, 0.09), (8, 0.07), (16, 0.03)])
def test_colours_stay_apart_from_each_other_and_from_black_and_white(vision, count, apart):
    colours = np.concatenate([palette(count), [[0, 0, 0], [255, 255, 255]]])
    seen = perceived(colours, VISION[vision])
    distance = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + np.eye(len(seen)) * 9
    assert distance.min() > apart  # 0.02 in OKLab is about what an eye just notices side by side


def test_a_hard_assignment_has_exactly_the_palettes_colours():
    labels = np.arange(4 * 6).reshape(4, 6) % 5
    gamma = (labels[None] == np.arange(5)[:, None, None]).astype(np.float32)
    assert np.array_equal(blend(gamma), palette(5)[labels])


def test_an_even_assignment_is_the_mean_of_the_colours():
    gamma = np.full((2, 1, 1), 0.5)
    first, second = palette(2).astype(int)
    expected = [round((a + b) / 2) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    assert blend(gamma)[0, 0].tolist() == expected


def test_blend_keeps_leading_axes_and_is_black_where_there_is_no_component():
    gamma = np.zeros((3, 2, 4, 5))
    gamma[:, 1, 2:] = 1
    rgb = blend(gamma)
    assert rgb.shape == (3, 4, 5, 3)
    assert rgb.dtype == np.uint8
    assert not rgb[:, :2].any()
    assert (rgb[:, 2:] == palette(2)[1]).all()


def test_groups_take_the_colour_of_the_component_before_them():
    groups = np.array([[0, 1], [2, 64]])
    rgb = colour_groups(groups)
    assert rgb[0, 0].tolist() == [0, 0, 0]
    assert np.array_equal(rgb[0, 1], palette(1)[0])
    assert np.array_equal(rgb[1, 0], palette(2)[1])
    assert np.array_equal(rgb[1, 1], palette(64)[63])
    assert colour_groups(groups.astype(np.float32), background=(9, 8, 7))[0, 0].tolist() == [9, 8, 7]


def test_matching_groups_take_the_colours_of_their_components():
    groups = np.array([[[7, 7, 0, 2], [7, 7, 0, 2]], [[7, 7, 4, 2], [7, 7, 0, 2]]])
    labels = np.array([[[2, 2, 0, 0], [2, 0, 1, 0]], [[2, 2, 1, 0], [2, 2, 1, 0]]])
    gamma = (labels[:, None] == np.arange(3)[:, None, None]).astype(np.float32)
    matched = as_components(groups, gamma)
    assert {old: set(matched[groups == old].tolist()) for old in (0, 2, 4, 7)} == {0: {0}, 2: {1}, 4: {2}, 7: {3}}
    # two objects in one component: the smaller one gets a colour that no component has
    both = as_components(groups, np.concatenate([gamma[:, :1] + gamma[:, 2:], gamma[:, 1:2]], axis=1))
    assert (both[groups == 7] == 1).all()
    assert (both[groups == 4] == 2).all()
    assert (both[groups == 2] == 3).all()
    assert not as_components(np.zeros((2, 2, 4), int), gamma).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: palette(65), "colours: expected a number of components from 0 to 64, got 65"),
        (lambda: palette(-1), "colours: expected"),
        (lambda: palette(True), "colours: expected"),
        (lambda: blend(np.zeros((3, 4))), r"gamma: expected the shape \(...,K,H,W\), got \(3, 4\)"),
        (lambda: blend(np.zeros((0, 3, 4))), "gamma: expected the shape"),
        (lambda: blend(np.full((2, 3, 4), 0.9)), "gamma: expected sums over the components of at most 1"),
        (lambda: blend(np.full((2, 3, 4), np.nan)), "gamma: expected values from 0 to 1, got nan"),
        (lambda: blend(np.full((1, 3, 4), -0.5)), "gamma: expected values from 0 to 1"),
        (lambda: blend(np.array([[["a"]]])), "gamma: expected numbers"),
        (lambda: blend(np.zeros((65, 2, 2))), "colours: expected"),
        (lambda: colour_groups(np.array([[0.5]])), "groups: expected whole numbers"),
        (lambda: colour_groups(np.array([[-1]])), "groups: expected numbers from 0 to 64, got -1 to -1"),
        (lambda: colour_groups(np.array([1, 2])), "groups: expected the shape"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(NeuralEMError, match=message):
        call()
