"""``nem evaluate``: which runs it takes, and what it answers to those it cannot take and to mistakes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import neural_em
from neural_em.model import ModelConfig
from neural_em.training import TrainingConfig, fit
from tests.run_files import edit, read

Run = Callable[..., Any]


def test_a_weight_file_wants_to_know_its_data(run_nem: Run, refused: Run, hand_made: Run, tmp_path: Path) -> None:
    run = hand_made()
    alone = tmp_path / "alone.safetensors"
    shutil.copy(run.weights, alone)
    assert "name its data with --preset or --data" in refused("evaluate", alone)
    assert "frames of (C,H,W) (1, 6, 6)" in refused("evaluate", alone, "--preset", "flying-shapes", "--size", 2)
    ended = run_nem("evaluate", alone, "--data", run.data, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert "AMI (max)             1.000" in ended.out
    assert "not written: only a run has a folder for it" in ended.out
    # where training left it, it knows
    assert run_nem("evaluate", run.weights, "--device", "cpu").status == 0


def test_a_run_from_python_wants_to_know_its_data(run_nem: Run, refused: Run, hand_made: Run, tmp_path: Path) -> None:
    known = hand_made()
    model = neural_em.NeuralEM(ModelConfig(height=6, width=6, theta_size=3, convolutions=(), hidden=0))
    settings = TrainingConfig(components=2, epochs=1, batch_size=4, tensorboard=False)
    fit(model, torch.rand(4, 8, 1, 6, 6).round(), settings, run=tmp_path / "python")
    assert "name its data with --preset or --data" in refused("evaluate", "python")
    ended = run_nem("evaluate", "python", "--data", known.data, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert ended.out.startswith("python: 12 sequences, 3 steps, 2 components")


def test_more_steps_than_a_file_has_frames(refused: Run, hand_made: Run) -> None:
    run = hand_made(frames=4)
    assert "frames" in refused("evaluate", run.folder, "--steps", 9, "--device", "cpu")


def test_an_unfinished_run_says_so(run_nem: Run, trained: Path) -> None:
    summary = read(trained / "seed-0" / "summary.json") | {"finished": False, "stopped": "max-minutes"}
    (trained / "seed-0" / "summary.json").write_text(json.dumps(summary))
    ended = run_nem("evaluate", trained / "seed-0", "--device", "cpu")
    assert ended.status == 0
    assert "training is not finished: max-minutes after 2 epochs" in ended.out


def test_a_run_without_weights_is_refused_and_left_out(run_nem: Run, refused: Run, trained: Path) -> None:
    (trained / "seed-1" / "best.safetensors").unlink()
    (trained / "seed-1" / "summary.json").write_text(json.dumps({"finished": False, "problem": "loss: got nan"}))
    line = refused("evaluate", trained / "seed-1")
    assert "best.safetensors" in line
    assert "loss: got nan" in line
    ended = run_nem("evaluate", trained, "--device", "cpu")
    assert ended.status == 0
    assert "tiny/seed-0" not in ended.errors
    assert "left out:" in ended.errors
    (trained / "seed-0" / "best.safetensors").unlink()
    assert "seed-0" in refused("evaluate", trained)


def test_staged_runs_are_used_as_far_as_they_are(run_nem: Run, trained: Path, tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    shutil.copytree(trained / "seed-0", staged / "stage-1")
    shutil.copy(trained / "seed-0" / "config.yaml", staged)
    stages = [["data.objects=3"], ["data.objects=4"]]
    edit(staged / "config.yaml", lambda values: values.update(stages=stages))
    ended = run_nem("evaluate", staged, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert "only stage-1 of 2 has begun" in ended.out
    assert read(staged / "evaluations" / "test.json")["settings"]["data"]["objects"] == 4  # the last stage's


def test_a_config_of_another_version(run_nem: Run, refused: Run, trained: Path) -> None:
    folder = trained / "seed-0"

    def forget(values: dict[str, Any]) -> None:
        del values["training"]["patience"], values["data"]["fresh"], values["model"]["steps"]

    edit(folder / "config.yaml", forget)  # from before these fields were there
    assert run_nem("evaluate", folder, "--device", "cpu").status == 0
    edit(folder / "config.yaml", lambda values: values["data"].update(gravity=9.81))
    made = read(folder / "environment.json")
    made["starts"][-1]["neural_em"] = "7.0"
    (folder / "environment.json").write_text(json.dumps(made))
    line = refused("evaluate", folder)
    assert "config.yaml: data: unknown field" in line
    assert "'gravity'" in line
    assert f"version 7.0, this is {neural_em.__version__}" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--split", "tset"], "split: expected one of training, validation, test, got 'tset'; did you mean 'test'?"),
        (["--objects", "0"], "objects: expected an integer from 1 to 127, got 0"),
        (["--components", "-1"], "components: expected an integer from 1 to 1024, got -1"),
        (["--components", "1000000000"], "components: expected an integer from 1 to 1024, got 1000000000"),
        (["--size", "1000000000000"], "size: expected an integer from 1 to 100000000"),
        (["--steps", "1000000000"], "steps: expected an integer from 1 to 100000"),
        (["--starts", "1000000"], "starts: expected an integer from 1 to 1000"),
        (["--size", "many"], "invalid value for '--size'"),
        (["--sise", "3"], "no such option: --sise"),
        (["--weights", "worst"], "weights: expected one of best, last"),
        (["--masks", "masks.npy"], "--masks needs --data"),
        (["--data", "nothing.h5"], "nothing.h5"),
        (["--device", "abacus"], "device: expected auto, cpu, cuda or cuda:N, got 'abacus'"),
        (["--set", "training.epochs=3"], "set: expected a field of the data, data.NAME=VALUE"),
        (["--set", "data.kind=file"], "set: expected a field of the data, data.NAME=VALUE"),
        (["--set", "data.objects=3"], "--set data.objects=3: use --objects instead"),
        (["--set", "data.threshold=0.4", "--data", "x.h5"], "--set is for generated data; leave it out with --data"),
        (["--set", "data.gravity=3"], "data: unknown field: expected one of kind, frames"),
        (["--set", "data.height=20"], "data: expected frames of (C,H,W) (1, 14, 16)"),
        (["--preset", "flying-shape"], "did you mean 'flying-shapes'?"),
    ],
)
def test_mistakes_are_answered_in_one_line(refused: Run, trained: Path, options: list[str], words: str) -> None:
    assert words in refused("evaluate", trained / "seed-0", *options)
    assert not (trained / "seed-0" / "evaluations").exists()


def test_what_is_no_run_is_refused(refused: Run, hand_made: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    assert "config.yaml" in refused("evaluate", "empty")
    assert "text.txt" in refused("evaluate", "text.txt")
    assert "'nothing'" in refused("evaluate", "nothing")
    assert "--objects is for generated data" in refused("evaluate", hand_made().folder, "--objects", 2)


def test_a_broken_weight_file_is_one_line(refused: Run, trained: Path) -> None:
    (trained / "seed-0" / "best.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00broken")
    assert "best.safetensors" in refused("evaluate", trained / "seed-0", "--device", "cpu")
