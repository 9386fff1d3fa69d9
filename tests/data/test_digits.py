"""Flying MNIST against a hand-made halving and painting of a small sample of digits."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from neural_em import NeuralEMError
from neural_em.data import DataConfig, flying_mnist
from neural_em.data.digits import digit_scenes, digits_of, halve

SAMPLE = Path(__file__).parent / "mnist"  # MNIST's first 60 training and first 60 test digits
HASHES = {  # sha256 of frames (float32) and groups of the first 16 sequences, made on a CPU
    ("training", None, "maximum"): "2f0ad338034e35550a8175fc7e50531567366f5d853f9cfda732d0a521830569",
    ("validation", None, "maximum"): "3a9f884578a71c3c16389806500eb65c431947f55962a9aa8e5c90168cca603c",
    ("test", None, "maximum"): "69ea99a70a9c45bff680663c181d4b74ad107e9cd8f1db94b5168d8e32bd703d",
    ("training", 20, "sum"): "4b548076ad1f75c79f096f18c5d76dabf89e4a523dbba44b0e3e09bcbe1642a1",
    ("test", 20, "sum"): "20ce62eaea937ad53379f9e042d51a91d6ed633498b9040c07af91c8e53f00ab",
}


def pixels(part: str) -> np.ndarray:
    """The sample's digits (60, 28, 28), read with nothing but gzip."""
    return np.frombuffer(
        gzip.decompress((SAMPLE / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8
    ).reshape(-1, 28, 28)


def means(digit: np.ndarray) -> np.ndarray:
    """Means of 2 x 2 pixels in [0, 1], one by one."""
    rows = [[digit[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].astype(float).mean() for j in range(14)] for i in range(14)]
    return np.array(rows) / 255


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
    frames, groups = flying_mnist(80, objects=1, frames=1, split=split, mnist=SAMPLE)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("overlap", ["maximum", "sum"])
@pytest.mark.parametrize(
    ("threshold", "above"), [(0.0, None), (0.25, None), (0.6, None), (0.6, 0.6), (0.6, 0.1), (0.5, 0.0)]
)
def test_frames_against_painting_by_hand(overlap: str, threshold: float, above: float | None) -> None:
    config = DataConfig(
        "flying-mnist",
        objects=3,
        frames=1,
        overlap=overlap,
        threshold=threshold,
        overlap_above=above,
        mnist=str(SAMPLE),  # type: ignore[arg-type]
    )
    scenes = digit_scenes(config, "training", 4, "cpu")
    sprite, corner, _, room = scenes.place(torch.arange(30))
    overlaps = torch.cat([painted.overlaps for _, painted in scenes.sequences(torch.arange(30))])
    frames, groups = flying_mnist(
        30,
        3,
        1,
        seed=4,
        overlap=overlap,
        threshold=threshold,
        overlap_above=above,
        mnist=SAMPLE,  # type: ignore[arg-type]
    )
    halved = [means(digit) for digit in pixels("train")[:50]]
    assert (room == 10).all()
    for n in range(30):
        layers = np.zeros((3, 24, 24))
        for k in range(3):
            top, left = corner[n, k].tolist()
            layers[k, top : top + 14, left : left + 14] = halved[int(sprite[n, k])]
        expected = layers.max(axis=0) if overlap == "maximum" else layers.sum(axis=0).clip(max=1)
        cover = (layers > (threshold if above is None else above)).sum(axis=0)
        owner = np.where((cover == 1) & (layers.max(axis=0) > threshold), layers.argmax(axis=0) + 1, 0)
        np.testing.assert_allclose(frames[0, n, 0].numpy(), expected, rtol=1e-6, atol=1e-7)
        assert np.array_equal(groups[0, n].numpy(), owner)
        assert np.array_equal(overlaps[n, 0].numpy(), cover > 1)


def test_digits_and_corners_are_uniform() -> None:
    config = DataConfig("flying-mnist", mnist=str(SAMPLE))
    sprite, corner, _, _ = digit_scenes(config, "training", 0, "cpu").place(torch.arange(5000))
    assert stats.chisquare(np.bincount(sprite.flatten().numpy(), minlength=50)).pvalue > 1e-3
    place = corner[..., 0] * 11 + corner[..., 1]
    assert stats.chisquare(np.bincount(place.flatten().numpy(), minlength=121)).pvalue > 1e-3


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


@pytest.mark.parametrize(("split", "digits", "overlap"), HASHES)
def test_sequences_are_those_committed(split: str, digits: int | None, overlap: str) -> None:
    made = flying_mnist(16, split=split, digits=digits, overlap=overlap, threshold=0.25, mnist=SAMPLE)  # type: ignore[arg-type]
    assert sha256(*made) == HASHES[split, digits, overlap]


@pytest.mark.gpu
@pytest.mark.parametrize(("split", "digits", "overlap"), HASHES)
def test_a_gpu_makes_the_committed_sequences(split: str, digits: int | None, overlap: str) -> None:
    made = flying_mnist(16, split=split, digits=digits, overlap=overlap, threshold=0.25, mnist=SAMPLE, device="cuda")  # type: ignore[arg-type]
    assert sha256(*made) == HASHES[split, digits, overlap]


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
            flying_mnist(2, 2, 1, split=split, digits=1, height=14, width=14, mnist=SAMPLE)  # type: ignore[arg-type]
        except NeuralEMError as error:
            problems.append(str(error))
    assert len(problems) == 2
    assert all("differ" in problem and "14 x 14" in problem for problem in problems)
