"""Training on a clip in one command, on clips whose objects are known."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neural_em import ModelConfig, NeuralEM, config, save
from neural_em.data import load_split
from neural_em.experiments import Experiment
from neural_em.experiments.adapt import best_threshold
from neural_em.training.config import TrainingConfig
from neural_em.training.step import memory_needed
from tests.data.own_frames import everything

Run = Callable[..., Any]
RNG = np.random.default_rng(0)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A tiny model of binary pixels, 12 x 12."""
    model = NeuralEM(ModelConfig(height=12, width=12, theta_size=4, convolutions=(4,), hidden=8))
    save(model, tmp_path / "start.safetensors", notes={"components": 2})
    return tmp_path / "start.safetensors"


def square(count: int, ground: np.ndarray, light: int) -> np.ndarray:
    """A square that walks over a ground (24,30): so much lighter, or darker, than it."""
    clip = np.repeat(ground[None].astype(int), count, axis=0)
    for t in range(count):
        clip[t, 6:14, t % 22 : t % 22 + 8] += light
    return clip.clip(0, 255).astype(np.uint8)


def settings(run: Path) -> Experiment:
    return config.read(Experiment, run / "config.yaml")


@pytest.mark.parametrize(("light", "base"), [(130, 60), (-130, 190)])
def test_what_is_chosen_is_said_and_kept(run_nem: Run, start: Path, tmp_path: Path, light: int, base: int) -> None:
    texture = base + RNG.integers(-40, 40, (24, 30))
    np.save(tmp_path / "clip.npy", square(44, texture, light))
    ended = run_nem("adapt", "clip.npy", "--from", start, "--minutes", 0.0001, "--device", "cpu")
    assert ended.status == 0, ended.errors
    frames, seen, time = ended.out.splitlines()[:3]
    assert frames == "44 frames: 17 windows of 14 to train on, the last 14 frames held out"
    assert seen.startswith("background: median: the camera stands still")
    share = float(re.search(r"\((\d+)% white\)", seen)[1])  # type: ignore[index]
    assert abs(share - 100 * 64 / 720) < 4  # of the square's pixels
    assert re.fullmatch(r"at most 1 epoch of [\d.]+ s: about \d+ s, less if it stops improving", time)
    assert "runs/adapt-clip: use it with: nem segment clip.npy --model runs/adapt-clip" in ended.out
    made = settings(Path("runs/adapt-clip"))
    assert made.data.background == "median"  # type: ignore[attr-defined]
    assert made.data.channels == "binary"  # type: ignore[attr-defined]
    assert made.training.components == 2
    assert made.training.learning_rate == 0.001


def test_a_model_of_colours_is_trained_on_what_nem_segment_shows_it(run_nem: Run, tmp_path: Path) -> None:
    size = {"channels": 3, "height": 12, "width": 12, "theta_size": 4, "convolutions": (4,), "hidden": 8}
    model = NeuralEM(ModelConfig(**size, distribution="masked", prior="median"))  # type: ignore[arg-type]
    save(model, tmp_path / "start.safetensors", notes={"components": 2})
    clip = square(44, 60 + RNG.integers(-40, 40, (24, 30)), 130)[..., None].repeat(3, axis=3)
    clip[..., 2] //= 2
    np.save(tmp_path / "clip.npy", clip)
    ended = run_nem("adapt", "clip.npy", "--from", "start.safetensors", "--minutes", 0.0001, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert ended.out.splitlines()[1].startswith("background: median: the camera stands still")
    made = settings(Path("runs/adapt-clip"))
    assert made.training.learning_rate == 0.0001
    trained = everything(load_split(made.data, "training", 0, "cpu"))[0]
    assert run_nem("segment", "clip.npy", "--model", "runs/adapt-clip", "--out", "out").status == 0
    with np.load("out/segmentation.npz") as arrays:
        shown = arrays["frames"]
    np.testing.assert_allclose(trained[0], shown[: len(trained[0])], atol=1e-6)


def test_the_run_can_be_evaluated_and_resumed(run_nem: Run, start: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "clip.npy", square(24, np.zeros((24, 30)), 200))
    np.save(tmp_path / "masks.npy", square(24, np.zeros((24, 30)), 1))
    command = ["adapt", "clip.npy", "--from", start, "--minutes", 0.0001, "--device", "cpu", "--run", "run"]
    assert run_nem(*command).status == 0
    again = run_nem(*command)
    assert again.status == 0, again.errors
    scored = run_nem("evaluate", "run", "--data", "clip.npy", "--masks", "masks.npy", "--device", "cpu")
    assert scored.status == 0, scored.errors
    assert "all of clip.npy, which training has seen" in scored.out


def test_a_moving_camera_is_said(run_nem: Run, start: Path, tmp_path: Path) -> None:
    panorama = np.kron(RNG.integers(0, 255, (4, 30)), np.ones((6, 6)))
    np.save(tmp_path / "clip.npy", np.stack([panorama[:, 3 * t : 3 * t + 30] for t in range(40)]).astype(np.uint8))
    ended = run_nem("adapt", "clip.npy", "--from", start, "--minutes", 0.0001, "--device", "cpu")
    assert "background: none: the camera moves" in ended.out, ended.errors
    assert settings(Path("runs/adapt-clip")).data.background == "none"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("clip", "said"),
    [
        (np.zeros((5, 24, 30), np.uint8), "a clip of at least 12 frames, got 5"),
        (np.zeros((40, 24, 30), np.uint8), "of its pixels stand out from the ground, too few"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    refused: Run, start: Path, tmp_path: Path, clip: np.ndarray, said: str
) -> None:
    np.save(tmp_path / "clip.npy", clip)
    assert said in refused("adapt", "clip.npy", "--from", start, "--device", "cpu")
    assert not Path("runs").exists()


def test_the_threshold_parts_two_heaps() -> None:
    values = np.concatenate([RNG.normal(0.1, 0.02, 9000), RNG.normal(0.7, 0.05, 1000)])
    assert 0.2 < best_threshold(values) < 0.55
    assert best_threshold(np.zeros(10)) == 0.5


def test_frames_that_memory_cannot_hold_are_refused_with_what_mends_it(refused: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "clip.npy", np.zeros((30, 1500, 2000), np.uint8))
    said = refused("train", "flying-shapes", "--data", "clip.npy", "--device", "cpu")
    assert "1500 x 2000 pixels" in said
    assert "GB of memory" in said
    assert "--set data.height=28 --set data.width=28 --set data.fit=resize" in said
    assert not Path("runs").exists()


def test_memory_of_a_network_worked_out_by_hand() -> None:
    # theta 1 from and to 4 x 4 pixels, no other layer: 16 + 1 + 1 weights in, 1 x 16 + 16 out
    model = ModelConfig(height=4, width=4, theta_size=1, convolutions=(), hidden=0, layer_norm=False)
    small, large = (memory_needed(model, TrainingConfig(batch_size=size), 11) for size in (1, 3))
    kept = (large - small) // 2
    assert small - kept == 4 * 4 * (16 + 1 + 1 + 16 + 16)
    assert 10 * 3 * 16 * 4 < kept < 100 * 10 * 3 * 16 * 4  # some arrays of a frame for each step and component


def test_own_colour_frames_for_a_binary_preset_are_black_and_white(run_nem: Run, tmp_path: Path) -> None:
    clip = np.zeros((40, 10, 10, 3), np.uint8)
    np.save(tmp_path / "clip.npy", clip)
    options = ["--epochs", 1, "--batch-size", 2, "--components", 2, "--device", "cpu", "--run", "run"]
    small = ["model.theta_size=4", "model.convolutions=[4]", "model.hidden=8", "data.frames=4"]
    ended = run_nem("train", "flying-shapes", "--data", "clip.npy", *options, *(f"--set={each}" for each in small))
    assert ended.status == 0, ended.errors
    made = settings(Path("run"))
    assert (made.model.channels, made.data.channels) == (1, "binary")  # type: ignore[attr-defined]
    assert "0.00% of the pixels are white (above data.threshold=0.5): set another threshold" in ended.out + ended.errors
