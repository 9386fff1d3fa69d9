"""One image, folder of images, GIF, video or array as a stream of frames at their own size, in bounded memory."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_em.data import arrays, images
from neural_em.data.fitting import Frame
from neural_em.errors import NeuralEMError, refuse
from neural_em.files import existing

ANIMATIONS = frozenset({".gif", ".apng"})
VIDEOS = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".ogv", ".wmv", ".flv"})
CLIPS = ANIMATIONS | VIDEOS | arrays.SUFFIXES  # files that hold a clip each
_INPUT = ["-protocol_whitelist", "file,pipe"]  # a file that is really a playlist must not fetch from elsewhere
_MAX_PIXELS = 100_000_000  # of a video's frame
_ACCEPTED = "an image, a folder of images, a GIF, a video or a NumPy array"


class Source(ABC):
    """A clip: its frames one by one, each (H,W,C), uint8 or float32 in [0, 1], at its own size."""

    name: str  # the file or folder
    length: int | None  # number of frames; ``None`` where only decoding would tell (see `count`)
    colour: bool  # whether any frame has three channels
    deep: bool = False  # whether any frame is float32 rather than uint8
    fps: float | None = None  # frames per second, where the file says so
    loose: bool = False  # whether the frames are images outside a frame folder, so that they may be no clip

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
        frames = enumerate(self)
        for number in wanted:
            for position, frame in frames:
                if position == number:
                    yield frame
                    break
            else:
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
        self.name, self.length, self.colour, self.deep = name, len(clip), clip.shape[-1] > 1, clip.dtype.kind == "f"
        self._clip, self._top = clip, top

    def __iter__(self) -> Iterator[Frame]:
        return self.take(range(len(self._clip)))

    def take(self, wanted: Iterable[int]) -> Iterator[Frame]:
        """Reads only the frames that are wanted."""
        return (arrays.to_frame(np.asarray(self._clip[i]), self._top, self.frame_name(i)) for i in wanted)


class VideoSource(Source):
    """A video file, decoded with ffmpeg as it is read; needs the extra ``video``."""

    def __init__(self, path: Path) -> None:
        self.name, self.colour = str(path), True
        self.length = None  # what the file says of it is often wrong
        reader, _, self.fps = self._open()
        reader.close()

    def __iter__(self) -> Iterator[Frame]:
        reader, (width, height), _ = self._open()
        try:
            number = 0
            for data in reader:
                yield np.frombuffer(data, np.uint8).reshape(height, width, 3)
                number += 1
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unreadable(error) from None
        finally:
            reader.close()
        if not number:
            refuse(self.name, "a video with frames", "none")

    def _open(self) -> tuple[Any, tuple[int, int], float | None]:
        """What gives the frames, their width and height, and how many there are a second."""
        try:
            import imageio_ffmpeg
        except ImportError:
            needed = "video needs the package imageio-ffmpeg: pip install 'neural-em[video]'"
            raise NeuralEMError(f"{self.name}: {needed}") from None
        reader = None
        try:
            # an absolute name: one that begins with a dash or a protocol would be taken for something else
            reader = imageio_ffmpeg.read_frames(os.path.abspath(self.name), pix_fmt="rgb24", input_params=_INPUT)
            information = next(reader)
            width, height = information["size"]
            if not 0 < width * height <= _MAX_PIXELS:
                refuse(self.name, f"frames of at most {_MAX_PIXELS} pixels", f"{height} x {width}")
            return reader, (width, height), float(information.get("fps") or 0) or None
        except (OSError, RuntimeError, ValueError, KeyError, IndexError, StopIteration) as error:
            if reader is not None:
                reader.close()
            raise self._unreadable(error) from None

    def _unreadable(self, error: BaseException) -> NeuralEMError:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return NeuralEMError(f"{self.name}: not a readable video: {lines[-1] if lines else type(error).__name__}")


def open_source(path: str | os.PathLike[str], leave_out: str | os.PathLike[str] | None = None) -> Source:
    """One clip, by its name: an image, a folder of images in natural order, a GIF, a video or a NumPy array.

    To bring its frames to a model's size, use a `Fitting`.
    """
    clips = open_clips(path, None if leave_out is None else existing(leave_out))
    if len(clips) != 1:
        hint = "; one clip in colour is (T,H,W,3)" if Path(path).suffix.lower() in arrays.SUFFIXES else ""
        refuse(os.fspath(path), f"one clip: {_ACCEPTED}", f"{len(clips)} clips{hint}")
    return clips[0]


def open_clips(path: str | os.PathLike[str], leave_out: Path | None = None) -> list[Source]:
    """All clips that a path holds: one, or those in a folder of frame folders or of clip files, or in an array.

    What is to be left out is something inside the folder that is no clip, such as its masks.
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
    if suffix in VIDEOS:
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
