"""What stands still in a clip from a fixed camera, learned from the clip itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from neural_em.data.fitting import Fitting, Frame
from neural_em.data.sources import Source

_SAMPLES = 50  # frames, spread over the clip


class MedianGround:
    """The median of frames from all over a clip, at the size that they are fitted to.

    Attributes:
        image: (C,H,W) float32 in [0, 1], in colour where the clip is.
    """

    def __init__(self, clip: Source, fitting: Fitting) -> None:
        """Reads the clip once."""
        self._fitting, self._colour = replace(fitting, channels="colour" if clip.colour else "grey"), fitting.depth == 3
        frames = [self._fitting.unit_frame(frame, name) for frame, name in sampled(clip)]
        self.image: NDArray[np.float32] = np.median(frames, axis=0).astype(np.float32)

    def difference(self, frame: Frame, name: str) -> NDArray[np.float32]:
        """How far a frame (H,W,C) is from the ground, (C,H,W) in [0, 1]; without colour, in its farthest channel."""
        away = np.abs(self._fitting.unit_frame(frame, name) - self.image)
        return away if self._colour else away.max(axis=0, keepdims=True)


def sampled(clip: Source) -> Iterator[tuple[Frame, str]]:
    """At most fifty frames from all over a clip, with their names."""
    count = clip.count()
    wanted = np.unique(np.linspace(0, count - 1, min(count, _SAMPLES)).round().astype(int)).tolist()
    for number, frame in zip(wanted, clip.take(wanted), strict=True):
        yield frame, clip.frame_name(number)
