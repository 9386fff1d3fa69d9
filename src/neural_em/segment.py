"""The user's own images and video: frame after frame through a model, in bounded memory.

EM first runs several steps on the first frame, from several random starts of which the best is kept, and then one step
for each frame that follows. An image is a clip of one frame.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neural_em import randomness
from neural_em.data.fitting import Fit, Fitting, Frame, Labels
from neural_em.data.masks import Masks, open_masks
from neural_em.data.sources import Source, open_source
from neural_em.errors import refuse
from neural_em.evaluation.matching import matched_iou, object_mean
from neural_em.evaluation.metrics import grouping_scores
from neural_em.fields import Check, Checked, choice, integer, number, optional
from neural_em.files import existing
from neural_em.model import BaseConfig, Model, State
from neural_em.model.fast import accelerate
from neural_em.model.inference import best_start, infer
from neural_em.model.mixture import pixel_likelihood

_STARTS, _NOISE = 0x5354, 0x4E4F  # tell the draws under one seed apart
Channels = Literal["grey", "binary", "colour"]
MAX_COMPONENTS = 64  # as many as can be told apart by colour
SCORES = ("ami_max", "ami_arithmetic", "ari", "iou")


@dataclass(frozen=True)
class SegmentConfig(Checked):
    """How to segment.

    Attributes:
        components: K; need not be what the model was trained with.
        steps: EM steps on the first frame; ``None``: the model's own number for a single image.
        starts: random starts on the first frame; the one with the lowest loss goes on.
        separate: every frame is an image of its own, not the next moment of the one before.
        seed: of the starts and of the input noise.
        fit: how frames come to the model's size: ``resize`` stretches them, ``crop`` cuts out the centre,
            ``crop-resize`` cuts out the largest centred part of the right shape and resizes it, ``none`` refuses.
        channels: ``grey``, ``binary`` or ``colour``; ``None``: what the model's channels and distribution ask for.
        threshold: ``binary`` frames are 1 above this.
        invert: turn bright into dark, for objects that are darker than their background.
    """

    components: int
    steps: int | None = None
    starts: int = 5
    separate: bool = False
    seed: int = 0
    fit: Fit = "resize"
    channels: Channels | None = None
    threshold: float = 0.5
    invert: bool = False

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "components": integer(1, MAX_COMPONENTS),
        "starts": integer(1, 1000),
        "steps": optional(integer(1)),
        "threshold": number("a number from 0 to 1", 0, 1),
        "fit": choice(get_args(Fit)),
        "channels": optional(choice(get_args(Channels))),
    }

    def fitting(self, model: BaseConfig) -> Fitting:
        """What the user's frames have to become for the model."""
        channels = self.channels or usual_channels(model)
        if (channels == "colour") != (model.channels == 3):
            refuse("channels", "colour" if model.channels == 3 else "grey or binary, as the model sees", channels)
        return Fitting(model.height, model.width, channels, self.fit, self.threshold)


def usual_channels(model: BaseConfig) -> Channels:
    """What the user's frames have to become for the model, as far as its channels and its distribution tell."""
    if model.channels not in (1, 3):
        refuse("model", "one that sees 1 or 3 channels", f"{model.channels}")
    return "colour" if model.channels == 3 else "binary" if model.distribution == "bernoulli" else "grey"


class Step(NamedTuple):
    """What EM makes of one frame, without a batch axis."""

    theta: Tensor  # (K,M)
    psi: Tensor  # (K,C,H,W)
    gamma: Tensor  # (K,H,W)
    loss: float
    prior: Tensor | None = None  # (C,1,1) or (C,H,W), where it is the image's own


class Segmented(NamedTuple):
    """One frame of the user's and what the model makes of it; H', W' are the frame's own size."""

    name: str
    frame: Frame  # (H',W',C), as it was read
    x: NDArray[np.float32]  # (C,H,W), as the model saw it
    labels: Labels  # (H',W'): 1..K, or 0 for the background
    step: Step
    scores: dict[str, float] | None  # against the masks, where there are any for this frame


def segment(
    source: str | os.PathLike[str] | Source,
    model: Model,
    config: SegmentConfig,
    masks: str | os.PathLike[str] | None = None,
) -> Iterator[Segmented]:
    """Segments an image, a folder of images, a video, a GIF or an array, one frame at a time.

    A pixel is background where the pixel prior explains it at least as well as the best component does. Scores count
    every pixel that the masks give a group, background or not, with the component of the largest responsibility.

    Args:
        source: the clip, or its path.
        model: on its device already.
        config: how.
        masks: true groups for scores: label images of the frames' names, or an array; 0 is not scored. Groups in a
            ``.npz`` archive beside the frames need not be named.

    Yields:
        Each frame with its labels at the frame's own size.
    """
    clip = source if isinstance(source, Source) else open_source(source, leave_out=masks)
    fitting = config.fitting(model.config)
    truth = open_masks(Path(clip.name), None if masks is None else existing(masks), [clip])
    return _segmented(clip, model, config, fitting, truth)


def _segmented(
    clip: Source, model: Model, config: SegmentConfig, fitting: Fitting, truth: Masks | None
) -> Iterator[Segmented]:
    stream, stems = Stream(model, config), clip.stems()
    for position, frame in enumerate(clip):
        x = fitting.unit_frame(frame, clip.frame_name(position))
        x = 1 - x if config.invert else x
        step = stream.look(x)
        size = (frame.shape[0], frame.shape[1])
        assignment = step.gamma.argmax(dim=0) + 1
        visible = ~_background(model, torch.from_numpy(x).to(step.psi), step)
        found = None if truth is None else truth.labels(0, position)
        if found is not None and found[0].shape != size:
            refuse(found[1], f"{size[0]} x {size[1]} pixels like its frame", " x ".join(map(str, found[0].shape)))
        scores = None if found is None else _scores(found[0], _restored(fitting, assignment, size))
        name = stems[position] if stems else f"frame-{position:05d}"
        yield Segmented(name, frame, x, _restored(fitting, assignment * visible, size), step, scores)


class Stream:
    """EM over a stream of frames: the last frame and the state are all that is held. The model is on its device."""

    def __init__(self, model: Model, config: SegmentConfig) -> None:
        self.config, self._model, self._like = config, accelerate(model), next(model.parameters())
        self._frames = 0
        self._state: State | None = None
        self._before = torch.empty(0)

    def look(self, frame: NDArray[np.float32]) -> Step:
        """Takes the next frame (C,H,W), in [0, 1] and of the model's size."""
        with torch.inference_mode():
            x = torch.from_numpy(np.ascontiguousarray(frame)).to(self._like).unsqueeze(0)
            if self._state is None or self.config.separate:
                state, loss = self._settle(x)
            else:
                key = randomness.keys(self.config.seed, _NOISE, torch.tensor([self._frames]), device=x.device)
                both = torch.stack([self._before, x])
                (step,) = infer(self._model, both, self.config.components, key, state=self._state)
                state, loss = step.state, step.info.total
        self._state, self._before, self._frames = state, x, self._frames + 1
        prior = None if state.prior is None else state.prior[0]
        return Step(state.theta[0], state.psi[0], state.gamma[0, :, 0], float(loss[0]), prior)

    def _settle(self, x: Tensor) -> tuple[State, Tensor]:
        """Several steps on one frame x (1,C,H,W) from several starts: state and loss of the start with the lowest."""
        config = self.config
        starts = torch.arange(config.starts)
        keys = randomness.keys(config.seed, _STARTS, self._frames, starts, device=x.device)
        image = x.expand(config.starts, -1, -1, -1).unsqueeze(0)  # (1,S,C,H,W)
        *_, last = infer(self._model, image, config.components, keys, config.steps)
        best = best_start(last.info.total.unsqueeze(1))
        theta, psi, gamma, prior = last.state
        prior = None if prior is None else prior[best]
        return State(theta[best], psi[best], gamma[best], prior), last.info.total[best]


def _background(model: Model, x: Tensor, step: Step) -> Tensor:
    """Where (H,W) the prior explains the frame x (C,H,W) at least as well as each component's psi (K,C,H,W)."""
    with torch.inference_mode():
        prior: Any = model.config.prior if step.prior is None else step.prior
        every = torch.cat([torch.zeros_like(step.psi[:1]) + prior, step.psi]).unsqueeze(0)
        likelihood = pixel_likelihood(model.distribution, x.unsqueeze(0), every, model.config.channel_rule)[0, :, 0]
        return likelihood[0] >= likelihood[1:].amax(dim=0)


def _restored(fitting: Fitting, labels: Tensor, size: tuple[int, int]) -> Labels:
    return fitting.restore(labels.to(torch.uint8).cpu().numpy(), size)


def _scores(groups: Labels, labels: Labels) -> dict[str, float]:
    """Scores of labels (H',W') against groups; what was cut away before the model saw it (label 0) is not scored."""
    known = np.where(labels > 0, groups, 0).astype(np.int64)
    maps = torch.from_numpy(known)[None], torch.from_numpy(labels.astype(np.int64))[None]
    scores: dict[str, Any] = {**grouping_scores(*maps)._asdict(), "iou": object_mean(matched_iou(*maps))}
    return {name: float(scores[name][0]) for name in SCORES}
