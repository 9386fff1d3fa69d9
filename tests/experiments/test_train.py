"""Training an experiment into its folder: seeds, stages, stopping and going on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import neural_em
from neural_em import config as configs
from neural_em.errors import NeuralEMError
from neural_em.experiments import Experiment, build, override, preset, reopen, train
from neural_em.runs.find import find_runs
from neural_em.training import TrainingConfig, fit
from tests.run_files import edit
from tests.tiny import TINY, best_weights, same

MNIST = Path(__file__).parents[1] / "data" / "mnist"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_seeds_are_runs_of_their_own(tmp_path: Path) -> None:
    """Three together are bit for bit each alone, and each folder is an ordinary run folder."""
    experiment = build("flying-shapes", [*TINY, "training.seed=4"])
    outcomes = train(experiment, tmp_path / "three", seeds=3, device="cpu", quiet=True)
    assert [outcome.path for outcome in outcomes] == [tmp_path / "three" / f"seed-{seed}" for seed in (4, 5, 6)]
    for seed in (4, 6):
        train(experiment.with_seed(seed), tmp_path / f"{seed}", device="cpu", quiet=True)
        assert same(best_weights(tmp_path / "three" / f"seed-{seed}"), best_weights(tmp_path / f"{seed}"))
    assert not same(best_weights(tmp_path / "4"), best_weights(tmp_path / "6"))
    summary = json.loads((tmp_path / "three" / "summary.json").read_text())
    assert sorted(summary["runs"]) == ["seed-4", "seed-5", "seed-6"]
    assert reopen(tmp_path / "three")[1] == 3


def test_a_kill_before_all_seeds_have_begun_leaves_none_out(tmp_path: Path) -> None:
    """Their folders come one by one; how many there are to be is known before."""

    def kill(event: str, info: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    experiment = build("flying-shapes", TINY)
    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path, seeds=3, device="cpu", quiet=True, callbacks=[kill])
    assert [path.name for path in tmp_path.glob("seed-*")] == ["seed-0"]
    assert reopen(tmp_path)[1] == 3
    train(experiment, tmp_path, seeds=2, device="cpu", quiet=True)
    assert reopen(tmp_path)[1] == 3
    (tmp_path / "summary.json").unlink()  # as older runs have it
    assert reopen(tmp_path)[1] == 2


def test_stages_begin_with_the_best_weights_before(tmp_path: Path) -> None:
    """Stage 2 with a learning rate of almost nothing ends where stage 1 was best."""
    stages = "stages=[[training.learning_rate=0.01],[training.learning_rate=1.0e-30]]"
    (outcome,) = train(build("flying-shapes", [*TINY, stages]), tmp_path, device="cpu", quiet=True)
    assert outcome.finished
    assert same(best_weights(tmp_path / "stage-1"), best_weights(tmp_path / "stage-2"))
    assert same(best_weights(tmp_path), best_weights(tmp_path / "stage-2"))
    first = configs.read(Experiment, tmp_path / "stage-1" / "config.yaml")
    assert (first.training.learning_rate, first.stages) == (0.01, ())
    neural_em.load(tmp_path / "best.safetensors")


def test_a_finished_stage_is_not_trained_again(tmp_path: Path) -> None:
    """More epochs later go to the last stage only: the others were built upon."""
    stages = "stages=[[training.learning_rate=0.01],[training.learning_rate=0.001]]"
    train(build("flying-shapes", [*TINY, stages]), tmp_path, device="cpu", quiet=True)
    events: list[tuple[str, str]] = []
    longer = build("flying-shapes", [*TINY, stages, "training.epochs=3"])
    train(longer, tmp_path, device="cpu", quiet=True, callbacks=[lambda e, i: events.append((e, i["run"]))])
    assert [run for event, run in events if event == "epoch"] == ["stage-2"]


STAGES = "stages=[[training.learning_rate=0.01, training.epochs=1],[training.epochs=1]]"
FALLING = "stages=[[training.schedule=cosine, training.epochs=1],[training.schedule=cosine, training.epochs=1]]"


@pytest.mark.parametrize("seeds", [1, 2])
def test_more_epochs_hold_in_the_last_stage_of_a_run_that_goes_on(tmp_path: Path, seeds: int) -> None:
    """Whatever the stages said of epochs; those that were built on stay as they are, and it is said."""
    train(build("flying-shapes", [*TINY, STAGES]), tmp_path, seeds, device="cpu", quiet=True)
    experiment, found = reopen(tmp_path)
    experiment = override(experiment, ["training.epochs=3"])
    assert [part.training.epochs for part in experiment.parts()] == [3, 3]
    notes: list[tuple[str, str]] = []
    callback = lambda event, info: notes.append((info["run"], info["text"])) if event == "note" else None  # noqa: E731
    outcomes = train(experiment, tmp_path, found, device="cpu", quiet=True, callbacks=[callback])
    assert [outcome.progress.epoch for outcome in outcomes] == [3] * seeds
    for name in ("", "seed-0", "seed-1"):
        folder = tmp_path / name
        if (folder / "stage-1").is_dir():
            assert configs.read(Experiment, folder / "stage-1" / "config.yaml").training.epochs == 1
            text = "keeps its number of epochs (1): the next stage started from its weights"
            assert (f"{name}/stage-1".lstrip("/"), text) in notes
            assert text in (folder / "log.txt").read_text()
    assert len([name for name, text in notes if "keeps" in text]) == seeds
    again = train(reopen(tmp_path)[0], tmp_path, found, device="cpu", quiet=True)
    assert [outcome.progress.epoch for outcome in again] == [3] * seeds


def test_a_falling_rate_keeps_its_epochs(tmp_path: Path) -> None:
    """Where the stage has begun, more of them are refused and nothing is changed."""
    train(build("flying-shapes", [*TINY, FALLING]), tmp_path, device="cpu", quiet=True)
    before = (tmp_path / "config.yaml").read_bytes()
    longer = override(reopen(tmp_path)[0], ["training.epochs=3"])
    with pytest.raises(NeuralEMError, match=r"stage-2: expected the config of this run \(training.epochs=1\), got"):
        train(longer, tmp_path, device="cpu", quiet=True)
    assert (tmp_path / "config.yaml").read_bytes() == before
    assert train(reopen(tmp_path)[0], tmp_path, device="cpu", quiet=True)[0].finished


def test_a_stage_that_meets_not_a_number_is_in_the_summary_of_the_run(tmp_path: Path) -> None:
    stages = "stages=[[training.learning_rate=0.01],[training.learning_rate=1.0e30]]"
    with pytest.raises(NeuralEMError, match="2 of 2 runs failed"):
        train(build("flying-shapes", [*TINY, stages]), tmp_path, 2, device="cpu", quiet=True)
    for name in ("seed-0", "seed-1"):
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert (summary["finished"], summary["stopped"]) == (False, "not-a-number")
        assert f"{name}/stage-2: " in summary["problem"]
        assert [stage["stopped"] for stage in summary["stages"].values()] == ["epochs", "not-a-number"]


def test_a_finished_run_says_so_and_keeps_its_result(tmp_path: Path) -> None:
    """The data are not even made."""
    experiment = build("flying-shapes", TINY)
    (first,) = train(experiment, tmp_path, device="cpu", quiet=True)
    notes: list[str] = []
    callback = lambda event, info: notes.append(info["text"]) if event == "note" else None  # noqa: E731
    (again,) = train(experiment, tmp_path, device="cpu", quiet=True, callbacks=[callback])
    assert notes == ["this run is finished; for more, raise the number of epochs"]
    assert again.progress == first.progress
    assert same(again.model.state_dict(), first.model.state_dict())


def test_a_run_from_before_digits_were_cropped_goes_on_with_boxes(tmp_path: Path) -> None:
    """Its files have no field for it; a new run's weights would be others."""
    digits = [*TINY, "data.height=16", "data.width=16", f"data.mnist={MNIST}"]
    boxes, cropped = build("flying-mnist", [*digits, "data.crop=none"]), build("flying-mnist", digits)
    train(boxes, tmp_path / "whole", device="cpu", quiet=True)
    train(override(boxes, ["training.epochs=1"]), tmp_path / "older", device="cpu", quiet=True)
    edit(tmp_path / "older" / "config.yaml", lambda values: values["data"].pop("crop"))
    with pytest.raises(
        NeuralEMError, match=r"expected the config of this run \(data.crop=none\), got data.crop=before"
    ):
        train(cropped, tmp_path / "older", device="cpu", quiet=True)
    train(override(reopen(tmp_path / "older")[0], ["training.epochs=2"]), tmp_path / "older", device="cpu", quiet=True)
    assert same(best_weights(tmp_path / "older"), best_weights(tmp_path / "whole"))
    train(cropped, tmp_path / "cropped", device="cpu", quiet=True)
    assert not same(best_weights(tmp_path / "cropped"), best_weights(tmp_path / "whole"))


def test_shipped_models_of_digits_are_of_cropped_ones() -> None:
    """They were trained and scored on these."""
    for name in ("flying-mnist", "flying-mnist-plus"):
        assert [run.experiment.data.crop for run in find_runs([name]).runs] == ["before"]


def test_resume_never_begins(tmp_path: Path) -> None:
    """There has to be something to go on with."""
    with pytest.raises(NeuralEMError, match="expected a run folder to resume, got nothing there"):
        train(build("flying-shapes", TINY), tmp_path / "none", device="cpu", resume=True, quiet=True)
    with pytest.raises(NeuralEMError, match="expected a run folder to resume"):
        reopen(tmp_path)


def test_a_run_of_fit_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its data came from Python; no others are made up for it."""
    model = neural_em.NeuralEM(neural_em.ModelConfig(height=8, width=14, theta_size=5, convolutions=(3,), hidden=7))
    settings = TrainingConfig(components=2, batch_size=4, epochs=1, engine="plain", tensorboard=False)
    fit(model, torch.rand(4, 8, 1, 8, 14), settings, run=tmp_path / "run")
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    message = "run: this run was started from Python, which alone has its data; resume it with fit"
    with pytest.raises(NeuralEMError, match=message):
        reopen(tmp_path / "run")
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_own_data_decide_the_models_size(tmp_path: Path) -> None:
    """Colour clips of 9 x 11 pixels, without masks: trained, no scores."""
    clips = np.random.default_rng(0).integers(0, 256, (12, 5, 9, 11, 3), dtype=np.uint8)
    np.save(tmp_path / "clips.npy", clips)
    changes = ["model.theta_size=5", "model.convolutions=[3]", "model.hidden=7", "training.epochs=1",
               "training.batch_size=4", "training.engine=plain", "training.tensorboard=false"]  # fmt: skip
    experiment = build("flying-mnist", changes, data=tmp_path / "clips.npy")
    (outcome,) = train(experiment, tmp_path / "run", device="cpu", quiet=True)
    saved = configs.read(Experiment, tmp_path / "run" / "config.yaml")
    assert (saved.model.channels, saved.model.height, saved.model.width) == (3, 9, 11)
    assert saved.data.path == str(tmp_path / "clips.npy")
    assert outcome.progress.rows[0].ami_last is None
    assert outcome.progress.rows[0].validation_loss is not None


def test_missing_data_are_one_clear_error(tmp_path: Path) -> None:
    """And no run folder is made."""
    with pytest.raises(NeuralEMError, match="nowhere"):
        train(build("flying-mnist", data=tmp_path / "nowhere"), tmp_path / "run", device="cpu", quiet=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(NeuralEMError, match="--masks needs --data"):
        build("flying-mnist", masks=tmp_path)


def test_fresh_data_are_trained_on(tmp_path: Path) -> None:
    """Every epoch draws new sequences; stopping and going on draws the same ones."""
    experiment = build("flying-shapes", [*TINY, "data.fresh=true"])
    train(experiment, tmp_path / "fresh", device="cpu", quiet=True)
    train(replace(experiment, data=replace(experiment.data, fresh=False)), tmp_path / "fixed", device="cpu", quiet=True)
    assert not same(best_weights(tmp_path / "fresh"), best_weights(tmp_path / "fixed"))


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "meta", ""])
def test_a_device_that_is_not_there(device: str, tmp_path: Path) -> None:
    """Named, with what is possible."""
    with pytest.raises(NeuralEMError, match=r"^device[:=]"):
        train(build("flying-shapes", TINY), tmp_path / "run", device=device, quiet=True)


@pytest.mark.parametrize("seeds", [0, -1, True, 10_000])
def test_a_wrong_number_of_seeds(seeds: Any, tmp_path: Path) -> None:
    """Refused by name."""
    with pytest.raises(NeuralEMError, match="seeds: expected an integer from 1 to 1000"):
        train(build("flying-shapes", TINY), tmp_path / "run", seeds=seeds, quiet=True)


def test_own_data_are_not_held_to_the_steps_of_the_preset(tmp_path: Path) -> None:
    """Bouncing balls take 30 steps; a clip of the user's may be shorter. More than it has is refused at once."""
    np.save(tmp_path / "clip.npy", np.zeros((12, 5, 16, 16), np.uint8))
    assert build("bouncing-balls", data=tmp_path / "clip.npy").training.steps is None
    experiment = build("bouncing-balls", ["training.steps=30"], data=tmp_path / "clip.npy")
    with pytest.raises(NeuralEMError, match=r"training\.steps: expected from 1 to 4 for sequences of 5 frames, got 30"):
        train(experiment, tmp_path / "run", device="cpu", quiet=True)
    assert not (tmp_path / "run").exists()


def test_own_data_take_the_settings_of_the_last_stage() -> None:
    """The stages before it are about the preset's data: fewer digits, faster balls."""
    experiment = build("flying-mnist-plus", data="clip.npy")
    assert (experiment.stages, experiment.carry_optimizer, experiment.data.kind) == ((), False, "file")
    last = preset("flying-mnist-plus").parts()[-1].training
    assert (last.epochs, last.schedule) == (18, "cosine")
    assert experiment.training == replace(last, steps=None)
