"""A ground from the clip's own frames, and sequences held out at the end of clips."""

from pathlib import Path

import numpy as np
import pytest

from neural_em import NeuralEMError
from neural_em.data.clip_ground import of_clip
from neural_em.data.fitting import Fitting
from neural_em.data.sources import open_source
from tests.data.own_frames import counted, everything, load, numbers

RNG = np.random.default_rng(0)


def walking(colour: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """A bright block of 2 x 2 pixels that walks along the diagonal of a texture of 18 x 18, and the texture."""
    texture = RNG.integers(0, 100, (18, 18, 3) if colour else (18, 18), dtype=np.uint8)
    clip = np.repeat(texture[None], 9, axis=0)
    for t in range(9):
        block = slice(2 * t, 2 * t + 2)
        clip[t, block, block] = texture[block, block] + (np.array([0, 0, 150]) if colour else 150)
    return clip, texture


BLOCKS = np.kron(np.eye(9)[:, :, None] * np.eye(9)[:, None, :], np.ones((1, 2, 2)))


@pytest.mark.parametrize("colour", [False, True])
def test_the_ground_is_what_stands_still(colour: bool, tmp_path: Path) -> None:
    clip, texture = walking(colour)
    np.save(tmp_path / "a.npy", clip)
    ground, _ = of_clip("median", open_source(tmp_path / "a.npy"), Fitting(18, 18))
    assert np.allclose(ground.picture * 255, texture.transpose(2, 0, 1) if colour else texture[None], atol=1e-3)


@pytest.mark.parametrize("colour", [False, True])
def test_frames_are_what_stands_out_from_it(colour: bool, tmp_path: Path) -> None:
    clip, _ = walking(colour)
    np.save(tmp_path / "a.npy", clip)
    grey, _ = everything(load(tmp_path / "a.npy", channels="grey", background="median"))
    assert np.allclose(grey[:, 0, 0] * 255, 150 * BLOCKS, atol=1e-3)
    binary, _ = everything(load(tmp_path / "a.npy", channels="binary", background="median"))
    assert np.array_equal(binary[:, 0, 0], BLOCKS)


def test_objects_in_their_own_colours_on_the_grounds(tmp_path: Path) -> None:
    """As a model with a ground of one colour sees them: here the ground's median, channel by channel."""
    clip, texture = walking(colour=True)
    np.save(tmp_path / "a.npy", clip)
    seen, _ = everything(load(tmp_path / "a.npy", channels="colour", background="median", foreground="colour"))
    common = np.broadcast_to(np.median(texture, axis=(0, 1)), clip.shape)
    expected = np.where(BLOCKS[..., None] > 0, clip, common)
    assert np.allclose(seen[:, 0] * 255, expected.transpose(0, 3, 1, 2), atol=1e-3)
    with pytest.raises(NeuralEMError, match="foreground=colour needs background=median or flat"):
        load(tmp_path / "a.npy", channels="colour", foreground="colour")


def test_the_ends_of_clips_are_held_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", counted(10))
    fields = {"frames": 3, "stride": 2, "held_out": 4}
    splits = {name: load(tmp_path, name, **fields) for name in ("training", "validation", "test")}
    frames = {name: numbers(everything(data)[0]) for name, data in splits.items()}
    assert frames["training"] == [[0, 1, 2], [2, 3, 4]] * 2  # 4, 5, 6 would reach into the end
    assert frames["validation"] == [[6, 7, 8]] * 2
    assert frames["test"] == frames["validation"]
    assert "from the ends of the clips" in splits["training"].note


@pytest.mark.parametrize("held_out", [2, 8])
def test_what_leaves_no_sequence_is_refused(held_out: int, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", counted(10))
    with pytest.raises(
        NeuralEMError,
        match=rf"a.npy: sequences of 3 frames must fit into the {held_out} held out and into the {10 - held_out} b",
    ):
        load(tmp_path / "a.npy", frames=3, held_out=held_out)
