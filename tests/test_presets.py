"""Presets: the paper's settings, and changes to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from neural_em import config as configs
from neural_em.errors import NeuralEMError
from neural_em.experiments import PRESETS, Experiment, build, preset, run_path, train
from neural_em.presets import ABOUT
from tests.tiny import TINY


@pytest.mark.parametrize(
    ("name", "kind", "objects", "components", "frames", "rate"),
    [
        ("static-shapes", "static-shapes", 3, 4, 1, 0.001),
        ("static-shapes-nem", "static-shapes", 3, 4, 1, 0.001),
        ("flying-shapes", "flying-shapes", 3, 3, 21, 0.001),
        ("flying-mnist", "flying-mnist", 2, 2, 21, 0.0005),
    ],
)
def test_the_papers_settings(name: str, kind: str, objects: int, components: int, frames: int, rate: float) -> None:
    """Adam with batches of 64, at most 500 epochs, patience 10, 50,000 sequences, validation on 1,000."""
    experiment = preset(name)
    data, training = experiment.data, experiment.training
    assert (data.kind, data.objects, data.frames) == (kind, objects, frames)
    assert (data.train_size, data.validation_size) == (50_000, 1_000)
    assert (training.components, training.learning_rate) == (components, rate)
    assert (training.batch_size, training.epochs, training.patience) == (64, 500, 10)
    assert (experiment.model.height, experiment.model.width) == (data.height, data.width)
    if frames == 1:
        assert (experiment.model.steps, experiment.model.loss_steps) == (15, "last")


def test_the_staged_preset() -> None:
    """20 digits at 0.001, then 500 and all at 0.0005."""
    stages = [preset("flying-mnist-staged").stage(number) for number in range(3)]
    assert [stage.data.digits for stage in stages] == [20, 500, None]
    assert [stage.training.learning_rate for stage in stages] == [0.001, 0.0005, 0.0005]
    assert all(stage.model == preset("flying-mnist").model for stage in stages)
    assert all(stage.stages == () for stage in stages)


def test_every_preset_is_described_and_survives_yaml(tmp_path: Path) -> None:
    """A config file read back is the same experiment."""
    assert ABOUT.keys() == PRESETS.keys()
    for name, experiment in PRESETS.items():
        (tmp_path / name).write_text(configs.dump(experiment), encoding="utf-8")
        assert configs.read(Experiment, tmp_path / name) == experiment


def test_unknown_names_get_the_nearest_right_one() -> None:
    """Presets and fields alike."""
    with pytest.raises(NeuralEMError, match="did you mean 'flying-shapes'"):
        build("flying-shape")
    with pytest.raises(NeuralEMError, match="did you mean 'learning_rate'"):
        build("flying-shapes", ["training.lerning_rate=1"])


def test_overrides_hold_in_every_stage() -> None:
    """What the user says beats what a stage says."""
    experiment = build("flying-mnist-staged", ["training.learning_rate=0.01", "training.epochs=3"])
    stages = [experiment.stage(number) for number in range(3)]
    assert [stage.training.learning_rate for stage in stages] == [0.01] * 3
    assert [stage.training.epochs for stage in stages] == [3] * 3
    assert [stage.data.digits for stage in stages] == [20, 500, None]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.steps=21"], "training.steps: expected from 1 to 20 for 21 frames, got 21"),
        (["training.epochs=0"], "training.epochs: expected an integer >= 1, got 0"),
        (["stages=[[training.epoch=3]]"], r"stages\[0\]: .*did you mean 'epochs'"),
        (["training.components"], "override: expected name=value"),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], message: str) -> None:
    """Before anything is computed or written."""
    with pytest.raises(NeuralEMError, match=message):
        build("flying-shapes", overrides)


def test_run_names_tell_what_is_special() -> None:
    """Only what differs from the preset; what decides how long to train does not make another run."""
    assert run_path(preset("flying-shapes")) == Path("runs/flying-shapes-seed0")
    changes = ["data.objects=5", "training.components=5", "training.epochs=3", "training.seed=2"]
    special = build("flying-shapes", changes)
    assert run_path(special).name == "flying-shapes-objects5-components5-seed2"
    assert run_path(special, seeds=3).name == "flying-shapes-objects5-components5-seeds2-4"
    assert run_path(special, "elsewhere") == Path("elsewhere")
    falling = build("flying-shapes", ["training.schedule=cosine", "training.epochs=3"])  # another rate at every step
    assert run_path(falling).name == "flying-shapes-schedulecosine-epochs3-seed0"
    own = build("static-shapes", data="/some/where/my pictures")
    assert run_path(own).name == "static-shapes-pathmy_pictures-seed0"
    for staged, steps in (("bouncing-balls", "-stepsNone"), ("flying-mnist-plus", "")):
        assert run_path(build(staged, data="clip.npy")).name == f"{staged}-pathclip.npy{steps}-seed0"
    assert len(run_path(build("flying-shapes", TINY)).name) < 130
    assert run_path(build("flying-shapes", weights="flying-shapes")).name == "flying-shapes-weightsflying_shapes-seed0"


def test_a_size_that_does_not_fit_the_data_is_refused() -> None:
    """The data decide; somebody who chose another size is told."""
    experiment = build("flying-shapes", ["model.height=30"])
    with pytest.raises(NeuralEMError, match=r"model\.height: expected 28, as the data have it, got 30"):
        train(experiment, device="cpu", quiet=True)
    assert build("flying-shapes", ["data.height=40"]).for_frames((21, 1, 40, 28)).model.height == 40
