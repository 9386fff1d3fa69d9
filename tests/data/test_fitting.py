"""Frames to a model's size and channels, and labels back, against small cases worked out by hand."""

import numpy as np
import pytest

from neural_em import NeuralEMError
from neural_em.data import Fitting

GREY = np.arange(24, dtype=np.uint8).reshape(4, 6, 1) * 10


def test_what_fits_already_is_unchanged() -> None:
    assert np.array_equal(Fitting(4, 6).frame(GREY, "x"), GREY.transpose(2, 0, 1))


def test_values_become_fractions() -> None:
    fitted = Fitting(4, 6).unit_frame(GREY, "x")
    assert fitted.dtype == np.float32
    assert np.array_equal(fitted[0], (GREY[..., 0] / 255).astype(np.float32))


def test_crop_takes_the_centre() -> None:
    assert np.array_equal(Fitting(2, 2, fit="crop").frame(GREY, "x")[0], GREY[1:3, 2:4, 0])


def test_crop_resize_takes_the_largest_centred_part() -> None:
    image = np.zeros((4, 8, 1), np.uint8)
    image[:, 2:6] = 200
    assert np.array_equal(Fitting(2, 2, fit="crop-resize").frame(image, "x"), np.full((1, 2, 2), 200))


def test_resize_keeps_a_constant_and_a_slope() -> None:
    flat = np.full((4, 6, 1), 77, np.uint8)
    assert np.array_equal(Fitting(3, 9, fit="resize").frame(flat, "x"), np.full((1, 3, 9), 77))
    slope = np.tile(np.arange(32, dtype=np.float32) / 31, (16, 1))[:, :, None]
    shrunk = Fitting(4, 8, fit="resize").frame(slope, "x")[0]
    assert shrunk.dtype == np.float32
    centres = (np.arange(8) * 4 + 1.5) / 31  # of the four columns that each new one stands for
    np.testing.assert_allclose(shrunk[:, 1:-1], np.tile(centres[1:-1], (4, 1)), rtol=1e-5)


def test_colour_becomes_grey_by_luminance() -> None:
    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 255
    assert np.array_equal(Fitting(2, 2, "grey").frame(red, "x"), np.full((1, 2, 2), 76))  # 0.299 * 255
    np.testing.assert_allclose(Fitting(2, 2, "grey").frame((red / 255).astype(np.float32), "x"), 0.299, atol=1e-6)


def test_grey_becomes_colour_by_repeating() -> None:
    assert np.array_equal(Fitting(4, 6, "colour").frame(GREY, "x"), np.repeat(GREY, 3, axis=2).transpose(2, 0, 1))


def test_binary_is_one_above_the_threshold() -> None:
    image = np.array([[0, 127, 128, 255]], np.uint8)[:, :, None]
    assert Fitting(1, 4, "binary").frame(image, "x").tolist() == [[[0, 0, 1, 1]]]
    assert Fitting(1, 4, "binary", threshold=0.0).unit_frame(image, "x").tolist() == [[[0.0, 1.0, 1.0, 1.0]]]


def test_labels_take_the_nearest() -> None:
    labels = np.array([[1, 2], [3, 4]], np.uint8)
    assert Fitting(4, 4, fit="resize").labels(labels, "x").tolist() == [
        [1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4],
    ]  # fmt: skip


@pytest.mark.parametrize("fit", ["resize", "crop", "crop-resize"])
def test_labels_come_back_at_the_frame_s_size(fit: str) -> None:
    fitting = Fitting(4, 4, fit=fit)  # type: ignore[arg-type]
    whole = fitting.restore(np.full((4, 4), 3, np.uint8), (8, 12))
    assert whole.shape == (8, 12)
    if fit == "resize":
        assert (whole == 3).all()
    else:
        inside = whole[2:6, 4:8] if fit == "crop" else whole[:, 2:10]
        assert (inside == 3).all()
        assert (whole == 3).sum() == inside.size


def test_labels_survive_there_and_back() -> None:
    labels = np.kron(np.arange(16).reshape(4, 4), np.ones((3, 5))).astype(np.uint8)
    fitting = Fitting(4, 4, fit="resize")
    assert np.array_equal(fitting.restore(fitting.labels(labels, "x"), labels.shape), labels)


@pytest.mark.parametrize(("fit", "size"), [("none", (5, 6)), ("crop", (3, 9))])
def test_what_cannot_fit_is_refused_by_name(fit: str, size: tuple[int, int]) -> None:
    with pytest.raises(NeuralEMError, match=rf"a.png.*4 x 6.*{size[0]} x {size[1]}"):
        Fitting(4, 6, fit=fit).frame(np.zeros((*size, 1), np.uint8), "a.png")  # type: ignore[arg-type]
