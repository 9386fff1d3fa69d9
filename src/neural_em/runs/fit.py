"""Training from Python: the same as the command does, without a command line."""

import os
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

from torch import Tensor

from neural_em.data.dataset import Dataset, MemoryDataset
from neural_em.errors import refuse
from neural_em.model import BaseConfig, Model
from neural_em.runs.folder import opened
from neural_em.runs.writer import train_in
from neural_em.training import device as devices
from neural_em.training import distributed
from neural_em.training.config import TrainingConfig
from neural_em.training.loop import Callback, outcomes, take_turns
from neural_em.training.state import Outcome
from neural_em.training.stop import Stop


@dataclass(frozen=True)
class FitConfig:
    """What is known of a run that was started from Python: its data came as they were."""

    model: BaseConfig
    training: TrainingConfig
    name: str = ""


def fit(
    model: Model,
    data: Dataset | Tensor,
    config: TrainingConfig | None = None,
    validation: Dataset | Tensor | None = None,
    run: str | os.PathLike[str] | None = None,
    callbacks: Iterable[Callback] = (),
    max_minutes: float | None = None,
) -> Outcome:
    """Trains a model and leaves the best epoch's weights in it.

    Args:
        model: trained in place, on the device it is on.
        data: training samples: a data set on the model's device, or frames (T,N,C,H,W) in [0, 1].
        config: settings; the paper's where not given.
        validation: samples for early stopping and scores; without them the training loss decides.
        run: a run folder to keep everything in, and to resume from; None to leave nothing on disk.
        callbacks: each is called with an event and what is known of it: ``start``, ``steps`` (losses were read),
            ``state`` (``info["state"]()`` is all that the run needs to resume), ``epoch`` (``info["row"]`` has its
            numbers), ``warning``, ``note``, ``failed``, ``stop``.
        max_minutes: time limit; with a run folder, make the same call again to resume.

    Returns:
        What came of it; ``outcome.model`` is the model itself.
    """
    config = config or TrainingConfig()
    device = next(model.parameters()).device
    model.to(devices.dtype_of(config.precision))
    data = _dataset(data, "data", model)
    validation = None if validation is None else _dataset(validation, "validation", model)
    stop = Stop(max_minutes)
    with (
        distributed.joined(device) as own,
        stop.listening(),
        devices.products(config.precision, device, config.deterministic),
    ):
        if own != device:
            refuse("model", f"on {own}, the GPU of this process", f"on {device}")
        kept = nullcontext() if run is None else opened(run, FitConfig(model.config, config), device)
        with kept as folder:
            steps = train_in(folder, model, data, validation, config, stop, callbacks)
            return outcomes(take_turns({"": steps}, device))[0]


def _dataset(data: Dataset | Tensor, name: str, model: Model) -> Dataset:
    """Frames as a data set on the model's device; a data set if it fits the model."""
    size = (model.config.channels, model.config.height, model.config.width)
    if isinstance(data, Tensor):
        if data.dim() != 5 or tuple(data.shape[2:]) != size or 0 in data.shape:
            refuse(name, f"frames (T, N, {', '.join(map(str, size))})", f"shape {tuple(data.shape)}")
        if not bool(((data >= 0) & (data <= 1)).all()):
            refuse(name, "numbers between 0 and 1", f"values from {float(data.min()):g} to {float(data.max()):g}")
        return MemoryDataset(data.transpose(0, 1).contiguous().to(next(model.parameters()).device), None)
    if tuple(data.shape[1:]) != size:
        refuse(name, f"frames of (C,H,W) {size}, which the model is made for", data.shape[1:])
    if len(data) < 1:
        refuse(name, "at least one sample", "none")
    return data
