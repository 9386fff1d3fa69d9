"""A trained model on the user's own data: fitted to it as ``nem segment`` does, and it is said which part was used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from neural_em import config
from neural_em.data import DataConfig
from neural_em.experiments import Experiment, build
from tests.known import BARS, GROUPS

Run = Callable[..., Any]
PERFECT = "AMI (max)             1.000"


def enlarged(array: np.ndarray, times: int = 3) -> np.ndarray:
    return array.repeat(times, axis=0).repeat(times, axis=1)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Twenty pictures of the two bars that the hand-made model knows: in colour, three times as large, with masks."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(20):
        picture = Image.fromarray(enlarged(BARS * 255).astype(np.uint8)).convert("RGB")
        picture.save(tmp_path / "images" / f"{number:02}.png")
        Image.fromarray(enlarged(GROUPS)).save(tmp_path / "masks" / f"{number:02}.png")
    return tmp_path / "images"


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """The same as a GIF, which has a palette of colours even where all of them are grey."""
    frames = [Image.fromarray(enlarged(BARS * (255 - shade)).astype(np.uint8)).convert("P") for shade in range(8)]
    frames[0].save(tmp_path / "clip.gif", save_all=True, append_images=frames[1:], duration=100)
    np.save(tmp_path / "clip.npy", np.broadcast_to(enlarged(GROUPS), (8, 18, 18)))
    return tmp_path / "clip.gif"


@pytest.fixture(params=["a weight file alone", "a run on an HDF5 file"])
def model(request: pytest.FixtureRequest, hand_made: Run, tmp_path: Path) -> Path:
    run = hand_made()
    if request.param != "a weight file alone":
        return Path(run.folder)
    return Path(shutil.copy(run.weights, tmp_path / "alone.safetensors"))


def test_all_images_are_scored_and_the_output_says_so(run_nem: Run, model: Path, images: Path) -> None:
    options = ["--data", images, "--masks", images.parent / "masks", "--device", "cpu", "--out", "scores"]
    ended = run_nem("evaluate", model, *options)
    assert ended.status == 0, ended.errors
    assert "20 sequences" in ended.out
    assert "all of images" in ended.out
    assert PERFECT in ended.out
    (written,) = Path("scores").glob("all-images_*[0-9a-f].json")
    assert json.loads(written.read_text())["note"] == "all of images"
    ended = run_nem("figure", model, *options[:-1], "figures")
    assert [Path(line).suffix for line in ended.out.split()] == [".png", ".pdf"]
    assert ended.out.startswith("figures/static-")  # images, step by step
    ended = run_nem("evaluate", model, *options, "--split", "test")
    assert "2 sequences" in ended.out
    assert "the test part of images" in ended.out


def test_a_grey_gif_fits_a_model_of_one_channel(run_nem: Run, model: Path, clip: Path) -> None:
    options = ["--data", clip, "--masks", clip.with_suffix(".npy"), "--steps", 7, "--device", "cpu"]
    ended = run_nem("evaluate", model, *options)
    assert ended.status == 0, ended.errors
    assert "1 sequence, 7 steps" in ended.out
    assert "all of clip.gif" in ended.out
    assert PERFECT in ended.out
    ended = run_nem("figure", model, *options, "--out", "figures")
    assert ended.status == 0, ended.errors
    assert [path.suffix for path in sorted(Path("figures").glob("sequence-typical-all-*clip*"))] == [".pdf", ".png"]
    ended = run_nem("report", model, *options)
    assert ended.status == 0, ended.errors
    assert "all of clip.gif" in Path("report.html").read_text(encoding="utf-8")


def test_frames_that_fill_no_sequence_are_told(run_nem: Run, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "long.npy", np.broadcast_to(BARS, (24, 6, 6)))
    ended = run_nem("evaluate", model, "--data", "long.npy", "--device", "cpu")
    assert "all of long.npy; 3 frames at the end of clips do not fill a sequence of 21" in ended.out


def test_a_divided_file_gives_its_test_part(run_nem: Run, refused: Run, hand_made: Run, tmp_path: Path) -> None:
    run = hand_made()
    alone = shutil.copy(run.weights, tmp_path / "alone.safetensors")
    ended = run_nem("evaluate", alone, "--data", run.data, "--device", "cpu")
    assert "the test part of known.h5" in ended.out
    line = refused("evaluate", alone, "--data", run.data, "--split", "all", "--device", "cpu")
    assert "split: expected one of training, validation, test, got 'all'" in line
    assert "split: expected one of training, validation, test" in refused("evaluate", run.folder, "--split", "all")


def test_a_run_trained_on_fitted_images_takes_an_hdf5_file_as_it_is(run_nem: Run, hand_made: Run, images: Path) -> None:
    run = hand_made()
    fitted = DataConfig("file", path=str(images), channels="binary", fit="crop", height=6, width=6, threshold=0.3)
    file = run.folder / "config.yaml"
    file.write_text(config.dump(replace(config.read(Experiment, file), data=fitted)), encoding="utf-8")
    ended = run_nem("evaluate", run.folder, "--data", run.data, "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert PERFECT in ended.out


def test_scores_of_files_that_changed_are_made_anew(run_nem: Run, hand_made: Run, images: Path) -> None:
    """Of a run's own data and of others; scores of files that did not change are kept."""
    run, other = hand_made(), hand_made(groups="random", name="other")
    masks = images.parent / "masks"
    changes = (
        ([], lambda: shutil.copy(other.data, run.data)),
        (["--data", images, "--masks", masks], lambda: Image.fromarray(enlarged(GROUPS.T)).save(masks / "00.png")),
    )
    for options, change in changes:
        before = set(run.folder.glob("evaluations/*[!s].json"))
        assert run_nem("report", run.folder, *options, "--device", "cpu").status == 0
        (written,) = set(run.folder.glob("evaluations/*[!s].json")) - before
        first = written.read_bytes()
        assert run_nem("report", run.folder, *options, "--device", "cpu").status == 0
        assert written.read_bytes() == first
        change()
        assert run_nem("report", run.folder, *options, "--device", "cpu").status == 0
        assert json.loads(written.read_bytes())["per_sequence"] != json.loads(first)["per_sequence"]


def test_a_tilde_is_the_home_folder(
    run_nem: Run, hand_made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves it as it is behind a ``=``; the run's own data are found too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    hand_made()
    for words in (["~/known"], ["~/known/best.safetensors"], ["~/known", "--data=~/known.h5", "--split", "training"]):
        ended = run_nem("evaluate", *words, "--device", "cpu")
        assert ended.status == 0, ended.errors
        assert PERFECT in ended.out
    assert "the training part of known.h5, which training has seen" in ended.out
    assert str(tmp_path / "known" / "figures") in run_nem("figure", "~/known", "--pick", 0, "--device", "cpu").out
    data = build("flying-mnist", data="~/x", masks=Path("~/y")).data
    assert (data.path, data.masks) == (str(tmp_path / "x"), str(tmp_path / "y"))


def test_means_over_seeds_go_home_too(run_nem: Run, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(trained.parent))
    ended = run_nem("evaluate", f"~/{trained.name}", "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert (trained / "evaluations" / "test.json").is_file()
    assert not Path("~").exists()


def test_what_training_has_seen_is_said(run_nem: Run, hand_made: Run) -> None:
    run = hand_made()
    for split, words in (
        ("training", "the training part of known.h5, which training has seen"),
        ("test", "known.h5\n"),
    ):
        ended = run_nem("evaluate", run.folder, "--data", run.data, "--split", split, "--device", "cpu")
        assert words in ended.out
