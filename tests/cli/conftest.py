"""Runs that the commands on trained runs are tried on: one that was really trained, and one whose answer is known."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import torch

import neural_em
from neural_em import cli, config
from neural_em.data import DataConfig
from neural_em.experiments import Experiment
from neural_em.model import ModelConfig, NoiseConfig
from neural_em.training import TrainingConfig
from tests.known import known_model
from tests.processes import ENVIRONMENT, SAFETY

TINY = [
    "train", "flying-shapes", "--device", "cpu", "--objects", "2", "--components", "2", "--train-size", "32",
    "--batch-size", "16", "--epochs", "2", "--seeds", "2", "--set", "data.frames=5", "--set", "data.height=14",
    "--set", "data.width=16", "--set", "data.validation_size=8", "--set", "data.test_size=12",
    "--set", "model.theta_size=6", "--set", "model.convolutions=[4]", "--set", "model.hidden=10",
    "--set", "training.tensorboard=false",
]  # fmt: skip
SIDE, BAND = 6, 2  # two objects: the first two rows and the last two


class Ended(NamedTuple):
    """A command that has run."""

    status: int
    out: str
    errors: str


@pytest.fixture
def run_nem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["nem", *map(str, arguments)])
        monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # also by python -m pytest
        with pytest.raises(SystemExit) as end:
            cli.main()
        written = capsys.readouterr()
        return Ended(int(end.value.code or 0), written.out, written.err)

    return run


@pytest.fixture
def refused(run_nem: Callable[..., Ended]) -> Callable[..., str]:
    """Runs a command that has to be refused: status 2, one line on standard error, nothing else."""

    def run(*arguments: object) -> str:
        ended = run_nem(*arguments)
        assert ended.status == 2, ended
        assert ended.out == ""
        assert ended.errors.startswith("nem: ")
        assert ended.errors.count("\n") == 1
        return ended.errors

    return run


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a tiny model, trained by the real command."""
    folder = tmp_path_factory.mktemp("trained") / "tiny"
    command = [sys.executable, "-m", "neural_em", *TINY, "--run", str(folder)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True,
                          check=False, timeout=SAFETY)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """A copy of it, to do anything with: a folder with ``seed-0`` and ``seed-1``."""
    return Path(shutil.copytree(trained_once, tmp_path / "tiny"))


class HandMade(NamedTuple):
    """A run folder, its weight file and the data it knows the answer to."""

    folder: Path
    weights: Path
    data: Path


@pytest.fixture
def hand_made(tmp_path: Path) -> Callable[..., HandMade]:
    """Makes a run whose weights were chosen by hand: from any start, each object has its component after one step.

    The one unit of theta goes to 1 where a component was given more of the upper object than of the lower one, and
    to 0 where it was given less; with two components and objects of one size exactly one of them is given more. It
    then predicts the upper object, or the lower one, and keeps its mind.
    """

    def make(groups: str = "objects", frames: int = 4, count: int = 12, name: str = "known") -> HandMade:
        model = neural_em.NeuralEM(
            ModelConfig(
                height=SIDE, width=SIDE, theta_size=1, convolutions=(), hidden=0, layer_norm=False,
                noise=NoiseConfig("none", 0.0), steps=3,
            )
        )  # fmt: skip
        upper, lower = torch.zeros(2, SIDE, SIDE)
        upper[:BAND], lower[-BAND:] = 1, 1
        with torch.no_grad():
            model.m_step.recurrence.weight.copy_(torch.cat([1000 * (upper - lower).flatten(), torch.tensor([20.0])]))
            model.m_step.recurrence.bias.fill_(-10)
            dense = model.m_step.decoder.dense[0]
            dense.weight.copy_(20 * (upper - lower).reshape(-1, 1))
            dense.bias.copy_((-10 * (upper - lower) - 30 * (1 - upper - lower)).flatten())
        folder, data = tmp_path / name, tmp_path / f"{name}.h5"
        folder.mkdir()
        _write(data, (upper + lower).numpy(), (upper + 2 * lower).numpy(), groups, frames, count)
        experiment = Experiment(
            "flying-shapes", model.config, DataConfig("file", path=str(data)), TrainingConfig(components=2)
        )
        (folder / "config.yaml").write_text(config.dump(experiment), encoding="utf-8")
        neural_em.save(model, folder / "best.safetensors", notes={"components": 2})
        return HandMade(folder, folder / "best.safetensors", data)

    return make


def _write(path: Path, image: np.ndarray, objects: np.ndarray, groups: str, frames: int, count: int) -> None:
    """The image in all frames of all sequences; true groups are the objects, random labels, or none at all."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for split in ("training", "validation", "test"):
            shape = (frames, count, SIDE, SIDE)
            file[f"{split}/features"] = np.broadcast_to(image, shape)[..., None].astype(np.float32)
            if groups == "objects":
                file[f"{split}/groups"] = np.broadcast_to(objects, shape)[..., None].astype(np.float32)
            if groups == "random":
                labels = rng.integers(1, 3, shape) * image
                file[f"{split}/groups"] = labels[..., None].astype(np.float32)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """A model that knows the two bars, outside of the folder that commands run in."""
    neural_em.save(known_model(), tmp_path / "known.safetensors", notes={"components": 2})
    return "known.safetensors"
