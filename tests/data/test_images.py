"""Every kind of image file as frames."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from neural_em.data import open_source

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (12, 16), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (12, 16, 3), dtype=np.uint8)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_every_kind_of_picture_has_one_or_three_channels(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.fromarray(COLOUR).convert(mode).save(path)
    source = open_source(path)
    (frame,) = source
    assert frame.dtype == np.uint8
    assert frame.shape == (12, 16, 1 if mode in ("1", "L", "LA") else 3)
    assert source.colour == (frame.shape[2] == 3)


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
def test_what_is_transparent_lies_on_black(mode: str, tmp_path: Path) -> None:
    """White pixels that are seen whole, by half and not at all; a palette's are seen or not."""
    pixels = np.full((1, 3, 4), 255, np.uint8)
    pixels[0, :, 3] = (255, 128, 0)
    picture = Image.fromarray(pixels).convert("RGBA" if mode == "P" else mode)
    if mode == "P":
        picture = Image.fromarray(np.array([[0, 0, 1]], np.uint8), "P")
        picture.putpalette([255, 255, 255, 200, 200, 200])
    picture.save(tmp_path / "a.png", **({"transparency": 1} if mode == "P" else {}))
    (frame,) = open_source(tmp_path / "a.png")
    assert frame.shape == (1, 3, 1 if mode == "LA" else 3)
    assert frame.max(axis=2).tolist() == [[255, 255 if mode == "P" else 128, 0]]


def test_sixteen_bits_are_kept(tmp_path: Path) -> None:
    values = np.array([[0, 1, 40000, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    (frame,) = open_source(tmp_path / "deep.png")
    assert frame.dtype == np.float32
    assert np.array_equal(frame[..., 0], (values / np.float32(65535)).astype(np.float32))


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    Image.fromarray(COLOUR).save(tmp_path / "a.jpg", exif=exif)
    (frame,) = open_source(tmp_path / "a.jpg")
    assert frame.shape == (16, 12, 3)


@pytest.mark.parametrize(
    ("pages", "colour", "deep"),
    [
        ([GREY, GREY], False, False),
        ([np.full((4, 5), 9, np.uint16)] * 2, False, True),
        ([np.full((4, 5), 0.5, np.float32)] * 2, False, True),
        ([COLOUR, COLOUR], True, False),
        ([GREY, COLOUR, np.full((12, 16), 9, np.uint16)], True, True),
    ],
)
def test_a_tiff_is_of_the_kinds_of_all_its_pages(
    pages: list[np.ndarray], colour: bool, deep: bool, tmp_path: Path
) -> None:
    first, *others = [Image.fromarray(page) for page in pages]
    first.save(tmp_path / "a.tif", save_all=True, append_images=others)
    source = open_source(tmp_path / "a.tif")
    assert (source.length, source.colour, source.deep) == (len(pages), colour, deep)
    assert [frame.dtype for frame in source] == [np.uint8 if page.dtype == np.uint8 else np.float32 for page in pages]


def test_a_gif_has_colours_even_where_its_first_frame_has_none(tmp_path: Path) -> None:
    first = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    others = [Image.new("RGB", (16, 16), colour) for colour in ((200, 0, 0), (0, 100, 0))]
    first.save(tmp_path / "a.gif", save_all=True, append_images=others)
    source = open_source(tmp_path / "a.gif")
    assert (source.colour, source.deep) == (True, False)
    assert list(source)[2][0, 0].tolist() == [0, 100, 0]
