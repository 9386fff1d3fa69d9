"""Training on a clip of the user's own, with everything chosen: windows, ground, threshold, epochs."""

import os
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from neural_em import randomness
from neural_em.data import FileConfig, load_split
from neural_em.data.clip_ground import choose, seen_samples
from neural_em.data.fitting import Fitting
from neural_em.data.own import divided
from neural_em.data.sources import Source, open_clips
from neural_em.errors import NeuralEMError, refuse
from neural_em.files import absolute, existing
from neural_em.model import BaseConfig, Model
from neural_em.presets import Experiment
from neural_em.segment import usual_channels
from neural_em.segment.choice import ADAPTABLE
from neural_em.storage.pretrained import Card, find_model
from neural_em.training import TrainingConfig
from neural_em.training import device as devices
from neural_em.training.step import TrainingStep

USUAL = "flying-shapes"
_FRAMES = 21  # of a window
_WINDOWS = 48  # about so many, however long the clip is
_EPOCHS, _PATIENCE = 60, 10
_RATE, _GENTLE = 1e-3, 1e-4  # learning rates; at the first, sprites forgets in an epoch what it knew
_FORWARD = 0.35  # of a training step's time is a look at a held-out batch
_EMPTY = 0.005  # a share of pixels that is nothing


@dataclass(frozen=True)
class Plan:
    """What is going to be trained, for how long, and what to say of it before."""

    experiment: Experiment
    seconds: float  # that it takes at most, about
    lines: tuple[str, ...]


def plan(
    clip: str | os.PathLike[str],
    source: str | os.PathLike[str] = USUAL,
    components: int | None = None,
    masks: str | os.PathLike[str] | None = None,
    minutes: float = 8,
    seed: int = 0,
    device: str = "auto",
) -> Plan:
    """How to train a model on with a clip: an experiment for `train`, made after a look at the clip and a few steps.

    Args:
        clip: the video, GIF, array, folder of frames, or folder of these.
        source: what to begin with: a shipped model, a run folder or a weight file.
        components: K; as the model was trained where not given.
        masks: true groups of the clip, which only turn on scores.
        minutes: that training may take, about; as many epochs as this allows.
        seed: of the order, the noise and the starts.
        device: as for `train`.
    """
    card = find_model(source)
    number = card.components if components is None else components
    if number is None:
        raise NeuralEMError("components: the model's file does not say how many it has; say how many")
    if not 0 < minutes <= 10**6:
        refuse("minutes", "a number above 0", minutes)
    path = existing(clip)
    if divided(path):
        raise NeuralEMError(f"{path}: these data have splits of their own; use nem train --data")
    clips = open_clips(path, None if masks is None else existing(masks))
    lengths = [each.count() for each in clips]
    if min(lengths) < ADAPTABLE:
        refuse(str(path), f"a clip of at least {ADAPTABLE} frames", min(lengths))
    data, seen = _look(clips, card.config)
    data = replace(_cut(data, lengths), path=absolute(clip), masks=None if masks is None else absolute(masks))
    rate = _GENTLE if card.config.distribution == "masked" else _RATE
    training = TrainingConfig(
        components=number, batch_size=4, learning_rate=rate, seed=seed, patience=_PATIENCE, tensorboard=False
    )
    experiment = Experiment("adapt", card.config, data, training, weights=os.fspath(source))
    windows, epoch = _time(experiment, card, device)
    epochs = min(_EPOCHS, max(1, int(minutes * 60 / epoch)))
    lines = (
        f"{sum(lengths)} frames: {windows} windows of {data.frames} to train on, "
        f"the last {data.held_out} frames held out",
        seen,
        f"at most {epochs} epoch{'' if epochs == 1 else 's'} of {epoch:.1f} s: about {_duration(epochs * epoch)}, "
        "less if it stops improving",
    )
    return Plan(replace(experiment, training=replace(training, epochs=epochs)), epochs * epoch, lines)


def _cut(data: FileConfig, lengths: list[int]) -> FileConfig:
    """How to cut clips of these lengths into windows, and how much of their ends to hold out."""
    frames = min(_FRAMES, max(4, min(lengths) // 3))
    held_out = max(frames, min(lengths) * 15 // 100)
    left = sum(lengths) - held_out * len(lengths)
    return replace(data, frames=frames, held_out=held_out, stride=-(-left // _WINDOWS))


def _look(clips: list[Source], model: BaseConfig) -> tuple[FileConfig, str]:
    """How to read the clips for the model: with which ground and threshold, and what to say of it."""
    channels = usual_channels(model)
    fields: Any = {"height": model.height, "width": model.width, "fit": "resize", "channels": channels}
    if model.prior not in (0, "median"):
        return FileConfig("file", path=".", **fields), "background: none: the model has a ground of its own"
    fitting = Fitting(model.height, model.width, channels, "resize")
    looks = [seen_samples(clip, fitting) for clip in clips]
    choices = [choose(samples, channels == "binary") for samples, _ in looks]
    kinds = {"none" if ground is None else ground.kind for ground, _ in choices}
    # one way for all clips: a ground is taken away where each has one
    kind: Any = "none" if "none" in kinds else "flat" if kinds == {"flat"} else "median"
    if model.prior == "median" and kind != "none":
        fields["foreground"] = "colour"
    text = "background: " + next(why for ground, why in choices if (ground is None) == (kind == "none"))
    if channels == "binary":
        values = np.concatenate([samples.mean(axis=1).ravel() for samples, _ in looks])
        if kind == "none":
            fields["threshold"] = threshold = round(best_threshold(values), 3)
            white = float((values > threshold).mean())
            text += f"; black and white above {threshold:g}"
        else:
            there = [g.foreground(frame)[0].mean() for (samples, _), (g, _) in zip(looks, choices, strict=True) if g
                     for frame in samples]  # fmt: skip
            white = float(np.mean(there))
        if not _EMPTY < white < 1 - _EMPTY:
            amount = "too few" if white < 0.5 else "too many"
            raise NeuralEMError(f"{clips[0].name}: {white:.2%} of its pixels stand out from the ground, {amount}")
        text += f" ({white:.0%} white)"
    return FileConfig("file", path=".", background=kind, **fields), text


def best_threshold(values: NDArray[Any]) -> float:
    """Where to cut values in [0, 1] so that the two parts are farthest apart for their size (Otsu's threshold)."""
    counts, edges = np.histogram(values, bins=256, range=(0, 1))
    centres, below = (edges[:-1] + edges[1:]) / 2, np.cumsum(counts)
    above, sums = below[-1] - below, np.cumsum(counts * centres)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = below * above * (sums / below - (sums[-1] - sums) / above) ** 2
    apart = np.where((below > 0) & (above > 0), apart, -1)
    return float(edges[1:][apart >= apart.max() * (1 - 1e-9)].mean()) if apart.max() > 0 else 0.5  # the gap's middle


def _time(experiment: Experiment, card: Card, device: str) -> tuple[int, float]:
    """Windows to train on, and seconds of an epoch, by a few steps on a copy of the model."""
    here, settings = devices.choose(device), experiment.training
    data, held_out = (load_split(experiment.data, split, 0, here) for split in ("training", "validation"))
    batch = min(settings.batch_size, len(data))
    keys = randomness.keys(settings.seed, torch.arange(batch), device=here)
    with devices.products(settings.precision, here, settings.deterministic):
        model: Model = card.load(here)
        step, taken = TrainingStep(model, data, replace(settings, batch_size=batch)), []
        for _ in range(3):  # the first one sets things up
            began = time.perf_counter()
            float(step(torch.arange(batch), keys))
            taken.append(time.perf_counter() - began)
    one = float(np.mean(taken[1:])) / batch
    return len(data), one * (len(data) + _FORWARD * len(held_out))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
