"""Moving pictures of any length, written one picture at a time: MP4 where ffmpeg is at hand, else GIF."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from PIL import Image

from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.report.colours import Pixels

MISSING = "MP4: expected the package imageio-ffmpeg (pip install 'neural-em[video]'), got none"


class Movie(Protocol):
    """Takes pictures of one size."""

    path: Path

    def add(self, picture: Pixels) -> None:
        """The next picture (H,W,3)."""

    def close(self) -> None:
        """Writes out what is left."""


def open_movie(path: Path, fps: float, kind: str = "auto") -> Movie:
    """A movie to add pictures to.

    Args:
        path: the file; its suffix becomes the kind's.
        fps: pictures a second.
        kind: ``mp4`` (needs the extra 'video'), ``gif``, or ``auto``: MP4 where it can be written.
    """
    if not 0.1 <= fps <= 1000:
        refuse("fps", "a number from 0.1 to 1000", fps)
    kind = resolve(kind)
    return KINDS[kind](path.with_suffix(f".{kind}"), fps)


def resolve(kind: str) -> str:
    """The kind of movie that ``auto`` stands for; refuses one that cannot be written here."""
    if kind not in (*KINDS, "auto"):
        unknown("movie", kind, (*KINDS, "auto"))
    able = importlib.util.find_spec("imageio_ffmpeg") is not None
    if kind == "mp4" and not able:
        raise NeuralEMError(MISSING)
    return kind if kind != "auto" else "mp4" if able else "gif"


class Gif:
    """Pictures with up to 256 colours each; ever repeated.

    Pillow keeps all pictures of a GIF until it writes them. Here each is a GIF of its own, whose image goes into the
    one that is being written.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self._file = path, _opened(path)
        self._duration = max(20, round(1000 / fps))  # browsers slow down what is faster
        self._begun = False

    def add(self, picture: Pixels) -> None:
        """The next picture (H,W,3)."""
        image = Image.fromarray(picture)
        exact = image.getcolors(256) is not None
        image = image.convert("P", palette=Image.Palette.ADAPTIVE) if exact else image.quantize(256)
        alone = io.BytesIO()
        image.save(alone, "GIF", duration=self._duration, disposal=1)
        header, body = _parts(alone.getvalue())
        self._file.write(body if self._begun else header + _FOREVER + body)
        self._begun = True

    def close(self) -> None:
        """Ends the file."""
        self._file.write(_END)
        self._file.close()


_EXTENSION, _CONTROL, _IMAGE, _END = 0x21, 0xF9, 0x2C, b"\x3b"
_FOREVER = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"


def _parts(gif: bytes) -> tuple[bytes, bytes]:
    """Header and image of a GIF with one picture; the image takes a copy of the colours with it."""
    packed = gif[10]
    place = start = 13 + 3 * (2 << (packed & 7))
    control = b""
    while gif[place] == _EXTENSION:
        end = place + 2
        while gif[end]:  # blocks, each behind its length
            end += gif[end] + 1
        control = gif[place : end + 1] if gif[place + 1] == _CONTROL else control
        place = end + 1
    assert gif[place] == _IMAGE
    flags = bytes([gif[place + 9] | 0x80 | packed & 7])  # colours of its own, as many as there were for all
    return gif[:start], control + gif[place : place + 9] + flags + gif[13:start] + gif[place + 10 : -1]


class Mp4:
    """H.264, as browsers play it.

    Args:
        path: the file.
        fps: pictures a second.
        coarseness: x264's constant rate factor; 0 loses nothing.
        preset: x264's; the slower, the smaller the file.
    """

    def __init__(self, path: Path, fps: float, coarseness: int = 18, preset: str = "fast") -> None:
        self.path, self._fps = path, fps
        self._output = ["-crf", str(coarseness), "-preset", preset, "-movflags", "+faststart"]
        self._writer: Any = None

    def add(self, picture: Pixels) -> None:
        """The next picture (H,W,3)."""
        height, width, _ = picture.shape
        picture = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # even, as the format demands
        if self._writer is None:
            self._writer = self._open((picture.shape[1], picture.shape[0]))
        self._writer.send(np.ascontiguousarray(picture))

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, size: tuple[int, int]) -> Any:
        try:
            import imageio_ffmpeg
        except ImportError:
            raise NeuralEMError(MISSING) from None
        writer = imageio_ffmpeg.write_frames(
            str(self.path), size, fps=self._fps, codec="libx264", macro_block_size=2, quality=None,
            output_params=self._output,
        )  # fmt: skip
        writer.send(None)
        return writer


KINDS: dict[str, type[Gif] | type[Mp4]] = {"mp4": Mp4, "gif": Gif}


def _opened(path: Path) -> BinaryIO:
    return open(path, "wb")
