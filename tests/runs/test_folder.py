"""Run folders: one config, one process at a time, never overwritten silently."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from neural_em import config as configs
from neural_em.errors import NeuralEMError
from neural_em.experiments import Experiment, preset
from neural_em.runs.folder import RunFolder


def _begun(path: Path, config: Experiment) -> None:
    """A run folder with a checkpoint, closed again."""
    folder = RunFolder(path, config)
    (path / "checkpoints" / "step-00000001").mkdir(parents=True)
    folder.close()


def test_the_whole_config_is_kept(tmp_path: Path) -> None:
    """What is written can be read as the same experiment."""
    RunFolder(tmp_path / "run", preset("flying-mnist-staged"), parts=True)
    assert configs.read(Experiment, tmp_path / "run" / "config.yaml") == preset("flying-mnist-staged")


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """The lock is held as long as the folder is open."""
    first = RunFolder(tmp_path, preset("flying-shapes"))
    with pytest.raises(NeuralEMError, match="another process is training in this run folder"):
        RunFolder(tmp_path, preset("flying-shapes"))
    first.close()
    RunFolder(tmp_path, preset("flying-shapes")).close()


def test_another_config_is_refused_by_its_fields(tmp_path: Path) -> None:
    """Each field that differs is named with both values; the folder stays as it was."""
    experiment = preset("flying-shapes")
    _begun(tmp_path, experiment)
    other = configs.override(experiment, ["training.learning_rate=0.5", "data.objects=4", "training.epochs=7"])
    with pytest.raises(NeuralEMError) as caught:
        RunFolder(tmp_path, other)
    text = str(caught.value)
    assert "training.learning_rate=0.001" in text
    assert "training.learning_rate=0.5" in text
    assert "data.objects=3" in text
    assert "data.objects=4" in text
    assert "epochs" not in text
    assert configs.read(Experiment, tmp_path / "config.yaml") == experiment


def test_what_only_decides_how_long_may_change(tmp_path: Path) -> None:
    """More epochs and more patience go on with the same run."""
    experiment = preset("flying-shapes")
    _begun(tmp_path, experiment)
    longer = replace(experiment, training=replace(experiment.training, epochs=900, patience=20, checkpoint_seconds=1.0))
    RunFolder(tmp_path, longer).close()
    assert configs.read(Experiment, tmp_path / "config.yaml") == longer


def test_a_schedule_over_all_epochs_keeps_their_number(tmp_path: Path) -> None:
    """With more epochs the learning rate would jump up again in the middle of the run."""
    experiment = configs.override(preset("flying-shapes"), ["training.schedule=cosine", "training.epochs=5"])
    _begun(tmp_path, experiment)
    with pytest.raises(NeuralEMError, match=r"\(training\.epochs=5\), got training\.epochs=9; choose another --run"):
        RunFolder(tmp_path, configs.override(experiment, ["training.epochs=9"]))
    RunFolder(tmp_path, configs.override(experiment, ["training.patience=9"])).close()


def test_a_run_without_a_checkpoint_may_change(tmp_path: Path) -> None:
    """Where nothing was computed, nothing can be lost."""
    RunFolder(tmp_path, preset("flying-shapes")).close()
    RunFolder(tmp_path, preset("static-shapes")).close()


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    """Somebody's holiday pictures are no run."""
    (tmp_path / "beach.png").write_bytes(b"")
    with pytest.raises(NeuralEMError, match=r"expected a new folder or a run folder.*beach\.png"):
        RunFolder(tmp_path, preset("flying-shapes"))
    assert [path.name for path in tmp_path.iterdir()] == ["beach.png"]


def test_kinds_of_runs_are_not_mixed(tmp_path: Path) -> None:
    """A folder of seeds is no single run, and the other way round."""
    _begun(tmp_path / "single", preset("flying-shapes"))
    with pytest.raises(NeuralEMError, match=r"expected runs in sub-folders .* got a single run"):
        RunFolder(tmp_path / "single", preset("flying-shapes"), parts=True)
    RunFolder(tmp_path / "many", preset("flying-shapes"), parts=True).close()
    _begun(tmp_path / "many" / "seed-0", preset("flying-shapes"))
    with pytest.raises(NeuralEMError, match=r"expected a single run .* got runs in sub-folders"):
        RunFolder(tmp_path / "many", preset("flying-shapes"))


def test_an_unwritable_place_is_one_clear_error(tmp_path: Path) -> None:
    """A folder below a file can be made by nobody, not even by root."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NeuralEMError, match="run: cannot be written: Not a directory"):
        RunFolder(tmp_path / "file" / "run", preset("flying-shapes"))
    with pytest.raises(NeuralEMError, match="file: expected a folder, got a file"):
        RunFolder(tmp_path / "file", preset("flying-shapes"))
