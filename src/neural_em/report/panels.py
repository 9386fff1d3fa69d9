"""Panels: one sequence's input, assignment and predictions as small RGB pictures, and how they are laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_em.errors import refuse
from neural_em.report.colours import BLACK, Pixels, as_components, blend, colour_groups, palette

FRAME = 4  # screen pixels around a component's panel in its colour


@dataclass(frozen=True, eq=False)
class SequenceReport:
    """One sequence and what the model made of it; step t's assignment and prediction are about frame t."""

    label: str  # what to call it, such as 'best'
    frames: NDArray[np.float32]  # the frame that each step explains, (T,C,H,W) in [0, 1], one or three channels
    gamma: NDArray[np.float32]  # the soft assignment, (T,K,H,W) or (T,K,1,H,W), sums to 1 over K
    psi: NDArray[np.float32]  # each component's prediction, (T,K,C,H,W); shown cut to [0, 1]
    groups: NDArray[Any] | None = None  # the true groups, (T,H,W), 0 = not scored; or None
    score: float | None = None  # what the sequence scored, or None
    score_name: str = "AMI"  # what the score is
    rollout: int = 0  # how many of the steps, the last ones, have read the model's own prediction instead of a frame
    # what the components have read, (T,C,H,W), shown beside the frames; or None
    inputs: NDArray[np.float32] | None = None
    # how much each component k heeds each other one j in the step, (T,K,K) in [0, 1]; or None
    attention: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        frames, gamma, psi = (np.asarray(array) for array in (self.frames, self.gamma, self.psi))
        if frames.ndim != 4 or frames.shape[1] not in (1, 3) or 0 in frames.shape:
            refuse("frames", "the shape (T,C,H,W) with 1 or 3 channels", frames.shape)
        steps, _, height, width = frames.shape
        if gamma.ndim == 5 and gamma.shape[2] == 1:
            gamma = gamma[:, :, 0]
        if gamma.ndim != 4 or gamma.shape[1] == 0 or gamma.shape != (steps, gamma.shape[1], height, width):
            refuse("gamma", f"the shape ({steps}, K, {height}, {width})", gamma.shape)
        expected = (steps, gamma.shape[1], *frames.shape[1:])
        if psi.shape != expected:
            refuse("psi", f"the shape {expected}", psi.shape)
        if self.groups is not None and np.shape(self.groups) != (steps, height, width):
            refuse("groups", f"the shape {(steps, height, width)}", np.shape(self.groups))
        if not 0 <= self.rollout <= steps:
            refuse("rollout", f"a number from 0 to {steps}", self.rollout)
        arrays = {"frames": frames, "gamma": gamma, "psi": psi}
        if self.inputs is not None:
            arrays["inputs"] = np.asarray(self.inputs)
            if arrays["inputs"].shape != frames.shape:
                refuse("inputs", f"the shape {frames.shape}", arrays["inputs"].shape)
        if self.attention is not None:
            arrays["attention"] = np.asarray(self.attention)
            if arrays["attention"].shape != (steps, gamma.shape[1], gamma.shape[1]):
                refuse("attention", f"the shape ({steps}, K, K)", arrays["attention"].shape)
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
                refuse(name, "finite numbers", "not-a-number, infinity or something else")
            object.__setattr__(self, name, array.astype(np.float32))

    @property
    def steps(self) -> int:
        """Number of frames, T."""
        return self.frames.shape[0]

    @property
    def components(self) -> int:
        """Number of components, K."""
        return self.gamma.shape[1]

    def step_name(self, step: int) -> str:
        """What to call a step, counted from 1: its number, or how many steps it is after the last input."""
        last = self.steps - self.rollout
        return f"{step}" if step <= last else f"+{step - last}"

    def frames_rgb(self) -> dict[str, Pixels]:
        """The frames by name, (T,H,W,3) each; where the input is known, that and the prediction too."""
        if self.inputs is None:
            return {"input": to_rgb(self.frames)}
        colour = self.psi.shape[2] == 3  # on a ground of any colour the brightest component need not be the right one
        prediction = (self.gamma[:, :, None] * self.psi).sum(axis=1) if colour else self.psi.max(axis=1)
        shown = {"input": self.inputs, "what happened": self.frames, "prediction": prediction}
        return {name: to_rgb(strip) for name, strip in shown.items()}

    def assignment_rgb(self) -> Pixels:
        """The assignment in the components' colours, (T,H,W,3)."""
        return blend(self.gamma)

    def component_rgb(self) -> Pixels:
        """Each component's prediction, (T,K,H,W,3): brightness in the component's colour, or RGB as it is."""
        if self.psi.shape[2] == 3:
            return to_rgb(self.psi)
        light = np.clip(self.psi[:, :, 0, :, :, None], 0, 1)
        return np.rint(light * palette(self.components)[None, :, None, None, :]).astype(np.uint8)

    def groups_rgb(self) -> Pixels | None:
        """The true groups, (T,H,W,3), each in the colour of the component that matches it; or None."""
        return None if self.groups is None else colour_groups(as_components(self.groups, self.gamma))


def to_rgb(frames: Any) -> Pixels:
    """Frames (...,C,H,W) with values cut to [0, 1] as RGB (...,H,W,3); one channel gives grey."""
    frames = np.asarray(frames)
    if frames.ndim < 3 or frames.shape[-3] not in (1, 3):
        refuse("frames", "the shape (...,C,H,W) with 1 or 3 channels", frames.shape)
    pixels: Pixels = np.rint(np.clip(frames, 0, 1).astype(np.float32) * 255).astype(np.uint8)
    rgb: Pixels = np.moveaxis(np.repeat(pixels, 3, axis=-3) if frames.shape[-3] == 1 else pixels, -3, -1)
    return rgb


def magnify(rgb: Pixels, factor: int) -> Pixels:
    """RGB (...,H,W,3) with every pixel drawn as a square of ``factor`` pixels."""
    if isinstance(factor, bool) or not isinstance(factor, int | np.integer) or not 1 <= factor <= 64:
        refuse("magnification", "an integer from 1 to 64", repr(factor))
    return rgb.repeat(factor, axis=-3).repeat(factor, axis=-2)


def magnification_for(side: int, target: int) -> int:
    """The magnification that brings a side of ``side`` pixels nearest to ``target`` screen pixels."""
    return min(64, max(1, round(target / side)))


def framed(rgb: Pixels, colour: Any, thickness: int = FRAME) -> Pixels:
    """One panel (H,W,3) inside a frame of the given colour, (H+2t,W+2t,3)."""
    return grid([[rgb]], thickness, colour)


def grid(rows: Sequence[Sequence[Pixels] | Pixels], gap: int, colour: Any) -> Pixels:
    """Pictures (H,W,3) of one size in rows, with gaps of a colour between and around them; a row may be shorter."""
    height, width, _ = rows[0][0].shape
    high, wide = len(rows) * (height + gap) + gap, max(len(row) for row in rows) * (width + gap) + gap
    canvas: Pixels = np.full((high, wide, 3), colour, np.uint8)
    for line, row in enumerate(rows):
        for column, picture in enumerate(row):
            top, left = gap + line * (height + gap), gap + column * (width + gap)
            canvas[top : top + height, left : left + width] = picture
    return canvas


def sprite(strip: Pixels, widest: int = 4096) -> tuple[Pixels, int]:
    """Pictures (T,H,W,3) as one, in as many lines as ``widest`` pixels demand, and its number of columns."""
    columns = max(1, min(len(strip), widest // strip.shape[2]))
    return grid([strip[first : first + columns] for first in range(0, len(strip), columns)], 0, BLACK), columns
