"""Whether a model knows a clip: measures that need no masks, and what to say of them."""

import shlex
import statistics
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import ndimage

from neural_em.data import load_split
from neural_em.data.clip_ground import CLEAR, FEWER, STILL
from neural_em.errors import NeuralEMError
from neural_em.files import absolute
from neural_em.model import Model
from neural_em.model.fast import accelerate
from neural_em.model.inference import infer, prior_of
from neural_em.model.mixture import foreground
from neural_em.randomness import keys
from neural_em.runs.find import TrainedRun
from neural_em.segment.choice import ADAPTABLE, OBJECTS
from neural_em.segment.clip import Segmentation, Segmented
from neural_em.segment.pixels import explained

_FIRST = 10  # frames, and steps, that are left out of both losses
_SEQUENCES, _STEPS = 8, 20  # of a model's own data, to know what is usual
_DISAGREE = "starts disagree"
_BRIEF = 3  # objects that come and go, which are nothing to tell
_KNOWN = 0.5  # of what a model usually explains: less means that it does not know a clip


class Usual(NamedTuple):
    """How a model does on data of its own kind."""

    loss: float  # a pixel of foreground
    explained: float  # the share of the foreground's pixels


class Watch:
    """Looks at each segmented frame, and says at the end how far the result can be trusted."""

    def __init__(self, segmentation: Segmentation, usual: Usual | None = None, trained_on: str | None = None) -> None:
        """``usual`` is how the model does on its own data, see `usual`; these may be files, ``trained_on``."""
        self._segmentation, self._usual = segmentation, usual
        self._trained_on = None if trained_on is None else absolute(trained_on)
        self._binary = segmentation.fitting.channels == "binary"
        self._rows: list[tuple[float, ...]] = []
        self._coloured = 0.0

    def add(self, frame: Segmented) -> None:
        """Takes the next frame."""
        model, step = self._segmentation.model, frame.step
        x, prior = torch.from_numpy(frame.x).to(step.psi), prior_of(model, step)
        there = foreground(x, prior)
        known = explained(x, step.psi, prior) & there
        if frame.frame.shape[2] == 3:
            self._coloured = max(self._coloured, _colour(frame.frame))
        owners = step.gamma.argmax(dim=0).cpu().numpy()
        on = there.cpu().numpy()
        patches, pure = _patches(on, owners)
        largest = int(np.bincount(owners[on]).max()) if on.any() else 0
        objects = len(np.unique(frame.labels[frame.labels > 0]))
        self._rows.append((float(on.mean()), float(on.sum()), float(known.sum()), float(largest), float(pure),
                           patches, objects, step.loss))  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """The measures: shares of the foreground's pixels, means over the frames, losses a pixel of foreground."""
        rows = np.array(self._rows or [(0.0,) * 8])
        share, pixels, known, largest, pure, patches, objects, loss = rows.T
        total = max(1.0, float(pixels.sum()))
        # the first frames tell no motion yet: of a short clip the loss says little
        seen = (pixels > 0) & (np.arange(len(rows)) >= _FIRST)
        ratio = float(np.median(loss[seen] / pixels[seen])) / self._usual.loss if self._usual and seen.any() else None
        stream = self._segmentation.stream
        measured = {
            "explained_usually": self._usual.explained if self._usual else None,
            "foreground": float(share.mean()), "explained": float(known.sum()) / total,
            "largest_component": float(largest.sum()) / total, "within_patches": float(pure.sum()) / total,
            "objects_a_frame": float(objects.mean()), "patches_a_frame": float(patches.mean()),
            "loss_against_usual": ratio,
            "agreement_of_starts": statistics.fmean(stream.agreement) if stream.agreement else None,
        }  # fmt: skip
        numbers = {name: None if value is None else round(value, 4) for name, value in measured.items()}
        return {**numbers, "empty_frames": int((pixels == 0).sum()), "restarts": list(stream.restarts)}

    def line(self) -> str:
        """All of it in one line."""
        found = self.summary()
        if not found["foreground"]:
            return "nothing stands out from the ground in any frame"
        parts = [
            f"the model explains {found['explained']:.0%} of the foreground pixels"
            + (f" (usually {self._usual.explained:.0%})" if self._usual else ""),
            f"{found['objects_a_frame']:.1f} objects a frame ({found['patches_a_frame']:.1f} connected patches)",
        ]
        if found["agreement_of_starts"] is not None:
            parts.append(f"starts agree by {found['agreement_of_starts']:.2f}")
        if found["loss_against_usual"] is not None:
            parts.append(f"the loss is {found['loss_against_usual']:.1f} times this model's usual")
        return "; ".join(parts)

    def warnings(self, source: str) -> list[str]:
        """What a user should know, each in one line, with what to do about it; usually nothing."""
        found, said = self.summary(), []
        frames = len(self._rows)
        if self._binary and not 0.005 <= found["foreground"] <= 0.6:
            said.append(f"frames are {100 * found['foreground']:.2g} % white: use --invert or --threshold")
        if found["empty_frames"]:
            said.append(f"the model sees nothing in {found['empty_frames']} of {frames} frames")
        if self._coloured > 0.02 and self._segmentation.model.config.channels == 1:
            said.append("colour is ignored by this model")
        if found["largest_component"] > 0.95 and found["patches_a_frame"] >= 1.5:
            said.append("one component owns everything")
        scene = self._segmentation.scene
        lives = [each["frames"] for each in scene.found] if scene else []
        brief = sum(life < frames / 4 for life in lives)
        if brief > max(_BRIEF, len(lives) / 2):
            said.append(f"{brief} of the objects are seen in less than a quarter of the frames: unless things come "
                        "and go here, these are pieces of others, or noise")  # fmt: skip
        doubts = self._doubts(found)
        if frames == 1 and doubts == [_DISAGREE]:  # nothing but chance tells starts of a single image apart
            said.append(f"{_DISAGREE}: look at the result, or try more --starts")
        elif doubts and found["foreground"]:
            followed = "" if scene is None else "; the objects are followed without it"
            tries = self._help(source)
            advice = f": {tries}" if tries else ""
            said.append(f"this model does not know this clip ({', '.join(doubts)}){advice}{followed}")
        return said

    def _help(self, source: str) -> str:
        """What to do about a clip that the model does not know."""
        tries, ground = [], self._segmentation.choice
        if ground == STILL:
            tries.append("nothing moves in it, so there may be no object")
        elif absolute(source) == self._trained_on:
            tries.append("it was trained on it, so train longer, or use the model that it began with")
        elif len(self._rows) >= ADAPTABLE:
            tries.append(f"train on it (nem adapt {shlex.quote(source)} --from {OBJECTS})")
        if dark := self._segmentation.model.config.prior == 0:
            tries.append(f"try --model {OBJECTS}")
        if ground == CLEAR or (ground in (FEWER, STILL) and not dark):
            tries.append("try --background flat")
        elif ground == "none":  # as asked
            tries.append("try --background median")
        return ", or ".join(tries)

    def _doubts(self, found: dict[str, Any]) -> list[str]:
        agreement, ratio = found["agreement_of_starts"], found["loss_against_usual"]
        least = _KNOWN * self._usual.explained if self._usual else 0.7
        doubts = {
            f"it explains {found['explained']:.0%} of the foreground pixels": found["explained"] < least,
            f"the loss is {ratio or 0:.1f} times its usual": ratio is not None and ratio > 3,
            _DISAGREE: agreement is not None and agreement < 0.5,
        }
        return [doubt for doubt, holds in doubts.items() if holds]


def usual(run: TrainedRun, model: Model, components: int, device: torch.device | str) -> Usual | None:
    """How a model does on its own data; None where these cannot be had without asking anybody."""
    data = run.experiment.data
    if not run.data_known or hasattr(data, "mnist"):  # digits may have to be fetched
        return None
    try:
        split = load_split(data, "validation", run.experiment.data_seed, device, _SEQUENCES)
        x = split.batch(torch.arange(min(_SEQUENCES, len(split)))).frames[: _STEPS + 1]
    except (NeuralEMError, OSError):  # own files that have moved
        return None
    B = x.shape[1]
    loss = pixels = known = 0.0
    with torch.inference_mode():
        every = infer(accelerate(model), x, components, keys(0, torch.arange(B), device=x.device))
        steps = [each for each in every if each.x_next is not None]
        for step in steps[min(_FIRST, len(steps) - 1) :]:
            prior = prior_of(model, step.state)
            assert step.x_next is not None
            there = foreground(step.x_next, prior)
            loss += float(step.info.total.sum())
            pixels += float(there.sum())
            for b in range(B):
                own = prior if step.state.prior is None else step.state.prior[b]
                known += float((explained(step.x_next[b], step.state.psi[b], own) & there[b]).sum())
    return Usual(loss / pixels, known / pixels) if pixels else None


def _patches(on: np.ndarray, owners: np.ndarray) -> tuple[int, int]:
    """How many connected patches have more than one pixel; how many pixels belong to their patch's main component."""
    patches, count = ndimage.label(on, np.ones((3, 3)))
    table = np.zeros((count + 1, int(owners.max()) + 1), np.int64)
    np.add.at(table, (patches[on], owners[on]), 1)
    return int((table[1:].sum(axis=1) > 1).sum()), int(table[1:].max(axis=1, initial=0).sum())


def _colour(frame: np.ndarray) -> float:
    """How much colour a frame (H,W,3) has: the mean distance between its channels, from 0 to 1."""
    few = frame[::4, ::4].astype(np.float32) / (255 if frame.dtype == np.uint8 else 1)
    return float((few.max(axis=2) - few.min(axis=2)).mean())
