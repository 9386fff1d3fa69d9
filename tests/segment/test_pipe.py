"""Frames from a stream: raw ones and JPEG pictures, however they are cut into pieces."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from neural_em import NeuralEMError
from neural_em.segment.pipe import PipeSource, parse_size


class Dripping(io.BytesIO):
    """Gives a few bytes at a time, as a slow camera does."""

    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(7)


def picture(value: int, **options: object) -> bytes:
    pixels = np.zeros((16, 24, 3), np.uint8)
    pixels[4:12, 4:20] = value
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "jpeg", quality=95, **options)
    return held.getvalue()


def test_raw_frames() -> None:
    grey = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5, 1)
    source = PipeSource(io.BytesIO(grey.tobytes() + b"cut"), (4, 5, 1))
    assert np.array_equal(np.stack(list(source)), grey)
    assert source.left == len(b"cut")
    colour = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    assert np.array_equal(np.stack(list(PipeSource(io.BytesIO(colour.tobytes()), (4, 5, 3)))), colour)


def test_pictures_in_a_row_with_anything_between_them() -> None:
    """One has a preview inside, which has an end of its own; one is progressive; the last is cut short."""
    exif = b"Exif\x00\x00" + picture(9)
    pictures = [picture(50), picture(120, exif=exif), picture(200, progressive=True)]
    stream = pictures[0] + b"--boundary\r\n" + pictures[1] + pictures[2] + picture(250)[:90]
    found = list(PipeSource(Dripping(stream)))
    wanted = [np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in pictures]
    assert len(found) == 3
    for frame, expected in zip(found, wanted, strict=True):
        assert np.array_equal(frame, expected)


def test_a_picture_is_given_as_soon_as_it_is_there() -> None:
    stream = Dripping(picture(50) + picture(90))
    next(iter(PipeSource(stream)))
    assert stream.tell() <= len(picture(50)) + 7


def test_sizes() -> None:
    assert parse_size("240x320") == (240, 320, 1)
    assert parse_size("240x320x3") == (240, 320, 3)
    for wrong in ("240", "240x0", "240x320x2", "-1x3", "999999x999999", "x"):
        with pytest.raises(NeuralEMError, match="size: expected HxW, or HxWx3 for colour"):
            parse_size(wrong)


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(NeuralEMError, match="standard input: expected JPEG pictures, or raw frames with --size"):
        list(PipeSource(io.BytesIO(b"RIFF of something else")))
    broken = bytearray(picture(50))
    broken[20:24] = b"\x00\x00\x00\x00"
    with pytest.raises(NeuralEMError, match="standard input"):
        list(PipeSource(io.BytesIO(bytes(broken))))


@pytest.mark.parametrize("stream", [b"", b"cut"])
def test_a_stream_without_a_whole_frame_is_refused(stream: bytes) -> None:
    """A wrong size would otherwise look like an empty clip."""
    with pytest.raises(NeuralEMError, match=rf"expected frames of 20 bytes, got {len(stream)} bytes"):
        list(PipeSource(io.BytesIO(stream), (4, 5, 1)))
    with pytest.raises(NeuralEMError, match="JPEG pictures"):
        list(PipeSource(io.BytesIO(picture(50)[: 30 * len(stream)])))
