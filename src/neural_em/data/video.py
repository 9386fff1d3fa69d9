"""Decoding video files with ffmpeg; needs the extra ``video``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from neural_em.data.fitting import Frame
from neural_em.errors import NeuralEMError, refuse

SUFFIXES = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".ogv", ".wmv", ".flv"})
_INPUT = ["-protocol_whitelist", "file,pipe"]  # a file that is really a playlist must not fetch from elsewhere
_MAX_PIXELS = 100_000_000


def read_frames(path: Path) -> Iterator[Frame]:
    """The frames (H,W,3) uint8, decoded one at a time."""
    reader, information = _open(path)
    width, height = information["size"]
    try:
        number = 0
        for data in reader:
            yield np.frombuffer(data, np.uint8).reshape(height, width, 3)
            number += 1
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(path, error) from None
    finally:
        reader.close()
    if not number:
        refuse(str(path), "a video with frames", "none")


def frames_per_second(path: Path) -> float | None:
    """As the file says."""
    reader, information = _open(path)
    reader.close()
    return float(information.get("fps") or 0) or None


def _open(path: Path) -> tuple[Any, dict[str, Any]]:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise NeuralEMError(f"{path}: video needs the package imageio-ffmpeg: pip install 'neural-em[video]'") from None
    reader = None
    try:
        # an absolute name: one that begins with a dash or a protocol would be taken for something else
        reader = imageio_ffmpeg.read_frames(os.path.abspath(path), pix_fmt="rgb24", input_params=_INPUT)
        information = next(reader)
        width, height = information["size"]
        if not 0 < width * height <= _MAX_PIXELS:
            refuse(str(path), f"frames of at most {_MAX_PIXELS} pixels", f"{height} x {width}")
        return reader, information
    except (OSError, RuntimeError, ValueError, KeyError, IndexError, StopIteration) as error:
        if reader is not None:
            reader.close()
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: BaseException) -> NeuralEMError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return NeuralEMError(f"{path}: not a readable video: {lines[-1] if lines else type(error).__name__}")
