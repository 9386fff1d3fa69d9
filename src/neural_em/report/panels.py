"""Panels: one sequence's input, assignment and predictions as small RGB pictures, and how they are laid out."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from neural_em.errors import check_integer, refuse
from neural_em.files import replacing
from neural_em.report.colours import BLACK, LIMIT, WHITE, Pixels, blend, colour_groups, palette

FRAME = 4  # screen pixels around a component's panel in its colour
PREVIEW_GAP, PREVIEW_EDGE, MOST_COLUMNS = 2, (64, 64, 64), 8  # of a preview, before it is enlarged


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
        frames, gamma = np.asarray(self.frames), np.asarray(self.gamma)
        if frames.ndim != 4 or frames.shape[1] not in (1, 3) or 0 in frames.shape:
            refuse("frames", "the shape (T,C,H,W) with 1 or 3 channels", frames.shape)
        T, C, H, W = frames.shape
        if gamma.ndim == 5 and gamma.shape[2] == 1:
            gamma = gamma[:, :, 0]
        if gamma.ndim != 4 or 0 in gamma.shape or (gamma.shape[0], *gamma.shape[2:]) != (T, H, W):
            refuse("gamma", f"the shape ({T}, K, {H}, {W})", gamma.shape)
        if not 0 <= self.rollout <= T:
            refuse("rollout", f"a number from 0 to {T}", self.rollout)
        K = gamma.shape[1]
        shapes = {"psi": (T, K, C, H, W), "groups": (T, H, W), "inputs": frames.shape, "attention": (T, K, K)}
        given = {name: np.asarray(getattr(self, name)) for name in shapes if getattr(self, name) is not None}
        for name, array in given.items():
            if array.shape != shapes[name]:
                refuse(name, f"the shape {shapes[name]}", array.shape)
        for name, array in {"frames": frames, "gamma": gamma, **given}.items():
            if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
                refuse(name, "finite numbers", "not-a-number, infinity or something else")
            object.__setattr__(self, name, array if name == "groups" else array.astype(np.float32))

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

    def component_rgb(self) -> dict[str, Pixels]:
        """The components' predictions by name, (T,H,W,3): brightness in the component's colour, or RGB as it is."""
        shown = to_rgb(self.psi)  # (T,K,H,W,3)
        if self.psi.shape[2] == 1:
            light = np.clip(self.psi[:, :, 0, :, :, None], 0, 1)
            shown = np.rint(light * palette(self.components)[:, None, None]).astype(np.uint8)
        return {f"component {k + 1}": shown[:, k] for k in range(self.components)}


def to_rgb(frames: Any) -> Pixels:
    """Frames (...,C,H,W) with values cut to [0, 1] as RGB (...,H,W,3); one channel gives grey."""
    frames = np.asarray(frames)
    if frames.ndim < 3 or frames.shape[-3] not in (1, 3):
        refuse("frames", "the shape (...,C,H,W) with 1 or 3 channels", frames.shape)
    pixels: Pixels = np.rint(np.clip(frames, 0, 1).astype(np.float32) * 255).astype(np.uint8)
    rgb: Pixels = np.moveaxis(np.repeat(pixels, 3, axis=-3) if frames.shape[-3] == 1 else pixels, -3, -1)
    return rgb


def frame_rgb(frame: NDArray[Any]) -> Pixels:
    """A clip's frame (H,W,C), uint8 or in [0, 1], as RGB (H,W,3)."""
    if frame.dtype == np.uint8:
        return np.broadcast_to(frame, (*frame.shape[:2], 3))
    return to_rgb(np.moveaxis(frame, 2, 0))


def magnify(rgb: Pixels, factor: int) -> Pixels:
    """RGB (...,H,W,3) with every pixel drawn as a square of ``factor`` pixels."""
    factor = check_integer("magnification", factor, 1, 64)
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


def draw_preview(frames: NDArray[Any], groups: NDArray[np.uint8] | None, zoom: int = 4) -> Pixels:
    """Frames (T,N,C,H,W) in [0, 1]: sequences below each other, time to the right, as a picture (height,width,3).

    Under each frame its groups (T,N,H,W), if given; white is lit but not scored: several objects, or the rim of one.
    """
    times = np.unique(np.linspace(0, len(frames) - 1, min(len(frames), MOST_COLUMNS)).round().astype(int))
    rows = []
    for n in range(frames.shape[1]):
        rows.append(to_rgb(frames[times, n]))
        if groups is not None:
            found = groups[times, n].astype(int)
            wrapped = np.where(found == 0, 0, (found - 1) % LIMIT + 1)  # there are only so many colours
            # groups are as bright as a grey frame; of frames in colour they are fully bright, and the rest is black
            light = frames[times, n] if frames.shape[2] == 1 else groups[times, n, None] > 0
            light = np.moveaxis(light, 1, -1)
            rows.append(np.rint(colour_groups(wrapped, WHITE) * light).astype(np.uint8))
    return magnify(grid(rows, PREVIEW_GAP, PREVIEW_EDGE), zoom)


def write_preview(path: str | os.PathLike[str], frames: NDArray[Any], groups: NDArray[np.uint8] | None) -> None:
    """Draws the preview into an image file; see :func:`draw_preview`."""
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix not in Image.registered_extensions():
        refuse(os.fspath(path), "the name of an image file, such as preview.png", repr(suffix))
    picture = Image.fromarray(draw_preview(frames, groups))
    with replacing(path, make_folder=True) as partial:
        picture.save(partial)
