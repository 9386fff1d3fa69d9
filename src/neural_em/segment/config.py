"""How to segment, and what frames have to become for a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from neural_em.data.fitting import Fit, Fitting
from neural_em.errors import refuse
from neural_em.fields import Check, Checked, choice, flag, integer, number, optional, text
from neural_em.model import BaseConfig

Channels = Literal["grey", "binary", "colour"]
MAX_COMPONENTS = 64  # as many as can be told apart by colour
STARTS, FEWER_STARTS = 8, 2  # usually; where objects are followed, which depends less on the model
SPARE = 8  # components for an unknown number of objects, at least; with many more, one takes several objects


@dataclass(frozen=True)
class SegmentConfig(Checked):
    """How to segment.

    Attributes:
        components: K; need not be what the model was trained with.
        steps: EM steps on the first frame; ``None``: the model's own number for a single image.
        starts: random starts, run side by side through the first frames; the one with the lowest loss goes on.
            ``None``: 8, or 2 where objects are followed, which depends less on the model.
        separate: every frame is an image of its own, not the next moment of the one before.
        seed: of the starts and of the input noise.
        fit: how frames come to the model's size: ``resize`` stretches them, ``crop`` cuts out the centre,
            ``crop-resize`` cuts out the largest centred part of the right shape and resizes it, ``none`` refuses.
        channels: ``grey``, ``binary`` or ``colour``; ``None``: what the model's channels and distribution ask for.
        threshold: ``binary`` frames are 1 above this.
        invert: turn bright into dark, for objects that are darker than their background.
        background: what to take away before the model sees a frame: ``none``; ``median``, what each pixel mostly is in
            this clip; ``flat``, the clip's most common colour; a picture of the empty scene, by its path; ``auto``:
            what the clip asks for.
        every: look at every Nth frame only.
        count: K is more than enough: components that own next to nothing, or the same as another, get no label.
        follow: where the ground is known, labels are objects: what is never apart is one, and objects keep their labels
            while they touch. If not, labels are the model's components.
    """

    components: int
    steps: int | None = None
    starts: int | None = None
    separate: bool = False
    seed: int = 0
    fit: Fit = "resize"
    channels: Channels | None = None
    threshold: float = 0.5
    invert: bool = False
    background: str = "auto"
    every: int = 1
    count: bool = False
    follow: bool = True

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "components": integer(1, MAX_COMPONENTS),
        "starts": optional(integer(1, 1000)),
        "steps": optional(integer(1)),
        "threshold": number("a number from 0 to 1", 0, 1),
        "fit": choice(get_args(Fit)),
        "channels": optional(choice(get_args(Channels))),
        "background": text,
        "every": integer(1, 1 << 20),
        "count": flag,
        "follow": flag,
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
