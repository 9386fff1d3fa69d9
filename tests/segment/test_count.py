"""How many objects: empties and doubles are not counted; the shipped model counts shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import neural_em
from neural_em.data import flying_shapes
from neural_em.segment import SegmentConfig, Step, segment
from neural_em.segment.count import Counter
from tests.known import BARS, LOWER, UPPER, known_model


def step(*pictures: np.ndarray, gamma: list[np.ndarray]) -> Step:
    psi = torch.from_numpy(np.stack(pictures))[:, None]
    return Step(torch.zeros(len(pictures), 1), psi, torch.from_numpy(np.stack(gamma)).float(), 0.0)


def test_doubles_become_one_and_empties_none() -> None:
    """Two components share the upper bar by half, one has the lower bar, one has nothing."""
    x = torch.from_numpy(BARS)[None]
    low = LOWER + 0.01 * UPPER
    shares = [UPPER * 0.51 + 0.1 * (1 - BARS), UPPER * 0.48, low + 0.5 * (1 - BARS), 0.4 * (1 - BARS)]
    merged = Counter().merged(x, step(UPPER, UPPER, LOWER, 0 * BARS, gamma=shares), 0.0)
    owner = merged.argmax(dim=0).numpy()
    assert set(owner[UPPER > 0]) == {0}
    assert set(owner[LOWER > 0]) == {2}
    assert merged[1].sum() == merged[3].sum() == 0
    assert torch.allclose(merged[0], torch.from_numpy(shares[0] + shares[1]).float())


def test_objects_that_meet_for_a_moment_stay_two() -> None:
    counter, apart = Counter(), torch.from_numpy(BARS)[None]
    for _ in range(10):
        counter.merged(apart, step(UPPER, LOWER, gamma=[UPPER, LOWER]), 0.0)
    together = step(UPPER, UPPER, gamma=[0.6 * UPPER, 0.4 * UPPER])
    merged = counter.merged(torch.from_numpy(UPPER)[None], together, 0.0)
    assert (merged.flatten(1).sum(dim=1) > 0).tolist() == [True, True]


@pytest.mark.parametrize("objects", [2, 4])
def test_the_shipped_model_counts_shapes(objects: int, tmp_path: Path) -> None:
    frames, _ = flying_shapes(1, objects=objects, frames=14, seed=9, split="test")
    np.save(tmp_path / "clip.npy", frames[:, 0, 0].numpy())
    config = SegmentConfig(8, starts=1, count=True)
    *_, last = segment(tmp_path / "clip.npy", neural_em.pretrained("flying-shapes"), config)
    assert len(np.unique(last.labels[last.labels > 0])) == objects


def test_more_components_than_objects(tmp_path: Path) -> None:
    """The known model makes doubles of its two bars from five components."""
    np.save(tmp_path / "clip.npy", np.stack([BARS] * 6))
    *_, plain = segment(tmp_path / "clip.npy", known_model(), SegmentConfig(5, starts=1))
    *_, counted = segment(tmp_path / "clip.npy", known_model(), SegmentConfig(5, starts=1, count=True))
    assert len(np.unique(counted.labels[counted.labels > 0])) == 2
    assert counted.labels[0, 0] != counted.labels[-1, 0]
    assert np.array_equal(counted.labels > 0, plain.labels > 0)
