"""What data to use: one config for the generated kinds, for HDF5 files and for the user's own images and video."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from neural_em.errors import check_integer, check_number, refuse, unknown

Kind = Literal["static-shapes", "flying-shapes", "flying-mnist", "file"]
Split = Literal["training", "validation", "test"]
Part = Literal["training", "validation", "test", "all"]  # "all": the user's own data, undivided
Overlap = Literal["maximum", "sum"]
Crop = Literal["before", "after", "none"]
Channels = Literal["auto", "grey", "colour", "binary"]
Fit = Literal["none", "resize", "crop", "crop-resize"]

KINDS: tuple[str, ...] = get_args(Kind)
SPLITS: tuple[str, ...] = get_args(Split)

MAX_OBJECTS = 127  # labels have seven bits while painting
MAX_SIDE = 4096
MAX_FRAMES = 1_000_000
SHAPE_BOX, SHAPE_PIXELS = (7, 12), 40  # every shape fits into the box; the smallest has this many pixels
DIGIT_BOX, DIGIT_PIXELS = (14, 14), 49  # a halved digit; a quarter of its box is ink

# the paper's settings for each kind; None for a file: taken from it
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "static-shapes": {"objects": 3, "frames": 1, "height": 28, "width": 28, "threshold": 0.5},
    "flying-shapes": {"objects": 3, "frames": 21, "height": 28, "width": 28, "threshold": 0.5},
    "flying-mnist": {"objects": 2, "frames": 21, "height": 24, "width": 24, "threshold": 0.5, "crop": "before"},
    "file": {"threshold": 0.5},
}


@dataclass(frozen=True)
class DataConfig:
    """Where the sequences come from and how many of them make the three splits.

    Fields left at ``None`` take the paper's value for the kind; for files, whatever the file has.

    Attributes:
        kind: ``static-shapes``, ``flying-shapes``, ``flying-mnist``, or ``file`` for what is at ``path``.
        objects: shapes (3) or digits (2) in a sequence.
        frames: frames of a sequence: one more than the model's steps; static data has 1.
        height: of a frame, in pixels: 28 for shapes, 24 for digits.
        width: likewise.
        velocities: pixels per frame, drawn for each axis; all are equally likely.
        overlap: how digits' values combine: the ``maximum``, or their ``sum`` cut at 1.
        threshold: a digit's pixels are those above this, which decides what is scored; ``binary`` frames are 1 above
            it; 0.5.
        overlap_above: digits overlap in a pixel, which is then not scored, where two are above this; ``None``: above
            the threshold.
        digits: draw only on the first so many training digits, in every split; ``None``: all digits.
        mnist: folder of MNIST's IDX files; ``None``: ``$NEM_MNIST``, the cache, or a download.
        crop: digits are cropped to their ink ``before`` they are halved, which is usual, or ``after``; ``none``: each
            is a box of 14 x 14 pixels, empty borders included.
        path: of kind ``file``: HDF5, array, image, video, GIF, folder of images or of frame folders.
        masks: label images of the same names, or an array; turns on scoring.
        channels: of the user's own frames: ``grey``, ``colour``, ``binary``, or ``auto``: as they are.
        fit: how they come to height x width: ``resize`` stretches them, ``crop`` cuts out the centre, ``crop-resize``
            cuts them to shape and resizes that, ``none`` refuses others.
        stride: frames from one window of a longer clip to the next; ``None``: as many as ``frames``. Windows of
            different splits share no frame, however small it is.
        train_size: training sequences.
        validation_size: the paper has 10,000 and validates on the first 1,000.
        test_size: test sequences.
        fresh: never train on a sequence twice: every epoch draws new ones.
    """

    kind: Kind = "flying-shapes"
    objects: int | None = None
    frames: int | None = None
    height: int | None = None
    width: int | None = None
    velocities: tuple[int, ...] = (-1, 0, 1)

    overlap: Overlap = "maximum"
    threshold: float | None = None
    overlap_above: float | None = None
    digits: int | None = None
    mnist: str | None = None
    crop: Crop | None = None

    path: str | None = None
    masks: str | None = None
    channels: Channels = "auto"
    fit: Fit = "none"
    stride: int | None = None

    train_size: int = 50_000
    validation_size: int = 1_000
    test_size: int = 10_000
    fresh: bool = False

    def __post_init__(self) -> None:
        """Fills in the kind's defaults and refuses what cannot be made."""
        if self.kind not in KINDS:
            unknown("kind", self.kind, KINDS)
        for name, value in _DEFAULTS[self.kind].items():
            if getattr(self, name) is None:
                self._keep(name, value)
        self._check_numbers()
        self._check_choices()
        if self.kind != "flying-mnist":
            self._check_no_digits()
        if self.kind == "file":
            self._check_file()
        else:
            self._check_scene()

    @staticmethod
    def from_older(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of a file: one that does not say ``crop`` is older than it, and its digits are boxes."""
        return {"crop": "none", **values} if values.get("kind") == "flying-mnist" else values

    def size(self, split: Part) -> int:
        """Sequences in the split, at most; in ``all`` of a file."""
        sizes = {"training": self.train_size, "validation": self.validation_size, "test": self.test_size}
        if self.kind == "file":
            sizes["all"] = sum(sizes.values())
        if split not in sizes:
            unknown("split", split, sizes)
        return sizes[split]

    def scene(self) -> tuple[int, int, int, int]:
        """Objects, frames, height and width of a generated kind."""
        if self.objects is None or self.frames is None or self.height is None or self.width is None:
            refuse("kind", "one that is generated", repr(self.kind))
        return self.objects, self.frames, self.height, self.width

    def _check_numbers(self) -> None:
        for name, low, high in (
            ("objects", 1, MAX_OBJECTS), ("frames", 1, MAX_FRAMES), ("height", 1, MAX_SIDE), ("width", 1, MAX_SIDE),
            ("digits", 1, 10**6), ("stride", 1, MAX_FRAMES),
            ("train_size", 1, 10**12), ("validation_size", 1, 10**12), ("test_size", 1, 10**12),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None or name.endswith("_size"):
                self._keep(name, check_integer(name, value, low, high))
        below = math.nextafter(1, 0)
        threshold = check_number("threshold", self.threshold, "a number from 0 up to, not including, 1", 0, below)
        self._keep("threshold", threshold)
        if self.overlap_above is not None:
            expected = f"a number from 0 to the threshold, {threshold}"
            self._keep("overlap_above", check_number("overlap_above", self.overlap_above, expected, 0, threshold))
        velocities = tuple(self.velocities) if isinstance(self.velocities, Iterable) else ()
        if not velocities:
            refuse("velocities", f"a list of integers from -{MAX_SIDE} to {MAX_SIDE}", repr(self.velocities))
        checked = (check_integer(f"velocities[{i}]", v, -MAX_SIDE, MAX_SIDE) for i, v in enumerate(velocities))
        self._keep("velocities", tuple(checked))

    def _keep(self, name: str, value: object) -> None:
        """Python's own numbers, whatever came: they can be written, and equal configs are equal."""
        object.__setattr__(self, name, value)

    def _check_choices(self) -> None:
        choices = {"overlap": Overlap, "channels": Channels, "fit": Fit}
        for name, allowed in (choices | {"crop": Crop} if self.kind == "flying-mnist" else choices).items():
            if getattr(self, name) not in get_args(allowed):
                unknown(name, getattr(self, name), get_args(allowed))

    def _check_scene(self) -> None:
        objects, frames, height, width = self.scene()
        box, ink = (DIGIT_BOX, DIGIT_PIXELS) if self.kind == "flying-mnist" else (SHAPE_BOX, SHAPE_PIXELS)
        if height < box[0] or width < box[1]:
            refuse("height x width", f"at least {box[0]} x {box[1]} for an object to fit", f"{height} x {width}")
        room = height * width // ink
        if objects > room:
            refuse("objects", f"at most {room}, which fit into {height} x {width} pixels", objects)
        if self.kind == "static-shapes" and frames != 1:
            refuse("frames", "1 for static-shapes", frames)
        if self.path is not None or self.masks is not None:
            refuse("path and masks", "kind 'file'", repr(self.kind))
        for name, usual in {"channels": "auto", "fit": "none", "stride": None}.items():
            if getattr(self, name) != usual:
                refuse(name, "kind 'file', whose frames it is about", repr(self.kind))
        if self.kind == "static-shapes" and self.velocities != (-1, 0, 1):
            refuse("velocities", "a kind that moves", repr(self.kind))
        if self.kind != "flying-mnist" and self.threshold != 0.5:
            refuse("threshold", "kind 'flying-mnist', whose digits it is about", repr(self.kind))

    def _check_no_digits(self) -> None:
        digits = {"overlap": "maximum", "overlap_above": None, "digits": None, "mnist": None, "crop": None}
        for name, usual in digits.items():
            if getattr(self, name) != usual:
                refuse(name, "kind 'flying-mnist', whose digits it is about", repr(self.kind))

    def _check_file(self) -> None:
        if not self.path:
            refuse("path", "the file or folder that holds the frames", repr(self.path))
        for name, usual in {"fresh": False, "objects": None, "velocities": (-1, 0, 1)}.items():
            if getattr(self, name) != usual:
                refuse(name, "a kind whose sequences are generated", repr(self.kind))
        if self.fit != "none" and (self.height is None or self.width is None):
            refuse("height and width", f"the size to fit the frames to, for fit {self.fit!r}", "none")
