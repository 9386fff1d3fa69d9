"""The model for a clip that none was named for."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from neural_em.data import flying_shapes, open_source
from neural_em.segment.choice import usual_model
from neural_em.segment.pipe import PipeSource
from tests.segment.scenes import balls

SHAPES = flying_shapes(1, frames=3, seed=3, split="test")[0][:, 0, 0].numpy()


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        (SHAPES, "flying-shapes"),
        (np.kron(SHAPES, np.ones((1, 3, 3))), "flying-shapes"),
        (np.concatenate([0 * SHAPES[:1], SHAPES]), "flying-shapes"),  # nothing in the first frame
        (1 - SHAPES, "sprites"),  # dark objects
        (0.5 * SHAPES, "sprites"),  # grey ones
        (balls(3)[0], "sprites"),
        (balls(3, colour=True)[0], "sprites"),
        ((balls(3)[0] > 0) * 1.0, "sprites"),  # discs, finer than 28 x 28 pixels show
        (0 * SHAPES, "sprites"),
    ],
)  # fmt: skip
def test_by_the_look_of_the_clip(tmp_path: Path, frames: NDArray[np.float32], name: str) -> None:
    np.save(tmp_path / "clip.npy", frames)
    assert usual_model(open_source(tmp_path / "clip.npy"))[0] == name


def test_frames_from_a_pipe_are_not_looked_at() -> None:
    assert usual_model(PipeSource(io.BytesIO(), (8, 8, 1)))[0] == "flying-shapes"
    assert usual_model(PipeSource(io.BytesIO()))[0] == "sprites"


def test_who_asks_for_grey_frames_gets_a_model_that_sees_them(tmp_path: Path) -> None:
    np.save(tmp_path / "clip.npy", balls(3, colour=True)[0])
    assert usual_model(open_source(tmp_path / "clip.npy"), grey=True)[0] == "flying-shapes"
