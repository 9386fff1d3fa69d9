"""The user's own images, videos and arrays as a data set.

Clips longer than a sequence are cut into windows. Where the folder has no subfolders ``training``, ``validation`` and
``test``, sequences are dealt out in tens: eight to training, the ninth to validation, the tenth to test; fewer than
ten are used whole in every split, and the data set's note says so. Where windows overlap, stretches of the clips are
dealt out so, and windows are cut from each stretch. The part ``all`` is everything, undivided.
"""

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neural_em import fields
from neural_em.data.clip_ground import of_clip
from neural_em.data.config import MAX_FRAMES, SPLITS, DataConfig, Part, Split, kind
from neural_em.data.dataset import Dataset, MemoryDataset, StreamingDataset
from neural_em.data.fitting import Fit, Fitting, unit
from neural_em.data.hdf5 import is_hdf5, load_hdf5
from neural_em.data.masks import Masks, open_masks
from neural_em.data.sources import Source, open_clips
from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.fields import Check, choice, integer, optional
from neural_em.files import existing, from_home

Channels = Literal["auto", "grey", "colour", "binary"]
Background = Literal["none", "median", "flat"]
Foreground = Literal["distance", "colour"]
Window = tuple[int, int]  # the number of a clip, and the first of T frames of it

_FEWEST = 10  # sequences, for them to be dealt out
_FRAMES = 21  # of a sequence, at most, unless the config says otherwise
_ALL_SPLITS = "fewer than 10 sequences: training, validation and test are the same ones"
_ENDS = "validation and test are the same sequences, from the ends of the clips"
_NONE_APART = "too short for sequences that share no frame: training, validation and test are the same ones"


@kind("file")
@dataclass(frozen=True, kw_only=True)
class FileConfig(DataConfig):
    """The user's own data; what is ``None`` is taken from them."""

    path: str = ""  # HDF5, array, image, video, GIF, folder of images or of frame folders
    masks: str | None = None  # label images of the same names, or an array; turns on scoring
    channels: Channels = "auto"  # ``auto``: as they are
    fit: Fit = "none"  # how frames come to height x width; see `Fitting`
    # frames from one window of a longer clip to the next; ``None``: as many as ``frames``. Windows of different splits
    # share no frame, however small it is
    stride: int | None = None
    threshold: float = 0.5  # ``binary`` frames are 1 above this
    # ``median`` or ``flat``: of a frame only what stands out from the ground of its clip is left, as
    # `nem segment --background` leaves it, for a camera that stands still; ``none``: it is as it is
    background: Background = "none"
    # what is left then: ``distance``, how far each pixel is from the ground, on black; ``colour``, what it is, on the
    # ground's most common colour, as models with ``model.prior=median`` see it
    foreground: Foreground = "distance"
    # so many frames at the end of each clip are for validation and test, the rest for training; ``None``: sequences are
    # dealt out
    held_out: int | None = None

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "path": fields.text, "masks": optional(fields.text),
        **dict.fromkeys(("stride", "held_out"), optional(integer(1, MAX_FRAMES))),
        "channels": choice(get_args(Channels)), "fit": choice(get_args(Fit)),
        "background": choice(get_args(Background)), "foreground": choice(get_args(Foreground)),
        "threshold": fields.number("a number from 0 up to, not including, 1", 0, math.nextafter(1, 0)),
    }  # fmt: skip

    def check_together(self) -> None:
        """Refuses what files cannot give."""
        if not self.path:
            refuse("path", "the file or folder that holds the frames", repr(self.path))
        if self.fresh:
            raise NeuralEMError("fresh is for data that are generated, not for kind 'file'")
        if self.foreground != "distance" and self.background == "none":
            raise NeuralEMError("foreground=colour needs background=median or flat, which say what it stands out from")
        if self.fit != "none" and (self.height is None or self.width is None):
            raise NeuralEMError(f"fit={self.fit} needs height and width, the size to fit the frames to")

    @property
    def shape(self) -> None:
        """Only the files tell."""

    def sizes(self) -> dict[str, int]:
        """The largest number of sequences in each split; under ``all``, their sum."""
        sizes = super().sizes()
        return {**sizes, "all": sum(sizes.values())}

    def load(self, split: Part, seed: int, device: torch.device | str, count: int, budget: int) -> Dataset:
        """One split of the files, which do not depend on the seed."""
        path = existing(self.path)
        if split == "all" and divided(path):
            unknown("split", split, SPLITS)
        if not is_hdf5(path):
            return load_own(self, split, device, count, budget)
        usual = FileConfig("file", path=self.path)
        for name in ("masks", "channels", "fit", "stride", "threshold", "background", "foreground", "held_out"):
            if getattr(self, name) != getattr(usual, name):
                raise NeuralEMError(f"{name} is not for an HDF5 file, which is used as it is; leave it out")
        data = load_hdf5(path, cast(Split, split), device, count, self.frames, budget)
        for name, wanted, size in zip(("height", "width"), (self.height, self.width), data.shape[2:], strict=True):
            if wanted not in (None, size):
                refuse(name, f"{size}, as the HDF5 file has it", wanted)
        return data


def divided(path: str | os.PathLike[str]) -> bool:
    """Whether a file or folder of the user's is itself divided into training, validation and test."""
    place = from_home(path)
    return has_splits(place) or (place.is_file() and is_hdf5(place))


def load_own(config: FileConfig, split: Part, device: torch.device | str, size: int, max_bytes: int) -> Dataset:
    """One split of what is at ``config.path``; held in memory if it needs at most ``max_bytes``, else on the disk."""
    path, masks_path, divided = _places(config, split)
    clips = open_clips(path, leave_out=masks_path)
    masks = open_masks(path, masks_path, clips)
    chosen = None not in (config.frames, config.height, config.width) and config.channels != "auto"
    other = divided and split != "training" and not chosen
    training = open_clips(*_places(config, "training")[:2]) if other else clips  # which decide for all splits
    T = config.frames or _usual_frames(training)
    windows, note = _chosen(config, split, divided, clips, T)
    windows, fitting = windows[:size], _fitting(config, training)
    binary, (C, H, W) = fitting.channels == "binary", (fitting.depth, fitting.height, fitting.width)
    # without its background a frame is no longer of whole numbers
    floats = not binary and (config.background != "none" or any(clip.deep for clip in clips))
    kind, levels = (np.float32, 1) if floats else (np.uint8, 1 if binary else 255)
    needed = len(windows) * T * H * W * (C * np.dtype(kind).itemsize + (masks is not None))
    make = np.empty if needed <= max_bytes else _on_disk
    frames = make((len(windows), T, C, H, W), kind)
    groups = None if masks is None else make((len(windows), T, H, W), np.uint8)
    _fill(frames, groups, windows, clips, masks, fitting, config)
    if needed <= max_bytes:
        held = None if groups is None else torch.from_numpy(groups).to(device)
        return MemoryDataset(torch.from_numpy(frames).to(device), held, levels, note)

    def read(indices: Tensor) -> tuple[Tensor, Tensor | None]:
        rows = indices.cpu().numpy()
        return torch.from_numpy(frames[rows]), None if groups is None else torch.from_numpy(groups[rows])

    return StreamingDataset(read, len(windows), (T, C, H, W), groups is not None, device, levels, note=note)


def has_splits(folder: Path) -> bool:
    """Whether a folder is itself divided into training, validation and test."""
    return all((folder / name).is_dir() for name in SPLITS)


def _places(config: FileConfig, split: Part) -> tuple[Path, Path | None, bool]:
    """Frames, masks, and whether the folder itself is divided into splits."""
    path = existing(config.path)
    masks = existing(config.masks) if config.masks else None
    if not has_splits(path):
        return path, masks, False
    return path / split, masks / split if masks is not None else None, True


def _usual_frames(clips: Sequence[Source]) -> int:
    """Images in a folder are single images unless a number of frames is asked for; clips give what all of them have."""
    if any(clip.loose for clip in clips):
        return 1
    known = (clip.length if clip.length is not None else sum(1 for _ in islice(clip, _FRAMES)) for clip in clips)
    return min(_FRAMES, *known)


def _chosen(
    config: FileConfig, split: Part, divided: bool, clips: Sequence[Source], frames: int
) -> tuple[list[Window], str]:
    """The windows of a split, and what is to be said of them."""
    stride = config.stride or frames
    windows = _windows(clips, frames, stride)
    if split == "all":
        ends = {clip: first + frames for clip, first in windows}  # the last one's of each clip
        left = sum(clips[clip].count() - end for clip, end in ends.items())
        return windows, f"{left} frames at the end of clips do not fill a sequence of {frames}" if left else ""
    if divided:
        return windows, ""
    if config.held_out is not None:
        return _held_out(clips, split, frames, stride, config.held_out), _ENDS
    return _deal(windows, clips, split, frames, stride)


def _windows(clips: Sequence[Source], frames: int, stride: int) -> list[Window]:
    """All windows of all clips."""
    for clip in clips:
        if clip.count() < frames:
            refuse(clip.name, f"at least {frames} frames, the length of a sequence", clip.count())
    return [window for i, clip in enumerate(clips) for window in _cut(i, 0, clip.count(), frames, stride)]


def _cut(clip: int, first: int, end: int, frames: int, stride: int) -> list[Window]:
    """The windows of a stretch of a clip."""
    return [(clip, start) for start in range(first, end - frames + 1, stride)]


def _deal(
    windows: list[Window], clips: Sequence[Source], split: Part, frames: int, stride: int
) -> tuple[list[Window], str]:
    """The windows of a split, none of which shares a frame with one of another split, and what is to be said."""
    if len(windows) < _FEWEST:
        return windows, _ALL_SPLITS
    if stride >= frames:
        return [window for number, window in enumerate(windows) if _share(number, _FEWEST) == split], ""
    apart = _windows(clips, frames, frames)
    if len(apart) < len(SPLITS):
        return windows, _NONE_APART
    shares = [_share(number, min(len(apart), _FEWEST)) for number in range(len(apart))]
    dealt = []
    for (clip, share), stretch in groupby(zip(apart, shares, strict=True), lambda each: (each[0][0], each[1])):
        firsts = [first for (_, first), _ in stretch]
        end, length = firsts[-1] + frames, clips[clip].count()
        end = end if length - end >= frames else length  # what is left of the clip belongs to its last
        if share == split:
            dealt += _cut(clip, firsts[0], end, frames, stride)
    return dealt, ""


def _held_out(clips: Sequence[Source], split: Part, frames: int, stride: int, held_out: int) -> list[Window]:
    """The windows before the held-out ends of the clips, or those in them."""
    windows = []
    for number, clip in enumerate(clips):
        length = clip.count()
        if held_out < frames or length - held_out < frames:
            parts = f"the {held_out} held out and into the {max(0, length - held_out)} before them"
            raise NeuralEMError(f"{clip.name}: sequences of {frames} frames must fit into {parts}")
        first, end = (0, length - held_out) if split == "training" else (length - held_out, length)
        windows += _cut(number, first, end, frames, stride)
    return windows


def _share(number: int, count: int) -> Split:
    """Whose a sequence is: of every ``count`` the last is for test, the one before for validation."""
    places: dict[int, Split] = {count - 2: "validation", count - 1: "test"}
    return places.get(number % count, "training")


def _fitting(config: FileConfig, clips: Sequence[Source]) -> Fitting:
    channels = config.channels
    if channels == "auto":
        channels = "colour" if any(clip.colour for clip in clips) else "grey"
    height, width = config.height, config.width
    if height is None or width is None:  # the first frame's size is everyone's
        first = next(iter(clips[0])).shape
        height, width = height or first[0], width or first[1]
    return Fitting(height, width, channels, config.fit, config.threshold)


def _fill(
    frames: NDArray[Any], groups: NDArray[np.uint8] | None, windows: Sequence[Window], clips: Sequence[Source],
    masks: Masks | None, fitting: Fitting, config: FileConfig,
) -> None:  # fmt: skip
    """Reads the windows' frames and labels into arrays (N,T,C,H,W) and (N,T,H,W), each clip once."""
    kind, T = frames.dtype, frames.shape[1]
    numbers, firsts = np.array(windows).reshape(-1, 2).T
    for number in np.unique(numbers).tolist():
        clip, rows = clips[number], np.flatnonzero(numbers == number)
        wanted = np.unique(firsts[rows][:, None] + np.arange(T)).tolist()
        ground = of_clip(config.background, clip, fitting) if config.background != "none" else None
        for position, frame in zip(wanted, clip.take(wanted), strict=True):
            here = rows[(firsts[rows] <= position) & (position < firsts[rows] + T)]
            name = clip.frame_name(position)
            if ground is None:
                fitted = fitting.frame(frame, name)
            else:  # on black, or on one colour
                seen = ground[1].unit_frame(frame, name)
                fitted = (
                    ground[0].removed(seen, fitting, "median" if config.foreground == "colour" else 0.0).astype(kind)
                )
            if kind == np.uint8 and fitted.dtype != np.uint8:  # numbers up to 1 would all be cut to 0
                refuse(name, "8 bits a pixel, as its file said before", fitted.dtype)
            frames[here, position - firsts[here]] = fitted if kind == np.uint8 else unit(fitted)
            if groups is not None and masks is not None:
                labels = masks.labels(number, position, frame.shape[:2])
                groups[here, position - firsts[here]] = 0 if labels is None else fitting.labels(labels, name)


def _on_disk(shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    """An array in a file without a name: the system frees it when the array goes."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):  # else a disk that turns out to be full ends the process
                os.posix_fallocate(file.fileno(), 0, size)
            return cast(NDArray[Any], np.memmap(file, dtype=kind, mode="w+", shape=shape))
    except OSError as error:
        raise NeuralEMError(f"{tempfile.gettempdir()}: no room for {size} bytes of frames: {error.strerror}") from None
