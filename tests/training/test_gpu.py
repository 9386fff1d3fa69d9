"""Training on a CUDA GPU: runs move between devices, and give the same bits where that is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_em.data import DataConfig, Dataset, load_split
from neural_em.experiments import preset
from neural_em.model import NeuralEM
from neural_em.model.tagger import Tagger, TaggerConfig
from neural_em.training import adam, fit
from neural_em.training.validation import validate

pytestmark = pytest.mark.gpu
DATA = DataConfig("flying-shapes", objects=2, frames=4, height=8, width=14, train_size=34, validation_size=10)


def splits(device: str) -> tuple[Dataset, Dataset]:
    """For training and for validation: those of `tiny`, on another device."""
    return load_split(DATA, "training", 0, device), load_split(DATA, "validation", 0, device)


def test_a_run_moves_between_devices(tiny: Any, tmp_path: Path) -> None:
    """An epoch on the GPU, one on the CPU, one on the GPU again: close to three on the CPU."""
    config = tiny.with_(precision="float64", engine="fast")
    for epochs, device in ((1, "cuda"), (2, "cpu"), (3, "cuda")):
        training, validation = splits(device)
        moved = fit(tiny.build().to(device), training, replace(config, epochs=epochs), validation, tmp_path)
    whole = fit(tiny.build(), tiny.training, config, tiny.validation)
    for a, b in zip(moved.progress.rows, whole.progress.rows, strict=True):
        assert a.validation_loss == pytest.approx(b.validation_loss, rel=1e-6)


@pytest.mark.parametrize("large", [adam.LARGE, 20], ids=["no parameter is large", "most are"])
def test_a_falling_learning_rate_reaches_the_graph(tiny: Any, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs under the cosine on the GPU are close to those on the CPU, and not to those at a constant rate."""
    monkeypatch.setattr(adam, "LARGE", large)
    training, validation = splits("cuda")
    losses = {}
    for schedule in ("cosine", "constant"):
        config = tiny.with_(precision="float64", engine="fast", schedule=schedule, learning_rate=0.01)
        there = fit(tiny.build().cuda(), training, config, validation)
        losses[schedule] = there.progress.rows[-1].validation_loss
        here = fit(tiny.build(), tiny.training, config, tiny.validation)
        assert losses[schedule] == pytest.approx(here.progress.rows[-1].validation_loss, rel=1e-6)
    assert losses["cosine"] != pytest.approx(losses["constant"], rel=1e-4)


def test_segments_train_in_a_graph_as_the_whole_does(tiny: Any) -> None:
    """The states between them are found without gradients, within the recording."""
    training, validation = splits("cuda")
    losses = []
    for segment in (None, 2):
        config = tiny.with_(precision="float64", engine="fast", segment=segment)
        rows = fit(tiny.build().cuda(), training, config, validation).progress.rows
        losses.append([row.validation_loss for row in rows])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_validation_is_the_same_on_both(tiny: Any) -> None:
    """Same samples, same noise, same starts."""
    here = validate(tiny.build().double(), tiny.validation, tiny.config)
    there = validate(tiny.build().double().cuda(), splits("cuda")[1], tiny.config)
    assert list(there or ()) == pytest.approx(list(here or ()), rel=1e-6)


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_deterministic_training_gives_the_same_bits(precision: str) -> None:
    """Two runs from one seed, each with a graph of its own, end in the same weights."""
    experiment = preset("flying-shapes")
    data = load_split(replace(experiment.data, train_size=256), "training", 0, "cuda")
    config = replace(experiment.training, epochs=3, deterministic=True, precision=precision)
    runs = [fit(NeuralEM(experiment.model, seed=3).cuda(), data, config).model.state_dict() for _ in range(2)]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_tagger_trains_in_a_graph_as_on_a_cpu(norm: str) -> None:
    """The fast path leaves it as it is; its losses are close to those on the CPU."""
    experiment = preset("tagger")
    data = replace(experiment.data, objects=2, height=8, width=14, train_size=40, validation_size=20)
    config = replace(experiment.training, epochs=2, batch_size=20, precision="float64", tensorboard=False)
    losses = []
    for device in ("cpu", "cuda"):
        model = Tagger(TaggerConfig(height=8, width=14, layers=(20, 12, 8), norm=norm)).to(device)
        splits = (load_split(data, split, 0, device) for split in ("training", "validation"))
        rows = fit(model, next(splits), config, next(splits)).progress.rows
        losses.append([row.validation_loss for row in rows])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
