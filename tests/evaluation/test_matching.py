"""Matched intersection over union against SciPy's Hungarian method and against matchings worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from neural_em.errors import NeuralEMError
from neural_em.evaluation import matched_iou, object_mean
from neural_em.evaluation.matching import best_matching


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (3, 5), (5, 3), (1, 6), (6, 1), (8, 8), (2, 40), (40, 2), (9, 10)])
def test_the_best_matching_has_the_sum_of_the_hungarian_method(shape: tuple[int, int]) -> None:
    value = torch.rand(30, *shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
    value = torch.where(value < 0.4, 0.0, value)  # overlaps are often zero
    column = best_matching(value)
    for matrix, columns in zip(value.numpy(), column.tolist(), strict=True):
        used = [column for column in columns if column >= 0]
        assert len(used) == len(set(used)) == min(shape)
        rows, best = linear_sum_assignment(matrix, maximize=True)
        found = sum(matrix[row, column] for row, column in enumerate(columns) if column >= 0)
        assert found == pytest.approx(matrix[rows, best].sum(), abs=1e-12)


def test_iou_worked_out_by_hand() -> None:
    groups = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 0, 0]])
    assignment = torch.tensor([[4, 4, 4, 0, 0, 0, 4, 0, 4]])
    # object 1 and component 4: 3 of 5 scored pixels; object 2 and component 0: 2 of 4
    assert matched_iou(groups, assignment).tolist() == [[3 / 5, 2 / 4]]
    assert object_mean(matched_iou(groups, assignment)).tolist() == [pytest.approx(0.55)]


def test_matching_is_one_to_one() -> None:
    """One component over two objects counts for the larger; the other object gets nothing."""
    iou = matched_iou(torch.tensor([[1, 1, 1, 2, 2]]), torch.zeros(1, 5, dtype=torch.int64))
    assert iou.tolist() == [[3 / 5, 0.0]]


def test_missing_objects_are_not_scored() -> None:
    iou = matched_iou(torch.tensor([[1, 1, 3], [2, 0, 0], [0, 0, 0]]), torch.tensor([[0, 0, 1], [5, 1, 1], [0, 0, 0]]))
    assert iou.isnan().tolist() == [[False, True, False], [True, False, True], [True, True, True]]
    assert iou.nan_to_num(-1).tolist() == [[1, -1, 1], [-1, 1, -1], [-1, -1, -1]]
    assert object_mean(iou).nan_to_num(-1).tolist() == [1, 1, -1]


def test_many_images_equal_the_images_one_by_one() -> None:
    rng = np.random.default_rng(0)
    groups = torch.from_numpy(rng.integers(0, 5, (60, 50)))
    assignment = torch.from_numpy(rng.integers(0, 30, (60, 50)))
    together = matched_iou(groups, assignment)
    for image in range(60):
        true, found = groups[image].numpy(), assignment[image].numpy()
        iou = np.array([[((true == g) & (found == k)).sum() / ((true == g) | ((found == k) & (true > 0))).sum()
                         for k in range(30)] for g in range(1, 5)])  # fmt: skip
        rows, columns = linear_sum_assignment(iou, maximize=True)
        assert together[image].sum().item() == pytest.approx(iou[rows, columns].sum(), abs=1e-12)


def test_nothing_scored_at_all() -> None:
    zeros = torch.zeros(4, 9, dtype=torch.int64)
    assert object_mean(matched_iou(zeros, zeros)).isnan().all()
    assert matched_iou(zeros[:0], zeros[:0]).shape == (0, 0)


def test_too_large_groups_are_refused() -> None:
    with pytest.raises(NeuralEMError, match="groups: expected labels up to 255, got 256"):
        matched_iou(torch.tensor([[256]]), torch.tensor([[0]]))
