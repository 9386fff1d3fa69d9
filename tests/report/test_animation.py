"""Animations: the exact colours of a hard assignment in every frame of the GIF; MP4 or one clear error."""

import builtins

import numpy as np
import pytest
from PIL import Image, ImageSequence

from neural_em.errors import NeuralEMError
from neural_em.report.animation import CAPTION, GROUND, animation_frames, save_animation
from neural_em.report.colours import palette

GAP, FRAME = 10, 4  # the layout: a gap around each panel, and a frame in the component's colour


def gif_frames(path):
    with Image.open(path) as image:
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)], image.info


def panel(picture, index, height, width, factor):
    """Every pixel of the index-th panel of the picture, checked to be a square of equal screen pixels."""
    left = GAP + FRAME + index * (width * factor + 2 * FRAME + GAP)
    top = GAP + FRAME
    cut = picture[top : top + height * factor, left : left + width * factor]
    small = cut[::factor, ::factor]
    assert np.array_equal(cut, np.kron(small, np.ones((factor, factor, 1), np.uint8)))
    return small


def test_gif_shows_the_exact_colours_of_a_hard_assignment(squares, tmp_path):
    sequence = squares(steps=6, components=3)
    save_animation(sequence, tmp_path / "a.gif", magnification=7, fps=4)
    pictures, info = gif_frames(tmp_path / "a.gif")
    assert len(pictures) == 6
    assert (info["duration"], info["loop"]) == (250, 0)
    labels = np.argmax(sequence.gamma, axis=1)
    colours = palette(3)
    for t, picture in enumerate(pictures):
        assert np.array_equal(panel(picture, 0, 12, 15, 7), np.uint8(255) * (labels[t] > 0)[..., None].repeat(3, -1))
        assert np.array_equal(panel(picture, 1, 12, 15, 7), colours[labels[t]])
        for k in (1, 2):
            assert np.array_equal(panel(picture, 2 + k, 12, 15, 7), (labels[t] == k)[..., None] * colours[k])
        width = 15 * 7 + 2 * FRAME + GAP
        assert [picture[GAP, GAP + (2 + k) * width].tolist() for k in range(3)] == colours.tolist()
        assert picture.shape[1] == GAP + 5 * width


def test_steps_without_input_have_frames_of_another_colour(rolled_out):
    pictures = animation_frames(rolled_out, 7)
    for t, picture in enumerate(pictures):
        for index, strip in enumerate(rolled_out.frames_rgb().values()):
            assert np.array_equal(panel(picture, index, 12, 15, 7), strip[t])
        assert np.array_equal(panel(picture, 3, 12, 15, 7), rolled_out.assignment_rgb()[t])
    edges = [picture[GAP, GAP].tolist() for picture in pictures]
    assert edges == [edges[0]] * 3 + [edges[3]] * 2
    assert edges[0] != edges[3]


def test_gif_of_more_than_256_colours_keeps_the_components_exact_and_the_rest_close(squares, tmp_path):
    sequence = squares(steps=4, components=3)
    rng = np.random.default_rng(3)
    soft = rng.dirichlet(np.ones(3), (4, 6, 15)).transpose(0, 3, 1, 2)  # the upper half of each frame
    sequence.gamma[:, :, :6] = soft
    save_animation(sequence, tmp_path / "a.gif", magnification=4)
    wanted = animation_frames(sequence, magnification=4)
    assert len(np.unique(np.concatenate([one.reshape(-1, 3) for one in wanted]), axis=0)) > 256
    for picture, expected in zip(gif_frames(tmp_path / "a.gif")[0], wanted, strict=True):
        assert np.array_equal(panel(picture, 1, 12, 15, 4)[6:], panel(expected, 1, 12, 15, 4)[6:])
        difference = np.abs(picture.astype(int) - expected)
        assert difference.mean() < 3


def test_frames_have_one_size_and_captions_only_where_they_fit(squares):
    for magnification in (1, 12):
        pictures = animation_frames(squares(components=2), magnification)
        assert len({picture.shape for picture in pictures}) == 1
        width = 15 * magnification + 2 * FRAME + GAP
        below = pictures[0][-GAP - CAPTION : -GAP, width + GAP : 2 * width]  # of "assignment", without its number
        assert bool((below != GROUND).any()) == (magnification == 12)


def test_mp4_has_every_step_with_the_colours_nearly_kept(squares, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    sequence = squares(steps=5, components=3)
    save_animation(sequence, tmp_path / "a.mp4", magnification=9)
    reader = ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    width, height = next(reader)["size"]
    pictures = [np.frombuffer(data, np.uint8).reshape(height, width, 3) for data in reader]
    wanted = animation_frames(sequence, magnification=9)
    assert len(pictures) == 5
    assert height % 2 == width % 2 == 0
    for picture, expected in zip(pictures, wanted, strict=True):
        high, wide, _ = expected.shape
        assert np.abs(picture[:high, :wide].astype(int) - expected).mean() < 5
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_without_ffmpeg_there_is_one_clear_error_and_no_file(squares, tmp_path, monkeypatch):
    original = builtins.__import__

    def without(name, *rest, **options):
        if name == "imageio_ffmpeg":
            raise ImportError(name)
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        NeuralEMError, match=r"MP4: expected the package imageio-ffmpeg \(pip install 'neural-em\[video\]'\)"
    ):
        save_animation(squares(), tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []


def test_bad_calls_are_refused(squares, tmp_path):
    with pytest.raises(NeuralEMError, match="format of an animation: expected one of gif, mp4, got 'avi'"):
        save_animation(squares(), tmp_path / "a.avi")
    for fps in (0, -1, 1000, float("nan")):
        with pytest.raises(NeuralEMError, match=r"fps: expected a number from 0\.1 to 50"):
            save_animation(squares(), tmp_path / "a.gif", fps=fps)
