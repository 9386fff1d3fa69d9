"""The baselines on images whose grouping is plain to see."""

from __future__ import annotations

import pytest
import torch
from scipy import ndimage
from sklearn.cluster import KMeans

from neural_em import randomness
from neural_em.errors import NeuralEMError
from neural_em.evaluation import adjusted_rand_index, connected_components, k_means


def squares(*corners: tuple[int, int], size: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """A frame (1,1,28,28) with a full square at each corner, and its groups (1,28,28)."""
    groups = torch.zeros(1, 28, 28, dtype=torch.int64)
    for label, (y, x) in enumerate(corners, start=1):
        groups[0, y : y + size, x : x + size] = label
    return (groups > 0).float()[:, None], groups


def test_connected_components_finds_separate_squares() -> None:
    one, one_groups = squares((0, 0), (10, 10), (20, 3))
    two, two_groups = squares((3, 3), (20, 20))
    frames, groups = torch.cat([one, two]), torch.cat([one_groups, two_groups])
    found = connected_components(frames, threshold=0.5)
    assert adjusted_rand_index(groups, found).tolist() == [1.0, 1.0]
    assert [sorted(image.unique().tolist()) for image in found] == [[0, 1, 2, 3], [0, 1, 2]]
    assert (found[frames[:, 0] == 0] == 0).all()


def test_connected_components_joins_what_touches() -> None:
    frames, groups = squares((0, 0), (5, 5))  # at a corner
    assert adjusted_rand_index(groups, connected_components(frames)).tolist() == [0.0]


def test_connected_components_of_a_stack_are_those_of_its_images() -> None:
    generator = torch.Generator().manual_seed(0)
    frames = torch.rand(20, 2, 9, 11, generator=generator) - 0.15
    found = connected_components(frames, threshold=0.5)
    for image, patches in zip(frames, found, strict=True):
        alone, count = ndimage.label((image > 0.5).any(dim=0).numpy(), [[1, 1, 1]] * 3)
        assert int(patches.max()) == count
        assert adjusted_rand_index(torch.from_numpy(alone)[None] + 1, patches[None]).item() == 1.0
    assert connected_components(frames[:0]).shape == (0, 9, 11)
    assert (connected_components(torch.zeros(2, 1, 4, 4)) == 0).all()


def test_k_means_finds_squares_far_apart() -> None:
    frames, groups = squares((0, 0), (0, 22), (22, 10))
    frames, groups = frames.repeat(50, 1, 1, 1), groups.repeat(50, 1, 1)
    found = k_means(frames, 3, randomness.keys(0, torch.arange(50)))
    assert (adjusted_rand_index(groups, found) == 1.0).all()


def test_k_means_comes_as_near_as_scikit_learn() -> None:
    frames = (torch.rand(8, 1, 28, 28, generator=torch.Generator().manual_seed(1)) < 0.15).float()
    found = k_means(frames, 4, randomness.keys(1, torch.arange(8)), starts=10)
    for image, component in zip(frames[:, 0], found, strict=True):
        place = image.nonzero().double()
        label = component[image > 0]
        spread = sum(((place[label == k] - place[label == k].mean(dim=0)) ** 2).sum().item() for k in range(4))
        best = KMeans(4, n_init=10, random_state=0).fit(place.numpy()).inertia_
        assert spread <= best * 1.01


def test_k_means_belongs_to_the_image_not_to_its_batch() -> None:
    frames = (torch.rand(6, 1, 12, 12, generator=torch.Generator().manual_seed(2)) < 0.3).float()
    keys = randomness.keys(3, torch.arange(6))
    together = k_means(frames, 3, keys)
    alone = torch.cat([k_means(frames[i : i + 1], 3, keys[i : i + 1]) for i in range(6)])
    assert torch.equal(together, alone)
    assert not torch.equal(together, k_means(frames, 3, keys + 1, starts=1))


def test_k_means_with_nothing_to_group() -> None:
    found = k_means(torch.zeros(2, 1, 5, 5), 3, randomness.keys(0, torch.arange(2)))
    assert found.shape == (2, 5, 5)
    frames, _ = squares((2, 2), size=1)  # fewer pixels than centres
    assert k_means(frames, 4, randomness.keys(0, torch.arange(1))).max() < 4
    assert (k_means(frames, 1, randomness.keys(0, torch.arange(1))) == 0).all()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(NeuralEMError, match="components: expected an integer >= 1, got 0"):
        k_means(torch.zeros(1, 1, 4, 4), 0, randomness.keys(0, torch.arange(1)))
    with pytest.raises(NeuralEMError, match=r"frames: expected shape \(N,C,H,W\)"):
        connected_components(torch.zeros(4, 4))
