"""Tagger, a model of another kind, through the commands that know nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import neural_em
from neural_em.data import load_split
from neural_em.evaluation import adjusted_mutual_info
from neural_em.evaluation.evaluate import start_keys
from neural_em.experiments.evaluation import Evaluation, stored
from neural_em.model.tagger import Tagger
from neural_em.runs.find import find_runs
from tests.run_files import read

Run = Callable[..., Any]
SMALL = [
    "--device", "cpu", "--train-size", "64", "--batch-size", "32", "--epochs", "2", "--set", "data.height=14",
    "--set", "data.width=16", "--set", "data.validation_size=8", "--set", "data.test_size=12",
    "--set", "model.layers=[20,12,8]", "--set", "training.tensorboard=false",
]  # fmt: skip


def test_it_is_trained_evaluated_and_shown_as_any_model(run_nem: Run, tmp_path: Path) -> None:
    """The score of each iteration without noise is that of the model's own unroll on the clean images."""
    ended = run_nem("train", "tagger", "--run", "run", *SMALL)
    assert ended.status == 0, ended.errors
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"]["kind"] == "tagger"
    model = neural_em.load(tmp_path / "run" / "best.safetensors")
    assert type(model) is Tagger
    assert (model.config.height, model.config.width) == (14, 16)  # as the data have it
    assert run_nem("evaluate", "run", "--steps", 5, "--clean", "--device", "cpu").status == 0
    result = read(tmp_path / "run" / "evaluations" / "test-steps5-clean.json")
    (run,) = find_runs([tmp_path / "run"]).runs
    x, groups = load_split(run.experiment.data, "test", 0, "cpu").batch(torch.arange(12))
    _, gamma = model.draw(x, 4, start_keys(0, 0, torch.arange(12)), 5)
    found = model.unroll(x, 4, 5, x_noisy=x.expand(5, -1, -1, -1, -1), gamma=gamma).gamma[:, :, :, 0].argmax(dim=2)
    scores = [float(adjusted_mutual_info(groups[0], each).nanmean()) for each in found]
    assert result["curves"]["ami_max"]["mean"] == pytest.approx(scores, abs=1e-6)
    picture = np.zeros((14, 16), np.uint8)
    picture[3:10, 2:9] = 255
    Image.fromarray(picture).save(tmp_path / "picture.png")
    for command in (
        ["segment", "picture.png", "--model", "run", "--out", "segmented"],
        ["figure", "run", "--kind", "static"],
        ["report", "run"],
    ):
        ended = run_nem(*command, "--device", "cpu")
        assert ended.status == 0, ended.errors
    assert (tmp_path / "segmented" / "overlay.png").is_file()


def test_results_of_batch_norm_are_those_of_one_size_of_batch(run_nem: Run, tmp_path: Path) -> None:
    assert run_nem("train", "tagger-batch-norm", "--run", "run", *SMALL).status == 0
    losses = []
    for size in (12, 3):
        ended = run_nem("evaluate", "run", "--batch-size", size, "--device", "cpu")
        assert f"normalised in batches of {size}" in ended.out
        losses.append(read(tmp_path / "run" / "evaluations" / "test.json")["last_step"]["total"]["mean"])
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)
    (run,) = find_runs([tmp_path / "run"]).runs
    assert stored(run, Evaluation(batch_size=3)) is not None
    assert stored(run, Evaluation(batch_size=12)) is None


def test_a_model_of_another_kind_is_no_beginning(run_nem: Run, refused: Run) -> None:
    assert run_nem("train", "tagger", "--run", "run", *SMALL).status == 0
    said = refused("train", "static-shapes", "--from", "run", "--device", "cpu")
    assert said.startswith("nem: weights: expected those of a model with kind neural-em, got ")
    assert said.endswith("with kind tagger\n")
