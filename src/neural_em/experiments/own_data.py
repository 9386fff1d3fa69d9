"""The user's own data for a model, trained or to be trained: fitted to it as ``nem segment`` fits them."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from neural_em.data import DataConfig, Dataset, FileConfig
from neural_em.data.dataset import memory_budget
from neural_em.data.hdf5 import is_hdf5
from neural_em.data.own import has_splits
from neural_em.errors import NeuralEMError, refuse
from neural_em.files import absolute, from_home
from neural_em.presets import PRESETS, Experiment
from neural_em.runs.find import TrainedRun
from neural_em.segment import usual_channels
from neural_em.training.step import memory_needed

_EVERYTHING = 10**9  # sequences
_MOST = 10**6  # files and folders to look at
_FEW = 0.005  # of all pixels


def own_data(run: TrainedRun, path: str, masks: str | None) -> FileConfig:
    """The config that brings what is at the path to the run's model.

    Data of a run that was trained on files are cut and fitted as those were. An HDF5 file is taken as it is.
    """
    data, model = run.experiment.data, run.experiment.model
    given: Any = {"path": absolute(path), "masks": None if masks is None else absolute(masks)}
    sizes: Any = dict.fromkeys(("train_size", "validation_size", "test_size"), _EVERYTHING)
    before = data if run.data_known and isinstance(data, FileConfig) else None  # trained on files
    own = FileConfig("file", **given, **sizes) if before is None else replace(before, **given)
    if is_hdf5(from_home(path)):
        plain: Any = {"channels": "auto", "fit": "none", "threshold": 0.5, "background": "none"}
        plain |= dict.fromkeys(("stride", "height", "width", "held_out"))
        return replace(own, **plain)
    if own.channels == "auto":  # what the run's own files were read as, or what the model is made for
        seen: Any = "colour" if model.channels == 3 else "grey"
        own = replace(own, channels=usual_channels(model) if before is None else seen)
    fit: Any = "resize" if own.fit == "none" else own.fit
    return replace(own, fit=fit, height=model.height, width=model.width)


def as_seen(experiment: Experiment) -> Experiment:
    """The experiment with its own data read as the model's pixels are, where nobody has said how."""
    data, model = experiment.data, experiment.model
    if not isinstance(data, FileConfig) or data.channels != "auto" or is_hdf5(from_home(data.path)):
        return experiment
    if model.distribution != "bernoulli" or model.channels != 1:
        return experiment
    return replace(experiment, data=replace(data, channels="binary"))


def check_trainable(experiment: Experiment, shape: tuple[int, int, int, int], device: torch.device) -> None:
    """Refuses frames of the user's own for which the network would not fit into the memory of this machine."""
    if device.type != "cpu" or not isinstance(experiment.data, FileConfig):
        return  # a GPU says itself what it has no room for
    usual = PRESETS.get(experiment.name, experiment).model
    needed, free = memory_needed(experiment.model, experiment.training, shape[0]), 2 * memory_budget(device)
    if needed > free:
        size = f"--set data.height={usual.height} --set data.width={usual.width} --set data.fit=resize"
        height, width = shape[2:]
        raise NeuralEMError(
            f"{experiment.data.path}: training on frames of {height} x {width} pixels takes about "
            f"{needed / 1e9:.0f} GB of memory, and {free / 1e9:.0f} GB are free; try {size}"
        )


def pixels_note(data: DataConfig, dataset: Dataset) -> str:
    """What to say of black-and-white frames that are nearly all black or nearly all white."""
    if not isinstance(data, FileConfig) or data.channels != "binary":
        return ""
    some = torch.linspace(0, len(dataset) - 1, min(len(dataset), 20)).long()
    white = float(dataset.batch(some).frames.mean())
    if _FEW < white < 1 - _FEW:
        return ""
    return f"data: {white:.2%} of the pixels are white (above data.threshold={data.threshold:g}): set another threshold"


def fingerprint(data: DataConfig) -> str | None:
    """Tells one state of the user's files and masks from another, by names, sizes and times; None without files."""
    if not isinstance(data, FileConfig) or not os.path.exists(from_home(data.path)):
        return None
    levels = 2 if has_splits(from_home(data.path)) else 1
    places = [from_home(path) for path in (data.path, data.masks) if path]
    lines = [line for place in places for line in ("/", *sorted(_files(place, levels)))]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _files(path: Path, levels: int) -> Iterator[str]:
    """A line about each file at a place or at most so many levels below it: no data are read from deeper ones."""
    found, looked_at = [path] if path.is_file() else [], 0
    for place, folders, names in os.walk(path, followlinks=True):
        looked_at += len(folders) + len(names)
        if looked_at > _MOST:
            refuse(str(path), f"at most {_MOST} images, clips and folders", "more")
        if len(Path(place).relative_to(path).parts) == levels:
            folders.clear()
        found += [Path(place, name) for name in names]
    for file in found:
        with contextlib.suppress(OSError):  # a link to nowhere, or one that nobody may follow
            about = file.stat()
            yield f"{file.relative_to(path)!s} {about.st_size} {about.st_mtime_ns}"


def about_part(run: TrainedRun, path: str, part: str) -> str:
    """Which part of the user's own data was looked at, and whether training has seen it."""
    name = Path(path).name or path
    text = f"all of {name}" if part == "all" else f"the {part} part of {name}"
    data = run.experiment.data
    own = run.data_known and isinstance(data, FileConfig) and os.path.realpath(data.path)
    seen = part in ("all", "training") and own == os.path.realpath(from_home(path))
    return f"{text}, which training has seen" if seen else text
