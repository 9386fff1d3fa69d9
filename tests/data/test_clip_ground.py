"""The ground of a clip: what moves in front of it is found, what lies on it is not."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from neural_em import ModelConfig, NeuralEM
from neural_em.data import clip_ground as ground
from neural_em.data.fitting import Fitting
from neural_em.segment import SegmentConfig, segment
from tests.known import BARS, known_model
from tests.segment.scenes import balls, texture

LOOK, SEEN = Fitting(60, 80, "colour", "resize"), Fitting(30, 40, "binary", "resize")


def samples(clip: np.ndarray) -> np.ndarray:
    frames = clip if clip.ndim == 4 else clip[..., None]
    return ground.sampled(LOOK.unit_frame(frame, "") for frame in frames)


def iou(found: np.ndarray, true: np.ndarray) -> float:
    return float((found & true).sum() / (found | true).sum())


def test_balls_on_a_textured_ground_with_a_moving_shadow() -> None:
    clip, masks = balls(60, colour=True)
    found, why = ground.choose(samples(clip))
    assert found is not None
    assert found.kind == "median"
    assert "the camera stands still" in why
    assert np.abs(found.picture - texture(60, 80).transpose(2, 0, 1)).mean() < 0.03
    for t in range(0, 60, 6):
        there, shadow = found.foreground(LOOK.unit_frame(clip[t], ""))
        assert iou(there, masks[t] > 0) > 0.8
        assert (shadow & (masks[t] > 0)).sum() < 0.1 * (masks[t] > 0).sum()


def as_jpeg(frame: np.ndarray) -> np.ndarray:
    held = io.BytesIO()
    Image.fromarray(frame).save(held, "jpeg")
    return np.asarray(Image.open(held))


@pytest.mark.parametrize("even", [False, True], ids=["a gradient", "one colour"])
def test_what_compression_leaves_around_objects_is_no_object(even: bool) -> None:
    """Three discs in small JPEG pictures, whose blocks are as large as they are."""
    rows, columns = np.mgrid[:64, :64]
    gradient = np.full((64, 64), 60.0) if even else 40 + columns.astype(float)
    frames, count = [], []
    for t in range(40):
        frame, there = gradient[..., None].repeat(3, axis=2), np.zeros((64, 64), np.bool_)
        for k, colour in enumerate(((220, 50, 50), (60, 200, 80), (230, 200, 60))):
            disc = (rows - 14 - 18 * k) ** 2 + (columns - 32 - 20 * np.sin(t / 6 + 2 * k)) ** 2 < 50
            frame[disc], there = colour, there | disc
        frames.append(as_jpeg(frame.astype(np.uint8)))
        count.append(ndimage.label(there, np.ones((3, 3)))[1])
    look = Fitting(64, 64, "colour", "resize")
    seen = ground.sampled(look.unit_frame(frame, "") for frame in frames)
    found, _ = ground.choose(seen)
    assert found is not None
    assert found.kind == ("flat" if even else "median")
    patches = [ndimage.label(found.foreground(frame)[0], np.ones((3, 3)))[1] for frame in seen]
    assert patches == count


def test_a_grey_clip_is_the_same_in_one_channel_and_in_three() -> None:
    """A palette or a video file gives three; grey objects are no shadows then either."""
    clip, _ = balls(60, colour=True)
    grey = clip.mean(axis=3).round().astype(np.uint8)
    one, three = Fitting(60, 80, "grey", "resize"), LOOK
    found = []
    for look, frames in ((one, grey[..., None]), (three, grey[..., None].repeat(3, axis=3))):
        learned = ground.learn(ground.sampled(look.unit_frame(frame, "") for frame in frames))
        found.append([learned.foreground(look.unit_frame(frame, "")) for frame in frames[::6]])
    for (there, shadow), (others, other_shadow) in zip(*found, strict=True):
        assert iou(others, there) > 0.99
        assert not (shadow | other_shadow).any()


def test_things_that_stand_still_on_one_colour_are_no_ground() -> None:
    clip, masks = balls(30)
    clip[:, 5:15, 5:15] = 120  # never moves
    clip[clip == 0] = 40
    found, why = ground.choose(samples(clip))
    assert found is not None
    assert why == "flat: objects move on one colour, dark grey (#282828)"
    true = masks[7] > 0
    true[5:15, 5:15] = True
    assert iou(found.foreground(LOOK.unit_frame(clip[7][..., None], ""))[0], true) > 0.85


def test_dark_objects_on_white() -> None:
    clip, masks = balls(30)
    found, _ = ground.choose(samples(255 - clip))
    assert found is not None
    assert iou(found.foreground(LOOK.unit_frame((255 - clip[3])[..., None], ""))[0], masks[3] > 0) > 0.8


@pytest.mark.parametrize("grey", [False, True])
def test_a_moving_camera_is_recognised(grey: bool) -> None:
    wide = (texture(60, 200, 3) * 1.8 - 0.3).clip(0, 1)
    pan = np.stack([wide[:, 2 * t : 2 * t + 80] for t in range(50)])
    pixels = np.rint(pan * 255).astype(np.uint8)
    found, why = ground.choose(samples(pixels[..., 0] if grey else pixels))
    assert found is None
    assert why.startswith("none: the camera moves")


def test_what_says_too_little() -> None:
    assert ground.choose(samples(balls(5)[0]))[1] == "none: it takes 8 frames to learn it"
    still = np.stack([np.rint(texture(60, 80) * 255).astype(np.uint8)] * 10)
    assert ground.choose(samples(still)) == (None, "none: nothing moves in front of it")
    binary = np.where(balls(20)[1] > 0, 255, 0).astype(np.uint8)
    still = np.stack([binary[0]] * 20)  # figures that touch are for the model to tell apart
    assert ground.choose(samples(still)) == (None, "none: the frames are black and white already")
    assert ground.choose(samples(binary))[1] == "flat: objects move on one colour, black (#000000)"


def test_samples_are_spread_over_the_clip_and_bounded() -> None:
    read = []

    def frames():  # type: ignore[no-untyped-def]
        for t in range(100_000):
            read.append(t)
            yield np.full((1, 1, 1), t, np.float32)

    kept = ground.sampled(frames()).ravel()
    assert len(read) == ground.LOOKED_AT + 1
    assert ground.SAMPLES / 2 <= len(kept) <= ground.SAMPLES
    assert len(set(np.diff(kept))) == 1
    assert kept[-1] > 0.9 * ground.LOOKED_AT


@pytest.mark.parametrize(("channels", "prior"), [("binary", 0.0), ("grey", 0.0), ("colour", "median")])
def test_what_each_kind_of_model_sees(channels: str, prior: float | str) -> None:
    """A red square on blue-grey: a mask, a difference, or the square on the ground's colour."""
    picture = np.zeros((3, 4, 4), np.float32) + np.array([0.3, 0.3, 0.5], np.float32)[:, None, None]
    frame = picture.copy()
    frame[:, 2:, 2:] = np.array([0.9, 0.1, 0.1])[:, None, None]
    fitting = Fitting(2, 2, channels, "resize")  # type: ignore[arg-type]
    seen = ground.Ground("median", picture, np.full((4, 4), 0.05, np.float32)).removed(frame, fitting, prior)
    if channels == "colour":
        assert np.allclose(seen[:, 1, 1], [0.9, 0.1, 0.1])
        assert np.allclose(seen[:, 0, 0], [0.3, 0.3, 0.5])
    else:
        assert np.allclose(seen, np.array([[[0, 0], [0, 1 if channels == "binary" else 0.6]]]), atol=1e-6)


def test_a_picture_of_the_empty_scene(tmp_path: Path) -> None:
    """The bars in front of a bright wall, which alone would be all white."""
    wall = np.tile(np.linspace(150, 220, 12).astype(np.uint8), (12, 1))
    Image.fromarray(wall).save(tmp_path / "wall.png")
    frame = np.where(np.kron(BARS, np.ones((2, 2))) > 0, 20, wall).astype(np.uint8)
    Image.fromarray(frame).save(tmp_path / "frame.png")
    config = SegmentConfig(2, starts=1, background=str(tmp_path / "wall.png"))
    found = segment(tmp_path / "frame.png", known_model(), config)
    (only,) = found
    assert found.ground is not None
    assert np.array_equal(only.labels > 0, np.kron(BARS, np.ones((2, 2))) > 0)
    Image.fromarray(wall.repeat(3, axis=0).repeat(3, axis=1)).save(tmp_path / "wall.png")
    found = segment(tmp_path / "frame.png", known_model(), config)
    assert found.choice.endswith("wall.png, resized from 36 x 36 pixels")
    assert np.array_equal(next(found).labels > 0, np.kron(BARS, np.ones((2, 2))) > 0)


def test_a_picture_of_another_size_is_resized_once(tmp_path: Path) -> None:
    """Straight to the size that the clip is looked at; where frames are only cut out, to the clip's size."""
    noise = np.random.default_rng(0).integers(0, 256, (52, 52), np.uint8)
    path = tmp_path / "wall.png"
    Image.fromarray(noise).save(path)
    for fit, side, cut in (("resize", 12, 0), ("crop-resize", 12, 0), ("crop", 13, 3)):
        look = ground.looked_at(Fitting(6, 6, "grey", fit), False, (13, 13))
        learned, _ = ground.from_file(str(path), look, (13, 13))
        wanted = np.asarray(Image.fromarray(noise).resize((side, side), Image.Resampling.BILINEAR)) / 255
        wanted = wanted[cut : cut + 6, cut : cut + 6] if cut else wanted
        assert np.allclose(learned.picture[0], wanted, atol=1e-6)


WALL = texture(60, 80)


def standing(frames: Iterable[int], count: int = 60, noise: float = 0.0) -> NDArray[np.uint8]:
    """(T,H,W,3): a red square stands before a wall in some frames, and a green one passes by below it."""
    scene = np.stack([WALL] * count) + np.random.default_rng(0).normal(0, noise, (count, *WALL.shape))
    for t in range(count):
        scene[t, 40:48, t : t + 8] = (0.1, 0.6, 0.2)
        scene[t, 10:26, 30:46] = (0.85, 0.15, 0.15) if t in frames else scene[t, 10:26, 30:46]
    return np.rint(255 * scene.clip(0, 1)).astype(np.uint8)


def wrong(scene: NDArray[np.uint8], wall: NDArray[Any] = WALL) -> float:
    """The share of the pixels at which the ground is not the wall."""
    found = ground.learn(samples(scene)).picture
    return float((np.abs(found - wall.transpose(2, 0, 1)).max(axis=0) > 0.05).mean())


@pytest.mark.parametrize(
    "away", [range(45, 60), range(20), range(20, 35), range(45), range(6), range(53, 60), range(17, 24)]
)
@pytest.mark.parametrize("count", [60, 50])
def test_an_object_that_stands_for_long_is_not_ground(away: Sequence[int], count: int) -> None:
    """A square that is there for most of the clip, or for a part of it: the ground is the wall behind it."""
    late = 60 - count  # the same from the end, whatever the number of frames
    gone = {t - late if t > 40 else t for t in away}
    scene = standing(set(range(count)) - gone, count)
    assert wrong(scene) == 0
    assert wrong(scene[..., :1], WALL[..., :1]) == 0  # in grey


def test_it_is_mended_with_noise_and_something_passing() -> None:
    scene = standing(range(38), noise=0.02)
    for t in range(38, 50):
        scene[t, 12:20, 4 * (t - 30) : 4 * (t - 30) + 6] = (30, 30, 200)
    assert wrong(scene) < 0.002  # of noise; the square is 0.05


def test_what_never_leaves_is_ground() -> None:
    """Also where something passes in front of it."""
    wall = WALL.copy()
    wall[10:26, 30:46] = (0.85, 0.15, 0.15)
    scene = standing(range(60))
    for t in range(60):
        scene[t, 14:20, t : t + 6] = (30, 30, 200)
    assert wrong(scene, wall) == 0


def test_light_that_goes_out_leaves_the_ground_alone() -> None:
    """A film that begins black between black bars, and a room whose lamp is off at the end, beside dark furniture."""
    film, room = standing(()), standing(())
    wall, dark = WALL.copy(), WALL.copy()
    film[:, :6] = film[:, -6:] = wall[:6] = wall[-6:] = 0
    film[:9] = 0
    room[:, :, :14] = dark[:, :14] = 0
    room[-10:] = room[-10:] // 8
    assert wrong(film, wall) == 0
    assert wrong(room, dark) == 0


@pytest.mark.parametrize(
    ("colour", "words"),
    [
        ((0, 0, 0), "black (#000000)"), ((255, 255, 255), "white (#ffffff)"), ((128,), "grey (#808080)"),
        ((20, 30, 100), "dark blue (#141e64)"), ((90, 170, 60), "green (#5aaa3c)"), ((250, 0, 10), "red (#fa000a)"),
    ],
)  # fmt: skip
def test_the_colour_of_a_ground_in_words(colour: tuple[int, ...], words: str) -> None:
    picture = np.zeros((len(colour), 2, 2), np.float32) + np.array(colour, np.float32)[:, None, None] / 255
    assert ground.colour_of(ground.Ground("flat", picture, picture[0])) == words


def test_a_model_with_a_ground_of_its_own_keeps_it(tmp_path: Path) -> None:
    size = {"height": 6, "width": 6, "theta_size": 2, "convolutions": (), "hidden": 0}
    model = NeuralEM(ModelConfig(**size, distribution="gaussian", prior="background"))
    np.save(tmp_path / "clip.npy", balls(10)[0])
    found = segment(tmp_path / "clip.npy", model, SegmentConfig(2, starts=1))
    assert found.ground is None
    assert found.choice == "none: the model has learned its own"
