"""What holds of the scores of any two maps of labels."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation.test_metrics import TOLERANCE, by_scikit_learn, ours

maps_of_labels = st.integers(1, 60).flatmap(
    lambda pixels: st.tuples(
        st.lists(st.integers(1, 6), min_size=pixels, max_size=pixels),
        st.lists(st.integers(0, 5), min_size=pixels, max_size=pixels),
    )
)


@given(maps_of_labels)
@settings(max_examples=300)
def test_any_maps_agree_with_scikit_learn(maps: tuple[list[int], list[int]]) -> None:
    true, found = np.array([maps[0]]), np.array([maps[1]])
    np.testing.assert_allclose(ours(true, found), by_scikit_learn(true, found), rtol=0, atol=TOLERANCE)


@given(maps_of_labels)
@settings(max_examples=100)
def test_scores_are_symmetric(maps: tuple[list[int], list[int]]) -> None:
    true, found = np.array([maps[0]]), np.array([maps[1]])
    np.testing.assert_allclose(ours(true, found), ours(found + 1, true), rtol=0, atol=1e-12)


@given(maps_of_labels, st.permutations(range(7)), st.permutations(range(6)), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_names_of_labels_and_order_of_pixels_do_not_matter(maps, names, others, random) -> None:
    true, found = np.array([maps[0]]), np.array([maps[1]])
    order = list(range(true.shape[1]))
    random.shuffle(order)
    renamed = np.array(names)[true] + 1, np.array(others)[found]
    np.testing.assert_allclose(ours(renamed[0][:, order], renamed[1][:, order]), ours(true, found), rtol=0, atol=1e-12)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80).filter(any), st.permutations(range(10)))
@settings(max_examples=100)
def test_a_perfect_assignment_scores_exactly_one(labels: list[int], names: list[int]) -> None:
    true = np.array([labels])
    assert ours(true, np.array(names)[true]).tolist() == [[1.0, 1.0, 1.0]]
