"""Flying MNIST against a hand-made halving and painting of a small sample of digits."""

import gzip
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from neural_em import NeuralEMError
from neural_em.data import DataConfig, flying_mnist
from neural_em.data.digits import digit_sprites, digits_of, halve

SAMPLE = Path(__file__).parent / "mnist"  # MNIST's first 60 training and first 60 test digits
HASHES = {  # sha256 of frames (float32) and groups of the first 16 sequences, made on a CPU
    ("training", None, "maximum", "none"): "2f0ad338034e35550a8175fc7e50531567366f5d853f9cfda732d0a521830569",
    ("validation", None, "maximum", "none"): "3a9f884578a71c3c16389806500eb65c431947f55962a9aa8e5c90168cca603c",
    ("test", None, "maximum", "none"): "69ea99a70a9c45bff680663c181d4b74ad107e9cd8f1db94b5168d8e32bd703d",
    ("training", 20, "sum", "none"): "4b548076ad1f75c79f096f18c5d76dabf89e4a523dbba44b0e3e09bcbe1642a1",
    ("test", 20, "sum", "none"): "20ce62eaea937ad53379f9e042d51a91d6ed633498b9040c07af91c8e53f00ab",
    ("training", None, "maximum", "before"): "b32c490441d56a0cfb9829279a90c7a105f2aeececaf95d97a666332104f1e75",
    ("test", 20, "sum", "before"): "e7a12c7814ba4caaa05aadf67581b929b2e1ede13cc275d92bebbfbe55e9add5",
    ("validation", None, "maximum", "after"): "0e6cb580b0ab3605702d15ce50cef1f86f85646a18bf4507966951be5147f0c8",
}


def pixels(part: str) -> np.ndarray:
    """The sample's digits (60, 28, 28), read with nothing but gzip."""
    return np.frombuffer(
        gzip.decompress((SAMPLE / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8
    ).reshape(-1, 28, 28)


def means(digit: np.ndarray) -> np.ndarray:
    """Means of 2 x 2 pixels in [0, 1], one by one."""
    height, width = digit.shape[0] // 2, digit.shape[1] // 2
    rows = [
        [digit[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].astype(float).mean() for j in range(width)] for i in range(height)
    ]
    return np.array(rows) / 255


def ink(digit: np.ndarray) -> np.ndarray:
    """The smallest part of a picture that holds all of its ink."""
    rows, columns = np.nonzero(digit)
    return digit[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]


def small(digit: np.ndarray, crop: str) -> np.ndarray:
    """A digit as it is painted, made another way."""
    if crop == "before":
        digit = ink(digit)
        return means(np.pad(digit, [(0, side % 2) for side in digit.shape]))
    return means(digit) if crop == "none" else ink(means(digit))


def sha256(frames: torch.Tensor, groups: torch.Tensor) -> str:
    return hashlib.sha256(frames.cpu().numpy().tobytes() + groups.cpu().numpy().tobytes()).hexdigest()


def test_halving_is_the_mean_of_four_pixels() -> None:
    digits = pixels("train")[:5]
    ours = halve(digits) / np.float32(1020)
    assert np.array_equal(ours, np.stack([means(digit) for digit in digits]).astype(np.float32))


def test_training_validation_and_test_have_their_own_digits() -> None:
    train, t10k = pixels("train"), pixels("t10k")
    assert np.array_equal(digits_of("training", None, SAMPLE), halve(train[:50]))
    assert np.array_equal(digits_of("validation", None, SAMPLE), halve(train[50:]))
    assert np.array_equal(digits_of("test", None, SAMPLE), halve(t10k))


@pytest.mark.parametrize("split", ["training", "validation", "test"])
def test_a_stage_has_the_same_first_training_digits_in_every_split(split: str) -> None:
    assert np.array_equal(digits_of(split, 20, SAMPLE), halve(pixels("train")[:20]))  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["training", "validation", "test"])
def test_a_lone_digit_is_one_of_its_split_pixel_for_pixel(split: str) -> None:
    frames, groups = flying_mnist(80, objects=1, frames=1, split=split, mnist=SAMPLE, crop="none")  # type: ignore[arg-type]
    known = {"training": pixels("train")[:50], "validation": pixels("train")[50:], "test": pixels("t10k")}[split]
    halved = [means(digit).astype(np.float32) for digit in known]
    for n in range(80):
        image, label = frames[0, n, 0].numpy(), groups[0, n].numpy()
        near = [digit for digit in halved if np.isclose(image.sum(), digit.sum(), rtol=1e-4)]
        where = [
            (top, left, digit)
            for digit in near
            for top in range(11)
            for left in range(11)
            if np.array_equal(image[top : top + 14, left : left + 14], digit)
        ]
        assert len(where) == 1
        top, left, digit = where[0]
        expected = np.zeros((24, 24))
        expected[top : top + 14, left : left + 14] = digit > 0.5
        assert np.array_equal(label, expected)


@pytest.mark.parametrize("crop", ["before", "after", "none"])
@pytest.mark.parametrize("overlap", ["maximum", "sum"])
@pytest.mark.parametrize(
    ("threshold", "above"), [(0.0, None), (0.25, None), (0.6, None), (0.6, 0.6), (0.6, 0.1), (0.5, 0.0)]
)
def test_frames_against_painting_by_hand(overlap: str, threshold: float, above: float | None, crop: str) -> None:
    options: dict[str, Any] = {"overlap": overlap, "threshold": threshold, "overlap_above": above, "crop": crop}
    scenes = DataConfig("flying-mnist", objects=3, frames=1, mnist=str(SAMPLE), **options).scenes("training", 4)
    sprite, corner, _, room = scenes.drawn(torch.arange(30))
    overlaps = torch.cat([painted.overlaps for _, painted in scenes.sequences(torch.arange(30))])
    frames, groups = flying_mnist(30, 3, 1, seed=4, mnist=SAMPLE, **options)
    known = [small(digit, crop) for digit in pixels("train")[:50]]
    for n in range(30):
        layers = np.zeros((3, 24, 24))
        for k in range(3):
            digit, (top, left) = known[int(sprite[n, k])], corner[n, k].tolist()
            height, width = digit.shape
            assert room[n, k].tolist() == [24 - height, 24 - width]
            layers[k, top : top + height, left : left + width] = digit
        expected = layers.max(axis=0) if overlap == "maximum" else layers.sum(axis=0).clip(max=1)
        cover = (layers > (threshold if above is None else above)).sum(axis=0)
        owner = np.where((cover == 1) & (layers.max(axis=0) > threshold), layers.argmax(axis=0) + 1, 0)
        np.testing.assert_allclose(frames[0, n, 0].numpy(), expected, rtol=1e-6, atol=1e-7)
        assert np.array_equal(groups[0, n].numpy(), owner)
        assert np.array_equal(overlaps[n, 0].numpy(), cover > 1)


TINY = {  # where the ink of a picture of 28 x 28 pixels is: its first row and column, and its rows
    "one pixel": (5, 7, [[200]]),
    "odd": (3, 3, [[40, 80, 120], [0, 200, 0], [255, 0, 255]]),
    "a gap": (0, 26, [[10, 20], [0, 0], [0, 0], [50, 60]]),
    "at the end": (27, 25, [[255, 0, 4]]),
}
# by hand: sums of four pixels, of the ink from its own corner on ("before") or as the picture's grid has it ("after")
BEFORE = {
    "one pixel": [[200]],
    "odd": [[320, 120], [255, 255]],
    "a gap": [[30], [110]],
    "at the end": [[255, 4]],
}
AFTER = {
    "one pixel": [[200]],
    "odd": [[40, 200], [255, 455]],
    "a gap": [[30], [110]],
    "at the end": [[255, 4]],
}


@pytest.mark.parametrize(("crop", "expected"), [("before", BEFORE), ("after", AFTER)])
def test_tiny_digits_are_cropped_as_by_hand(crop: str, expected: dict[str, list[list[int]]], tmp_path: Path) -> None:
    images = np.zeros((len(TINY), 28, 28), np.uint8)
    for image, (top, left, rows) in zip(images, TINY.values(), strict=True):
        image[top : top + len(rows), left : left + len(rows[0])] = rows
    header = np.array([0x803, len(TINY), 28, 28], ">u4").tobytes()
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(header + images.tobytes())
    config = DataConfig("flying-mnist", objects=1, frames=40, height=14, width=14, mnist=str(tmp_path), crop=crop)  # type: ignore[arg-type]
    scenes = config.scenes("test", 0)
    assert scenes.sprites.height.tolist() == [len(rows) for rows in expected.values()]
    assert scenes.sprites.width.tolist() == [len(rows[0]) for rows in expected.values()]
    sprite, corner, velocity, _ = scenes.drawn(torch.arange(60))
    frames = torch.cat([painted.frames[:, :, 0] for _, painted in scenes.sequences(torch.arange(60))])
    for n in range(60):
        rows = np.array(list(expected.values())[int(sprite[n, 0])])
        (top, left), (down, right) = corner[n, 0].tolist(), velocity[n, 0].tolist()
        for t in range(40):  # a frame at a time, turning where the next step would leave the picture
            picture = np.zeros((14, 14), int)
            picture[top : top + len(rows), left : left + len(rows[0])] = rows
            assert np.array_equal(frames[n, t].numpy(), picture)
            down = down if 0 <= top + down <= 14 - len(rows) else -down
            right = right if 0 <= left + right <= 14 - len(rows[0]) else -right
            top, left = top + down, left + right
    assert sorted(set(sprite.flatten().tolist())) == [0, 1, 2, 3]


def test_an_empty_digit_takes_its_whole_box() -> None:
    """Nothing of it can be cropped, and nothing of it is painted."""
    sprites = digit_sprites(np.zeros((1, 14, 14), np.int16), True, 0.5, 0.5)
    assert (sprites.height.tolist(), sprites.width.tolist(), sprites.values.tolist()) == ([14], [14], [[0]])


@pytest.mark.parametrize(
    ("crop", "height", "width"), [("before", 9.88, 7.93), ("after", 10.36, 8.35), ("none", 14, 14)]
)
def test_cropped_digits_are_as_large_as_mnists_are(crop: str, height: float, width: float) -> None:
    """Against the means of all 60,000 training digits; the first 50 of them differ from these by chance."""
    config = DataConfig("flying-mnist", mnist=str(SAMPLE), crop=crop)  # type: ignore[arg-type]
    sprites = config.scenes("training", 0).sprites
    assert float(sprites.height.double().mean()) == pytest.approx(height, abs=0.25)
    assert float(sprites.width.double().mean()) == pytest.approx(width, abs=0.5)


def test_digits_and_corners_are_uniform() -> None:
    config = DataConfig("flying-mnist", mnist=str(SAMPLE), crop="none")
    sprite, corner, _, _ = config.scenes("training", 0).drawn(torch.arange(5000))
    assert stats.chisquare(np.bincount(sprite.flatten().numpy(), minlength=50)).pvalue > 1e-3
    place = corner[..., 0] * 11 + corner[..., 1]
    assert stats.chisquare(np.bincount(place.flatten().numpy(), minlength=121)).pvalue > 1e-3


def test_corners_of_cropped_digits_are_uniform_over_their_own_room() -> None:
    config = DataConfig("flying-mnist", mnist=str(SAMPLE))
    _, corner, _, room = config.scenes("training", 0).drawn(torch.arange(5000))
    for axis in (0, 1):
        for size in room[..., axis].unique().tolist():
            chosen = corner[..., axis][room[..., axis] == size].numpy()
            assert stats.chisquare(np.bincount(chosen, minlength=size + 1)).pvalue > 1e-4


def test_values_and_layout() -> None:
    frames, groups = flying_mnist(6, frames=4, mnist=SAMPLE)
    assert frames.shape == (4, 6, 1, 24, 24)
    assert frames.dtype == torch.float32
    assert groups.shape == (4, 6, 24, 24)
    assert 0 <= float(frames.min()) < float(frames.max()) <= 1
    assert set(groups.unique().tolist()) == {0, 1, 2}


def test_a_sequence_does_not_depend_on_the_chunk_it_is_made_in() -> None:
    whole = flying_mnist(300, frames=3, mnist=SAMPLE)
    part = flying_mnist(7, frames=3, mnist=SAMPLE, start=201)
    assert torch.equal(part[0], whole[0][:, 201:208])
    assert torch.equal(part[1], whole[1][:, 201:208])


def test_stages_share_digits_but_no_sequence() -> None:
    rows = [
        {row.tobytes() for row in flying_mnist(1500, 2, 1, split=split, digits=2, mnist=SAMPLE)[0][0].numpy()}  # type: ignore[arg-type]
        for split in ("training", "validation", "test")
    ]
    assert not rows[0] & rows[1]
    assert not rows[0] & rows[2]
    assert not rows[1] & rows[2]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("key", HASHES)
def test_sequences_are_those_committed(key: tuple[Any, ...], device: str) -> None:
    split, digits, overlap, crop = key
    made = flying_mnist(
        16, split=split, digits=digits, overlap=overlap, threshold=0.25, mnist=SAMPLE, crop=crop, device=device
    )
    assert sha256(*made) == HASHES[key]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objects": 12}, ["objects", "11", "12"]),
        ({"height": 13}, ["14 x 14", "13 x 24"]),
        ({"digits": 51}, ["digits", "50", "51"]),
        ({"digits": 0}, ["digits", "0"]),
        ({"threshold": 1.0}, ["threshold", "1.0"]),
        ({"threshold": float("nan")}, ["threshold", "nan"]),
        ({"overlap": "max"}, ["overlap", "maximum"]),
        ({"crop": "befor"}, ["crop", "before, after, none", "did you mean 'before'"]),
        ({"mnist": SAMPLE / "missing"}, ["missing"]),
    ],
)
def test_what_cannot_be_made_is_refused(options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(NeuralEMError) as error:
        flying_mnist(**{"num": 4, "mnist": SAMPLE, **options})  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in words)


def test_too_few_scenes_for_three_splits_are_refused() -> None:
    """One digit, twice, in a frame of its own size: a single scene, which one split owns."""
    problems = []
    for split in ("training", "validation", "test"):
        try:
            flying_mnist(2, 2, 1, split=split, digits=1, height=14, width=14, mnist=SAMPLE, crop="none")  # type: ignore[arg-type]
        except NeuralEMError as error:
            problems.append(str(error))
    assert len(problems) == 2
    assert all("differ" in problem and "14 x 14" in problem for problem in problems)
