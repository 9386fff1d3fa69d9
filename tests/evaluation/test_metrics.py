"""The clustering scores against scikit-learn, which computes them one image at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information

from neural_em.errors import NeuralEMError
from neural_em.evaluation import adjusted_mutual_info, adjusted_rand_index, confidence, grouping_scores
from neural_em.evaluation.metrics import expected_mutual_info

gpu = pytest.mark.gpu
TOLERANCE = 1e-10


def by_scikit_learn(groups: np.ndarray, assignment: np.ndarray) -> np.ndarray:
    """(N,3): AMI(max), AMI(arithmetic) and ARI of the scored pixels, image by image."""
    rows = []
    for group, component in zip(groups, assignment, strict=True):
        true, found = group[group > 0], component[group > 0]
        if true.size == 0:
            rows.append([math.nan] * 3)
            continue
        rows.append([
            adjusted_mutual_info_score(true, found, average_method="max"),
            adjusted_mutual_info_score(true, found, average_method="arithmetic"),
            adjusted_rand_score(true, found),
        ])  # fmt: skip
    return np.array(rows)


def ours(groups: np.ndarray, assignment: np.ndarray, device: str = "cpu") -> np.ndarray:
    maps = (torch.from_numpy(np.ascontiguousarray(labels)).to(device) for labels in (groups, assignment))
    return torch.stack(list(grouping_scores(*maps)), dim=1).cpu().numpy()


def random_maps(rng: np.random.Generator, images: int, pixels: int, groups: int, components: int, agreement: float):
    true = rng.integers(0, groups + 1, (images, pixels))
    found = rng.integers(0, components, (images, pixels))
    return true, np.where(rng.random(true.shape) < agreement, true % components, found)


@pytest.mark.parametrize("pixels", [1, 2, 3, 7, 40, 784])
@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.97])
def test_random_maps_agree_with_scikit_learn(pixels: int, agreement: float) -> None:
    rng = np.random.default_rng([pixels, int(100 * agreement)])
    for groups, components in [(1, 1), (1, 4), (3, 1), (2, 2), (3, 3), (3, 5), (5, 4), (8, 11), (30, 20)]:
        true, found = random_maps(rng, 12, pixels, groups, components, agreement)
        np.testing.assert_allclose(ours(true, found), by_scikit_learn(true, found), rtol=0, atol=TOLERANCE)


def test_sequences_of_many_pixels_agree_with_scikit_learn() -> None:
    true, found = random_maps(np.random.default_rng(0), 3, 21 * 784, 4, 5, 0.3)
    np.testing.assert_allclose(ours(true, found), by_scikit_learn(true, found), rtol=0, atol=TOLERANCE)


def test_very_uneven_groups_agree_with_scikit_learn() -> None:
    """Sizes where the range of the hypergeometric sum is skewed: single pixels, nearly everything in one group."""
    rng = np.random.default_rng(1)
    true, found = np.ones((40, 5000), dtype=np.int64), np.zeros((40, 5000), dtype=np.int64)
    for image in range(40):
        a, b = rng.choice([1, 2, 5, 60, 2500, 4990, 4999], 2)
        true[image, rng.permutation(5000)[:a]] = 2
        found[image, rng.permutation(5000)[:b]] = 1
    np.testing.assert_allclose(ours(true, found), by_scikit_learn(true, found), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("groups", "assignment", "ami", "ari"),
    [
        ([1, 1, 1, 1], [3, 3, 3, 3], 1.0, 1.0),  # one group in both
        ([1, 1, 1, 1], [0, 1, 0, 1], 0.0, 0.0),  # one group, two components
        ([1, 2, 1, 2], [0, 0, 0, 0], 0.0, 0.0),  # K = 1
        ([1, 2, 3, 4], [3, 1, 0, 2], 1.0, 1.0),  # a group for every pixel in both
        ([1, 1, 2, 2], [0, 1, 2, 3], 0.0, 0.0),  # a component for every pixel
        ([7, 0, 0, 0], [0, 1, 2, 3], 1.0, 1.0),  # a single scored pixel
        ([2, 2, 9, 9], [5, 5, 0, 0], 1.0, 1.0),  # the same partition by other names
        ([0, 0, 0, 0], [0, 1, 2, 3], math.nan, math.nan),  # nothing to score
    ],
)
def test_degenerate_maps(groups: list[int], assignment: list[int], ami: float, ari: float) -> None:
    maps = torch.tensor([groups]), torch.tensor([assignment])
    for average in ("max", "arithmetic"):
        assert adjusted_mutual_info(*maps, average=average).item() == pytest.approx(ami, abs=1e-12, nan_ok=True)
    assert adjusted_rand_index(*maps).item() == pytest.approx(ari, abs=1e-12, nan_ok=True)


def test_a_table_worked_out_by_hand() -> None:
    """Four pixels, two and two, crossed: MI = 0, E[MI] = log(2)/3 (one of three pairings agrees), H = log(2)."""
    groups, assignment = torch.tensor([[1, 1, 2, 2]]), torch.tensor([[0, 1, 0, 1]])
    assert adjusted_mutual_info(groups, assignment).item() == pytest.approx(-0.5, abs=1e-12)
    assert adjusted_rand_index(groups, assignment).item() == pytest.approx(-0.5, abs=1e-12)  # (0 - 2/3) / (2 - 2/3)


def test_averages_differ_and_max_reads_lower() -> None:
    groups, assignment = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 2]]), torch.tensor([[0, 0, 1, 2, 2, 3, 3, 3]])
    low, high = (adjusted_mutual_info(groups, assignment, average=name).item() for name in ("max", "arithmetic"))
    assert 0 < low < high - 0.05 < 1


def test_expected_mutual_info_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    for pixels in (5, 100, 784, 16000):
        true, found = rng.integers(0, 4, pixels), rng.integers(0, 5, pixels)
        sparse = contingency_matrix(true, found, sparse=True)
        table = torch.from_numpy(sparse.toarray().astype(np.int64))[None]
        expected = expected_mutual_information(sparse, pixels)
        assert expected_mutual_info(table).item() == pytest.approx(expected, rel=1e-9)


def test_unscored_pixels_change_nothing() -> None:
    rng = np.random.default_rng(3)
    true, found = rng.integers(1, 4, (5, 100)), rng.integers(0, 3, (5, 100))
    padded = np.concatenate([true, np.zeros((5, 50), dtype=np.int64)], axis=1)
    others = np.concatenate([found, rng.integers(0, 40, (5, 50))], axis=1)
    np.testing.assert_allclose(ours(padded, others), ours(true, found), rtol=0, atol=1e-13)


def test_images_and_flat_pixels_and_types_score_alike() -> None:
    rng = np.random.default_rng(4)
    true, found = rng.integers(0, 5, (6, 28, 28)), rng.integers(0, 4, (6, 28, 28))
    expected = ours(true.reshape(6, -1), found.reshape(6, -1))
    for kind in (np.uint8, np.int16, np.int32, np.uint16, np.uint32, np.uint64):
        np.testing.assert_array_equal(ours(true.astype(kind), found.astype(kind)), expected)


def test_large_labels_with_gaps_score_as_small_ones() -> None:
    rng = np.random.default_rng(5)
    true, found = rng.integers(0, 5, (50, 200)), rng.integers(0, 7, (50, 200))
    far = np.array([0, 65535, 17, 40000, 3])[true], np.array([9, 65535, 0, 1, 300, 8, 7])[found]
    np.testing.assert_allclose(ours(*far), ours(true, found), rtol=0, atol=1e-13)


def test_no_images_give_no_scores() -> None:
    empty = torch.zeros(0, 28, 28, dtype=torch.int64)
    assert adjusted_mutual_info(empty, empty).shape == (0,)
    assert adjusted_rand_index(empty, empty).shape == (0,)
    no_pixels = torch.zeros(3, 0, dtype=torch.int64)
    assert adjusted_mutual_info(no_pixels, no_pixels).isnan().tolist() == [True] * 3


def test_random_assignments_score_zero_on_average() -> None:
    rng = np.random.default_rng(6)
    scores = ours(rng.integers(0, 4, (4000, 120)), rng.integers(0, 4, (4000, 120)))
    error = scores.std(axis=0) / math.sqrt(4000)
    assert (np.abs(scores.mean(axis=0)) < 4 * error).all()
    assert (error < 0.001).all()


@pytest.mark.parametrize(
    ("groups", "assignment", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64), "groups: expected an integer tensor"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3), "assignment: expected an integer tensor"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64), "assignment: expected the shape"),
        (torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), "groups: expected shape"),
        (torch.full((1, 2), -1), torch.zeros(1, 2, dtype=torch.int64), "got -1"),
        (torch.ones(1, 2, dtype=torch.int64), torch.full((1, 2), 70000), "assignment: expected labels from 0 to 65535"),
        ([[1, 2]], torch.zeros(1, 2, dtype=torch.int64), "groups: expected an integer tensor, got list"),
    ],
)
def test_bad_maps_are_refused(groups: torch.Tensor, assignment: torch.Tensor, message: str) -> None:
    for score in (adjusted_mutual_info, adjusted_rand_index, grouping_scores):
        with pytest.raises(NeuralEMError, match=message):
            score(groups, assignment)


def test_an_unknown_average_is_refused() -> None:
    labels = torch.ones(1, 2, dtype=torch.int64)
    with pytest.raises(NeuralEMError, match=r"average: expected one of max, arithmetic, got 'maximum'"):
        adjusted_mutual_info(labels, labels, average="maximum")  # type: ignore[arg-type]


def test_confidence_is_the_mean_of_the_largest_over_scored_pixels() -> None:
    gamma = torch.tensor([[0.9, 0.5, 0.2], [0.1, 0.5, 0.8]]).view(1, 2, 1, 1, 3)
    assert confidence(gamma).item() == pytest.approx((0.9 + 0.5 + 0.8) / 3)
    groups = torch.tensor([[[1, 0, 2]]])
    assert confidence(gamma, groups).item() == pytest.approx((0.9 + 0.8) / 2)
    assert confidence(gamma, torch.zeros(1, 1, 3, dtype=torch.int64)).isnan().item()
    with pytest.raises(NeuralEMError, match="gamma: expected shape"):
        confidence(gamma[0])


@gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_same_scores() -> None:
    rng = np.random.default_rng(7)
    for pixels, groups, components in [(784, 3, 4), (21 * 784, 5, 5), (784, 200, 300), (3, 2, 2)]:
        true, found = random_maps(rng, 30, pixels, groups, components, 0.4)
        np.testing.assert_allclose(ours(true, found, "cuda"), ours(true, found), rtol=0, atol=TOLERANCE)
