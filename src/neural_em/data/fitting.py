"""Brings the user's frames to the size and channels that are asked for, and labels back to the frames' own size."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from neural_em.errors import refuse

Fit = Literal["none", "resize", "crop", "crop-resize"]

Frame = NDArray[Any]  # (H,W,C), C = 1 or 3: uint8 in [0, 255], or float32 in [0, 1]
Labels = NDArray[np.uint8]  # (H,W)
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601, as Pillow's own conversion


@dataclass(frozen=True)
class Fitting:
    """What a frame has to become."""

    height: int
    width: int
    channels: Literal["grey", "colour", "binary"] = "grey"
    # "none" refuses another size; "resize" stretches; "crop" cuts out the centre; "crop-resize" cuts out the largest
    # centred part of the right shape and resizes it
    fit: Fit = "none"
    threshold: float = 0.5  # for "binary": 1 above this

    @property
    def depth(self) -> int:
        """Channels, as a number."""
        return 3 if self.channels == "colour" else 1

    def frame(self, frame: Frame, name: str) -> NDArray[Any]:
        """A frame (H,W,C) as (C, height, width) in its own type; binary frames as uint8 zeros and ones."""
        frame = _with_channels(self._cut(frame, name), self.depth)
        if frame.shape[:2] != (self.height, self.width):
            frame = _resized(frame, self.height, self.width)
        if self.channels == "binary":
            frame = (unit(frame) > self.threshold).astype(np.uint8)
        return np.ascontiguousarray(frame.transpose(2, 0, 1))

    def unit_frame(self, frame: Frame, name: str) -> NDArray[np.float32]:
        """A frame (H,W,C) as (C, height, width) float32 in [0, 1]."""
        fitted = self.frame(frame, name)
        return fitted.astype(np.float32) if self.channels == "binary" else unit(fitted)

    def labels(self, labels: Labels, name: str) -> Labels:
        """Labels (H,W) as (height, width): each takes the label of the nearest pixel."""
        labels = self._cut(labels, name)
        return _nearest(labels, self.height, self.width)

    def restore(self, labels: Labels, size: tuple[int, int]) -> Labels:
        """Labels (height, width) back at a frame's own size (H,W); 0 where the frame was cut away."""
        top, left, height, width = self._box(*size, "labels")
        whole = np.zeros(size, labels.dtype)
        whole[top : top + height, left : left + width] = _nearest(labels, height, width)
        return whole

    def _cut(self, image: NDArray[Any], name: str) -> NDArray[Any]:
        top, left, height, width = self._box(image.shape[0], image.shape[1], name)
        return image[top : top + height, left : left + width]

    def _box(self, height: int, width: int, name: str) -> tuple[int, int, int, int]:
        """Top, left, height and width of the part of a frame that is used."""
        wanted = f"{self.height} x {self.width} pixels"
        if self.fit == "none" and (height, width) != (self.height, self.width):
            refuse(name, f"{wanted} like the others (or a fit other than 'none')", f"{height} x {width}")
        if self.fit == "crop":
            if height < self.height or width < self.width:
                refuse(name, f"at least {wanted} to cut out", f"{height} x {width}")
            return (height - self.height) // 2, (width - self.width) // 2, self.height, self.width
        if self.fit == "crop-resize":
            part_height = max(1, min(height, width * self.height // self.width))
            part_width = max(1, min(width, height * self.width // self.height))
            return (height - part_height) // 2, (width - part_width) // 2, part_height, part_width
        return 0, 0, height, width


def unit(frame: NDArray[Any]) -> NDArray[np.float32]:
    """Values as float32 in [0, 1]."""
    values = frame.astype(np.float32)
    return values / np.float32(255) if frame.dtype == np.uint8 else values


def _with_channels(frame: Frame, depth: int) -> Frame:
    if frame.shape[2] == depth:
        return frame
    if depth == 3:
        return np.repeat(frame, 3, axis=2)
    if frame.dtype == np.uint8:
        return np.asarray(Image.fromarray(np.ascontiguousarray(frame)).convert("L"))[:, :, None]
    return np.clip(frame @ _LUMA, 0, 1)[:, :, None].astype(np.float32)


def _resized(frame: Frame, height: int, width: int) -> Frame:
    planes = (Image.fromarray(np.ascontiguousarray(plane)) for plane in np.moveaxis(frame, 2, 0))
    smooth = [np.asarray(plane.resize((width, height), Image.Resampling.BILINEAR)) for plane in planes]
    return np.stack(smooth, axis=-1)


def _nearest(labels: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """The label at each target pixel's centre."""
    rows = (np.arange(height) * 2 + 1) * labels.shape[0] // (2 * height)
    columns = (np.arange(width) * 2 + 1) * labels.shape[1] // (2 * width)
    return np.ascontiguousarray(labels[rows[:, None], columns])
