"""Flying MNIST: handwritten digits, halved, that fly in straight lines and bounce off the walls."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neural_em.data.config import Split, kind
from neural_em.data.generated import SceneConfig, generate
from neural_em.data.mnist import load_images
from neural_em.data.scenes import FlyingConfig, Scenes, Sprites
from neural_em.errors import refuse
from neural_em.fields import Check, choice, integer, number, optional, text

Crop = Literal["before", "after", "none"]

LEVELS = 4 * 255  # a halved pixel is held as the sum of four bytes: an integer, exact on every device


def halve(images: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Sums of 2 x 2 pixels: (N, 2H, 2W) uint8 to (N, H, W) int16 in [0, 1020]; their mean in [0, 1] is sum / 1020."""
    N, height, width = images.shape
    quads = images.reshape(N, height // 2, 2, width // 2, 2)
    return quads.sum(axis=(2, 4), dtype=np.int16)


def to_corner(images: NDArray[Any]) -> NDArray[Any]:
    """Images (N,H,W) whose ink, what is above 0, lies in the top left corner: what stays empty is below and right."""
    _, height, width = images.shape
    top, left = ((images > 0).any(axis=axis).argmax(axis=1)[:, None] for axis in (2, 1))
    rows, columns = (np.arange(height) + top) % height, (np.arange(width) + left) % width
    return images[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None]]


def digits_of(
    split: Split, digits: int | None = None, mnist: str | os.PathLike[str] | None = None, crop: Crop = "none"
) -> NDArray[np.int16]:
    """The halved digits (S, 14, 14) a split may draw on; those that are cropped lie in the top left corner.

    Training has the first five sixths of MNIST's training digits (50,000), validation the rest (10,000), test the test
    digits. With ``digits``, every split has the same first so many training digits.
    """
    images = load_images("t10k" if split == "test" and digits is None else "train", mnist)
    training = len(images) * 5 // 6
    if digits is not None:
        if digits > training:
            refuse("digits", f"at most the {training} training digits", digits)
        images = images[:digits]
    elif split == "training":
        images = images[:training]
    elif split == "validation":
        images = images[training:]
    halved = halve(to_corner(images) if crop == "before" else images)
    return to_corner(halved) if crop == "after" else halved


def digit_sprites(digits: NDArray[np.int16], cropped: bool, threshold: float, overlap_above: float) -> Sprites:
    """Digits (S,H,W) as lists of their ink; cropped ones are no larger than it."""
    S, height, width = digits.shape
    flat = digits.reshape(S, -1)
    most = max(1, np.count_nonzero(flat, axis=1).max())
    pixel = np.argsort(flat == 0, axis=1, kind="stable")[:, :most].astype(np.int32)  # the ink first
    pixel = np.where(np.take_along_axis(flat, pixel, axis=1) > 0, pixel, pixel[:, :1])
    sizes = [np.full(S, height), np.full(S, width)]
    if cropped:
        empty = (np.flip(digits.any(axis=axis), axis=1).argmax(axis=1) for axis in (2, 1))  # below and right of the ink
        sizes = [size - rest for size, rest in zip(sizes, empty, strict=True)]
    parts = pixel // width, pixel % width, np.take_along_axis(flat, pixel, axis=1), *sizes
    rows, columns, values, heights, widths = map(torch.from_numpy, parts)
    inside, shared = (int(Fraction(value) * LEVELS) for value in (threshold, overlap_above))  # exact: 0.3 * 1020
    return Sprites(rows, columns, values, heights, widths, LEVELS, inside, shared)


class OfDigits(SceneConfig):
    """What configs with the fields ``digits`` and ``mnist`` share."""

    digits: int | None
    mnist: str | None

    BOX: ClassVar[tuple[int, int]] = (14, 14)  # a halved digit
    PIXELS: ClassVar[int] = 49  # a quarter of its box is ink
    CHECKS: ClassVar[Mapping[str, Check]] = {"digits": optional(integer(1, 10**6)), "mnist": optional(text)}

    def note(self) -> str:
        """Where the splits share their digits."""
        shared = f"validation and test draw on the same {self.digits} digits as training"
        return "; ".join(text for text in (shared if self.digits is not None else "", super().note()) if text)

    def without_paths(self) -> Self:
        nowhere: Any = {"mnist": None}
        return replace(self, **nowhere)


@kind("flying-mnist")
@dataclass(frozen=True, kw_only=True)
class FlyingDigitsConfig(OfDigits, FlyingConfig):
    """Handwritten digits."""

    objects: int = 2
    height: int = 24
    width: int = 24
    threshold: float = 0.5  # a digit's pixels are those above this, which decides what is scored
    overlap_above: float | None = None  # where two digits are above this, nothing is scored; ``None``: the threshold
    digits: int | None = None  # draw only on the first so many training digits, in every split; ``None``: all digits
    mnist: str | None = None  # folder of MNIST's IDX files; ``None``: ``$NEM_MNIST``, the cache, or a download
    # digits are cropped to their ink ``before`` they are halved, which is usual, or ``after``; ``none``: each is a box
    # of 14 x 14 pixels, empty borders included
    crop: Crop = "before"

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "threshold": number("a number from 0 up to, not including, 1", 0, math.nextafter(1, 0)),
        "overlap_above": optional(number("a number from 0 to the threshold", 0, 1)),
        "crop": choice(("before", "after", "none")),
    }

    @classmethod
    def from_older(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """A file that does not say ``crop`` is older than it, and its digits are boxes."""
        return super().from_older({"crop": "none", **values})

    def check_together(self) -> None:
        super().check_together()
        if self.overlap_above is not None and self.overlap_above > self.threshold:
            refuse("overlap_above", f"a number from 0 to the threshold, {self.threshold}", self.overlap_above)

    def scenes(self, split: Split, seed: int, device: torch.device | str = "cpu") -> Scenes:
        """The sequences of one split; the three splits never share one, nor a digit unless ``digits`` is set."""
        digits = digits_of(split, self.digits, self.mnist, self.crop)
        above = self.threshold if self.overlap_above is None else self.overlap_above
        sprites = digit_sprites(digits, self.crop != "none", self.threshold, above)
        return Scenes(self, sprites, split, seed, device)


def flying_mnist(
    num: int, objects: int = 2, frames: int = 21, seed: int = 0, split: Split = "training",
    device: torch.device | str = "cpu", start: int = 0, **fields: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sequences of halved MNIST digits that move as the shapes of ``flying_shapes`` do, whose arguments these are.

    Digits are drawn uniformly with replacement; the splits share none unless ``digits`` is given. One frame makes the
    static set. The fields are ``height`` and ``width`` of a frame, 24 pixels, ``velocities``, and

    * ``digits``: draw on the first so many training digits only, in every split: 20 and 500 are the paper's stages;
    * ``mnist``: folder of the IDX files; else ``$NEM_MNIST``, the cache, or a download;
    * ``overlap``: how values combine where digits overlap: their "maximum", their "sum" cut at 1, or "hide";
    * ``threshold``: a pixel belongs to a digit where the digit's value is above this. The paper does not say where; 0.5
      is what the first author's earlier data set of several digits takes. It decides what is scored, not what is
      trained on, and matters: grey rims are hard to assign. One digit of 70,000 keeps no pixel;
    * ``overlap_above``: digits overlap in a pixel where two are above this, else above the threshold. The paper does
      not say this either, and it matters as much: next to another digit's grey rim a pixel is hard to assign;
    * ``crop``: digits are cropped to their ink (what is above 0), so that each has its own size and its own room to
      move: "before" they are halved, or "after" it; "none" leaves them in boxes of 14 x 14 pixels. The paper does not
      say; the first author's earlier data set of several digits crops them before anything else.

    Frames are (T,N,1,H,W) float32 in [0, 1], groups (T,N,H,W) uint8: 1 .. objects, 0 where no digit or several are.
    """
    return generate("flying-mnist", num, seed, split, device, start, objects=objects, frames=frames, **fields)
