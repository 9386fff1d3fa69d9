"""One image, folder of images, GIF, video or array as a stream of frames at their own size, in bounded memory."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_em.data import arrays, images, video
from neural_em.data.fitting import Frame
from neural_em.errors import refuse
from neural_em.files import existing

ANIMATIONS = frozenset({".gif", ".apng"})
CLIPS = ANIMATIONS | video.SUFFIXES | arrays.SUFFIXES  # files that hold a clip each
_ACCEPTED = "an image, a folder of images, a GIF, a video or a NumPy array"


class Source(ABC):
    """A clip: its frames one by one, each (H,W,C), uint8 or float32 in [0, 1], at its own size.

    Attributes:
        name: The file or folder.
        length: Number of frames; ``None`` where only decoding would tell (see :meth:`count`).
        colour: Whether any frame has three channels.
        deep: Whether any frame is float32 rather than uint8.
        fps: Frames per second, where the file says so.
        loose: Whether the frames are images that nobody has put into a frame folder, so that they may be no clip.
    """

    name: str
    length: int | None
    colour: bool
    deep: bool = False
    fps: float | None = None
    loose: bool = False

    @abstractmethod
    def __iter__(self) -> Iterator[Frame]:
        """All frames, in order; only one is held at a time."""

    def count(self) -> int:
        """Number of frames, by decoding them once where nothing else tells."""
        if self.length is None:
            self.length = sum(1 for _ in self)
        return self.length

    def take(self, wanted: Iterable[int]) -> Iterator[Frame]:
        """The frames with the given increasing numbers."""
        numbers = iter(wanted)
        number = next(numbers, None)
        for position, frame in enumerate(self):
            if number is None:
                break
            if position == number:
                yield frame
                number = next(numbers, None)
        if number is not None:
            refuse(self.name, f"at least {number + 1} frames", "fewer")

    def frame_name(self, number: int) -> str:
        """What to call a frame in an error or an output file."""
        return f"{self.name}: frame {number}"

    def stems(self) -> list[str] | None:
        """The frames' own names without suffix, where each is a file."""
        return None


class ImageSource(Source):
    """Image files, in the given order."""

    def __init__(self, name: str, paths: list[Path], loose: bool = False) -> None:
        self.name, self.paths, self.length, self.loose = name, paths, len(paths), loose
        colour, deep = zip(*map(images.describe, paths), strict=True)
        self.colour, self.deep = any(colour), any(deep)

    def __iter__(self) -> Iterator[Frame]:
        return map(images.read_image, self.paths)

    def take(self, wanted: Iterable[int]) -> Iterator[Frame]:
        """Reads only the files that are wanted."""
        return (images.read_image(self.paths[number]) for number in wanted)

    def frame_name(self, number: int) -> str:
        return str(self.paths[number])

    def stems(self) -> list[str]:
        return [path.stem for path in self.paths]


class AnimationSource(Source):
    """A GIF, or another image file with several frames."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), path
        with images.opened(path) as image:
            self.length = self._frames = int(getattr(image, "n_frames", 1))
            duration = image.info.get("duration")
            self.colour, self.deep = images.describe_frames(image)
        self.fps = 1000 / duration if isinstance(duration, int | float) and duration > 0 else None

    def __iter__(self) -> Iterator[Frame]:
        with images.opened(self._path) as image:
            for number in range(self._frames):
                image.seek(number)
                yield images.to_frame(image, self.frame_name(number))


class ArraySource(Source):
    """Frames (T,H,W,C) of an array, which may lie on the disk."""

    def __init__(self, name: str, clip: NDArray[Any], top: int) -> None:
        """``top`` is what stands for 1.0 in the array."""
        self.name, self.length, self.colour, self.deep = name, len(clip), clip.shape[-1] == 3, clip.dtype.kind == "f"
        self._clip, self._top = clip, top

    def __iter__(self) -> Iterator[Frame]:
        return self.take(range(len(self._clip)))

    def take(self, wanted: Iterable[int]) -> Iterator[Frame]:
        """Reads only the frames that are wanted."""
        return (arrays.to_frame(np.asarray(self._clip[i]), self._top, self.frame_name(i)) for i in wanted)


class VideoSource(Source):
    """A video file, decoded as it is read."""

    def __init__(self, path: Path) -> None:
        self.name, self.colour, self._path = str(path), True, path
        self.length = None  # what the file says of it is often wrong
        self.fps = video.frames_per_second(path)

    def __iter__(self) -> Iterator[Frame]:
        return video.read_frames(self._path)


def open_source(path: str | os.PathLike[str], leave_out: str | os.PathLike[str] | None = None) -> Source:
    """One clip, by its name: an image, a folder of images in natural order, a GIF, a video or a NumPy array.

    To bring its frames to a model's size, use a :class:`~neural_em.data.fitting.Fitting`.

    Args:
        path: The file or folder.
        leave_out: Something inside the folder that is no clip (its masks).
    """
    clips = open_clips(path, None if leave_out is None else existing(leave_out))
    if len(clips) != 1:
        refuse(os.fspath(path), f"one clip: {_ACCEPTED}", f"{len(clips)} clips")
    return clips[0]


def open_clips(path: str | os.PathLike[str], leave_out: Path | None = None) -> list[Source]:
    """All clips that a path holds: one, or those in a folder of frame folders or of clip files, or in an array.

    Args:
        path: The file or folder.
        leave_out: A folder inside it that is something else (its masks).
    """
    found = existing(path)
    if found.is_dir():
        return _open_folder(found, leave_out)
    suffix = found.suffix.lower()
    if suffix in arrays.SUFFIXES:
        array = arrays.open_array(found)
        top = arrays.largest(array)
        clips = arrays.as_clips(array, str(found))
        names = [str(found)] if len(clips) == 1 else [f"{found}[{i}]" for i in range(len(clips))]
        return [ArraySource(name, clip, top) for name, clip in zip(names, clips, strict=True)]
    if suffix in video.SUFFIXES:
        return [VideoSource(found)]
    if suffix in ANIMATIONS or (suffix in images.SUFFIXES and images.is_animated(found)):
        return [AnimationSource(found)]
    if suffix in images.SUFFIXES:
        return [ImageSource(str(found), [found], loose=True)]
    refuse(str(found), _ACCEPTED, f"a file with suffix {suffix!r}" if suffix else "a file without suffix")


def _open_folder(folder: Path, leave_out: Path | None) -> list[Source]:
    without = None if leave_out is None else os.path.realpath(leave_out)
    entries = [entry for entry in images.visible(folder) if os.path.realpath(entry) != without]  # even of link loops
    pictures = [entry for entry in entries if entry.suffix.lower() in images.SUFFIXES and not entry.is_dir()]
    clips = [entry for entry in entries if entry.is_dir() or entry.suffix.lower() in CLIPS]
    if pictures and clips:
        refuse(str(folder), "images or clips in a folder, not both", f"{pictures[0].name} and {clips[0].name}")
    if pictures:
        return [ImageSource(str(folder), pictures, loose=True)]
    if not clips:
        refuse(str(folder), "images, frame folders or clips in this folder", "none")
    return [_open_clip(entry) for entry in clips]


def _open_clip(entry: Path) -> Source:
    """A clip inside a folder; a folder here must hold images, so links that lead in circles end at once."""
    if not entry.is_dir():
        return open_source(entry)
    pictures = [path for path in images.visible(entry) if path.suffix.lower() in images.SUFFIXES and not path.is_dir()]
    if not pictures:
        refuse(str(entry), "images in this frame folder", "none")
    return ImageSource(str(entry), pictures)
