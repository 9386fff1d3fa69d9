"""Frames as they come, from a camera or another program: raw ones of a known size, or JPEG pictures in a row."""

import io
import re
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from neural_em.data.fitting import Frame
from neural_em.data.images import to_frame
from neural_em.data.sources import Source
from neural_em.errors import NeuralEMError, first_line, refuse

NAME = "standard input"
_MOST = 100_000_000  # bytes or pixels of a frame
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA  # JPEG's markers of an image and of its pixels


class PipeSource(Source):
    """Frames from a binary stream, which can be read once.

    Args:
        stream: such as ``sys.stdin.buffer``.
        size: (H,W,C) of raw frames of one byte a value, C = 1 or 3; ``None``: JPEG pictures.
    """

    once = True

    def __init__(self, stream: BinaryIO, size: tuple[int, int, int] | None = None) -> None:
        self.name, self.length, self.colour = NAME, None, size is None or size[2] == 3
        self._stream, self._size = stream, size
        self.left = 0  # bytes after the last whole raw frame, when all have come

    def __iter__(self) -> Iterator[Frame]:
        """All frames, one or more; a last one that was cut short is left out."""
        return _pictures(self._stream) if self._size is None else self._raw(self._size)

    def _raw(self, size: tuple[int, int, int]) -> Iterator[Frame]:
        count, number = size[0] * size[1] * size[2], 0
        while len(data := self._stream.read(count)) == count:
            yield np.frombuffer(data, np.uint8).reshape(size)
            number += 1
        self.left = len(data)
        if not number:
            refuse(NAME, f"frames of {count} bytes", f"{len(data)} bytes")


def parse_size(text: str) -> tuple[int, int, int]:
    """``HxW`` or ``HxWxC`` as numbers."""
    numbers = re.fullmatch(r"(\d{1,6})x(\d{1,6})(?:x([13]))?", text)
    size = tuple(int(each or 1) for each in numbers.groups()) if numbers else (0, 0, 0)
    if not 0 < size[0] * size[1] * size[2] <= _MOST:
        refuse("size", "HxW, or HxWx3 for colour", repr(text))
    return size[0], size[1], size[2]


def _pictures(stream: BinaryIO) -> Iterator[Frame]:
    held, number = bytearray(), 0
    read: Any = getattr(stream, "read1", stream.read)  # what has come so far, without waiting for more
    while data := read(1 << 16):
        held += data
        if not number and len(held) > 1 and bytes(held[:2]) != b"\xff\xd8" and b"\xff\xd8\xff" not in held[:4096]:
            refuse(NAME, "JPEG pictures, or raw frames with --size HxW or HxWx3", "something else")
        while (start := held.find(b"\xff\xd8\xff")) >= 0 and (end := _end(held, start)) is not None:
            yield _decoded(bytes(held[start:end]), f"{NAME}: frame {number}")
            del held[:end]
            number += 1
        if len(held) > _MOST:
            refuse(NAME, f"pictures of at most {_MOST} bytes", "more")
    if not number:
        refuse(NAME, "JPEG pictures, or raw frames with --size HxW or HxWx3", "no whole one")


def _end(data: bytearray, start: int) -> int | None:
    """Where the picture that starts there ends; None where the rest has not come yet.

    Markers are followed from one to the next, because a preview inside the picture has an end of its own.
    """
    at = start + 2
    while at + 4 <= len(data) or data[at : at + 2] == bytes((0xFF, _END)):
        if data[at] != 0xFF:
            refuse(NAME, "JPEG pictures", "a damaged one")
        marker = data[at + 1]
        if marker == _END:
            return at + 2
        if marker == 0xFF:  # filling
            at += 1
            continue
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == _SCAN:  # pixels follow, up to the next marker that is not inside them
            inside = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL).search(data, at)
            if inside is None:
                return None
            at = inside.start()
    return None


def _decoded(data: bytes, name: str) -> Frame:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=["JPEG"])
        if image.width * image.height > _MOST:
            refuse(name, f"at most {_MOST} pixels", f"{image.height} x {image.width}")
        return to_frame(image, name)
    except NeuralEMError:
        raise
    except Exception as error:  # decoders raise almost anything on damaged data
        raise NeuralEMError(f"{name}: not a readable image: {first_line(error)}") from None
