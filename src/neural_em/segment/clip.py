"""The user's own images and video: frame after frame through a model, in bounded memory.

EM first runs several steps on the first frame, from several random starts, which then race through the first frames of
the clip; the best one goes on with one step for each frame that follows. An image is a clip of one frame.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from neural_em.data import clip_ground as grounds
from neural_em.data.clip_ground import Ground, Mask, Picture
from neural_em.data.fitting import Fitting, Frame, Labels
from neural_em.data.masks import Masks, open_masks
from neural_em.data.sources import Source, open_source
from neural_em.evaluation.matching import matched_iou, object_mean
from neural_em.evaluation.metrics import grouping_scores
from neural_em.files import existing
from neural_em.model import Model
from neural_em.model.inference import prior_of
from neural_em.model.mixture import foreground
from neural_em.segment.config import FEWER_STARTS, STARTS, SegmentConfig
from neural_em.segment.count import Counter
from neural_em.segment.pixels import Step, background
from neural_em.segment.scene import Scene, filled
from neural_em.segment.spool import Spool
from neural_em.segment.stream import Stream

_GROUPING = ("ami_max", "ami_arithmetic", "ari", "iou")
SCORES = (*_GROUPING, "ami_max_visible", "ari_visible", "covered")


class Segmented(NamedTuple):
    """One frame of the user's and what the model makes of it; H', W' are the frame's own size."""

    name: str
    frame: Frame  # (H',W',C), as it was read
    x: NDArray[np.float32]  # (C,H,W), as the model saw it
    labels: Labels  # (H',W'): the object, or the component where none are followed, from 1; 0 for the background
    step: Step
    scores: dict[str, float] | None  # against the masks, where there are any for this frame
    groups: Labels | None = None  # (H',W'): the masks themselves


class Segmentation(Iterator[Segmented]):
    """A clip on its way through a model: an iterator over its frames, which knows what was chosen for them.

    Attributes:
        model: that segments.
        fitting: what frames become for it.
        stream: EM over the frames.
        ground: what is taken away from them, if anything.
        choice: why, in a few words.
        scene: the objects that are followed in front of the ground; None where only components are labelled.
        progress: called with the number of frames that were looked at, where all are before the first one is given.
    """

    def __init__(self, clip: Source, model: Model, config: SegmentConfig, truth: Masks | None, live: bool) -> None:
        self.model, self.config = model, config
        self.fitting, self._clip, self._truth = config.fitting(model.config), clip, truth
        self._look: Fitting | None = None
        self._counter, self._stems = Counter(), clip.stems()
        frames: Iterator[tuple[int, Frame]] = islice(enumerate(clip), 0, None, config.every)
        self.ground: Ground | None = None
        self.choice = "none"
        self.progress: Callable[[int], None] = lambda done: None
        frames = self._learn(frames)
        self.scene = Scene() if config.follow and not live and self._known_ground() else None
        starts = config.starts or (STARTS if self.scene is None else FEWER_STARTS)
        self.stream = Stream(model, replace(config, starts=starts))
        seen = ((position, frame, *self._seen(position, frame)) for position, frame in frames)
        pairs = ((each, each[2]) for each in seen)
        steps = ((each, self.stream.look(x)) for each, x in pairs) if live else self.stream.through(pairs)
        self._frames = self._segmented(steps) if self.scene is None else self._followed(steps, self.scene)

    def __next__(self) -> Segmented:
        """The next frame."""
        return next(self._frames)

    def _learn(self, frames: Iterator[tuple[int, Frame]]) -> Iterator[tuple[int, Frame]]:
        """Chooses the ground; gives the frames, those among them that were looked at for it."""
        config, once = self.config, getattr(self._clip, "once", False)
        if config.background == "none" or (config.background == "auto" and self._settled(once)):
            return frames
        ahead = list(islice(frames, grounds.SAMPLES if once and config.background in ("median", "flat") else 1))
        if not ahead:
            return frames
        size = ahead[0][1].shape[:2]
        self._look = grounds.looked_at(self.fitting, self._clip.colour, (size[0], size[1]))
        if config.background not in ("auto", "median", "flat"):
            self.ground, self.choice = grounds.from_file(config.background, self._look, (size[0], size[1]))
            return chain(ahead, frames)
        every = ahead if once else enumerate(self._clip)
        samples = grounds.sampled(self._look.unit_frame(f, self._clip.frame_name(i)) for i, f in every)
        if config.background == "auto":
            self.ground, self.choice = grounds.choose(samples, self.fitting.channels == "binary")
        else:
            self.ground, self.choice = grounds.learn(samples), f"{config.background}: as asked"
            if config.background == "flat":
                self.ground = grounds.flat(samples, self.ground)[0]
                self.choice += f", {grounds.colour_of(self.ground)}"
        return chain(ahead, frames)

    def _known_ground(self) -> bool:
        """Whether objects can be followed: in front of a ground, in frames that can be read again."""
        return self.ground is not None and not self.config.separate and not getattr(self._clip, "once", False)

    def _settled(self, once: bool) -> bool:
        """Whether the choice of a ground is made already, by the other settings or by the model."""
        config = self.config
        reasons = {
            "every frame is an image of its own": config.separate,
            "--invert or --threshold says what is seen": config.invert or config.threshold != 0.5,
            "the model has learned its own": self.model.config.prior == "background",
            "a stream cannot be looked at beforehand": once,
        }
        chosen = next((why for why, holds in reasons.items() if holds), None)
        self.choice = f"none: {chosen}" if chosen else "none"
        return chosen is not None

    def _seen(self, position: int, frame: Frame) -> tuple[Picture, Picture, Mask]:
        """What the model sees of a frame; where there is a ground, also the frame and what stands out from it."""
        name = self._clip.frame_name(position)
        if self.ground is not None and self._look is not None:
            look = self._look.unit_frame(frame, name)
            there, _ = self.ground.foreground(look)
            return self.ground.removed(look, self.fitting, self.model.config.prior, there), look, there
        x = self.fitting.unit_frame(frame, name)
        return 1 - x if self.config.invert else x, x, x[0] > 0

    def _segmented(self, steps: Iterable[Any]) -> Iterator[Segmented]:
        for (position, frame, x, *_), step in steps:
            seen = torch.from_numpy(x).to(step.psi)
            prior = prior_of(self.model, step)
            gamma = self._counter.merged(seen, step, prior) if self.config.count else step.gamma
            assignment = gamma.argmax(dim=0) + 1
            visible = ~background(self.model, seen, step) & foreground(seen, prior).any()
            maps = [each.to(torch.uint8).cpu().numpy() for each in (assignment * visible, assignment)]
            yield self._finished(position, frame, x, step, self.fitting, *maps)

    def _followed(self, steps: Iterable[Any], scene: Scene) -> Iterator[Segmented]:
        """The same with objects for labels: these are known when the whole clip has been looked at."""
        assert self._look is not None
        held = Spool()
        for number, ((position, frame, x, look, there), step) in enumerate(steps, start=1):
            if self._truth is not None:
                self._truth.labels(0, position, (frame.shape[0], frame.shape[1]))  # wrong ones are refused now
            parts = [each.float().cpu().numpy() for each in step[:3]]
            scene.add(look, there, parts[2])
            prior = [] if step.prior is None else [step.prior.float().cpu().numpy()]
            held.add(x, np.array(step.loss), *parts, *prior)
            self.progress(number)
        scene.finish()
        every = self.config.every
        for i, (position, frame) in enumerate(islice(enumerate(self._clip), 0, every * len(held), every)):
            x, loss, *tensors = held[i]
            theta, psi, gamma, *own = (torch.from_numpy(each) for each in tensors)
            step = Step(theta, psi, gamma, float(loss.item()), own[0] if own else None)
            labels = scene.labels(i)
            yield self._finished(position, frame, x, step, self._look, labels, filled(labels))

    def _finished(self, position: int, frame: Frame, x: Picture, step: Step, fitting: Fitting, labels: Labels,
                  assignment: Labels) -> Segmented:  # fmt: skip
        """A frame with its labels, and with its scores by the assignment, which gives every pixel to somebody."""
        size = (frame.shape[0], frame.shape[1])
        labels = fitting.restore(labels, size)
        groups = None if self._truth is None else self._truth.labels(0, position, size)
        scores = None if groups is None else _scores(groups, fitting.restore(assignment, size), labels)
        name = self._stems[position] if self._stems else f"frame-{position:05d}"
        return Segmented(name, frame, x, labels, step, scores, groups)


def segment(
    source: str | os.PathLike[str] | Source,
    model: Model,
    config: SegmentConfig,
    masks: str | os.PathLike[str] | None = None,
    live: bool = False,
) -> Segmentation:
    """Segments an image, a folder of images, a video, a GIF or an array, one frame at a time.

    A pixel is background where the pixel prior explains it at least as well as the best component does. Scores count
    every pixel that the masks give a group, background or not, with the component of the largest responsibility or the
    nearest object; those that end in ``visible`` count only pixels with a label, whose share is ``covered``.

    Where the ground is known, labels are objects: the clip is read twice, and is looked at to its end before the first
    frame is given.

    Args:
        source: the clip, or its path.
        model: on its device already.
        config: how.
        masks: true groups for scores: label images of the frames' names, or an array; 0 is not scored. Groups in a
            ``.npz`` archive beside the frames need not be named.
        live: give each frame's labels as it comes; otherwise some twenty frames are read ahead at the beginning, and
            wherever EM begins again, so that they have the labels of the start that turned out best.

    Yields:
        Each frame with its labels at the frame's own size.
    """
    clip = source if isinstance(source, Source) else open_source(source, leave_out=masks)
    truth = open_masks(Path(clip.name), None if masks is None else existing(masks), [clip])
    return Segmentation(clip, model, config, truth, live)


def _scores(groups: Labels, assignment: Labels, labels: Labels) -> dict[str, float]:
    """Scores of each pixel's component (H',W') against groups, and those of the pixels with a label alone.

    What was cut away before the model saw it (component 0) is not scored.
    """
    known = np.where(assignment > 0, groups, 0).astype(np.int64)
    maps = [torch.from_numpy(each.astype(np.int64))[None] for each in (known, assignment)]
    shown = torch.from_numpy(np.where(labels > 0, known, 0))[None]
    every, visible = grouping_scores(*maps), grouping_scores(shown, maps[1])
    values: list[Any] = [*every, object_mean(matched_iou(*maps)), visible.ami_max, visible.ari]
    covered = float((shown > 0).sum()) / max(1, int((known > 0).sum()))
    return {**{name: float(value[0]) for name, value in zip(SCORES, values, strict=False)}, "covered": covered}
