"""What a stage hands to the next one: the best epoch's weights, and with them, where asked, Adam's memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neural_em.errors import NeuralEMError
from neural_em.experiments import Experiment, build, preset, reopen, train
from neural_em.runs import checkpoint
from neural_em.training import loop
from neural_em.training.validation import Validation
from tests.run_files import edit, read
from tests.tiny import TINY, best_weights, same

STEPS = 4  # of an epoch: 32 sequences in batches of 8
FIRST, SECOND = "training.learning_rate=0.3, training.epochs=4", "training.learning_rate=0.01, training.epochs=1"
CARRIED = [*TINY, f"stages=[[{FIRST}], [{SECOND}]]", "carry_optimizer=true"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def run(experiment: Experiment, path: Path, **options: Any) -> None:
    train(experiment, path, device="cpu", quiet=True, **options)


def memory(path: Path) -> dict[str, Tensor]:
    """What the newest checkpoint of a run folder holds of Adam."""
    found = checkpoint.newest(path / "checkpoints")
    assert found is not None
    return {name: tensor for name, tensor in found[1].tensors.items() if name.startswith("optimizer.")}


def step_counts(tensors: dict[str, Tensor]) -> set[float]:
    return {float(tensor) for name, tensor in tensors.items() if name.endswith(".step")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in two stages, without a pause."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("carried")
    run(build("flying-shapes", CARRIED), path)
    return path


def test_the_memory_handed_on_is_that_of_the_best_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is not the last: a run that ends with that epoch has the same memory in its checkpoint."""
    losses = iter([5.0, 1.0, 5.0, 5.0, 5.0, 5.0, 1.0])  # of two stages, then of the other run
    scores = Validation(0, 1.0, 1.0, 0.5)
    monkeypatch.setattr(loop, "validate", lambda *_: scores._replace(validation_loss=next(losses)))
    run(build("flying-shapes", CARRIED), tmp_path / "staged")
    assert read(tmp_path / "staged" / "stage-1" / "summary.json")["best_epoch"] == 2
    run(build("flying-shapes", [*TINY, "training.learning_rate=0.3"]), tmp_path / "two epochs")
    kept = checkpoint.read_file(tmp_path / "staged" / "stage-1" / "best-optimizer.safetensors")
    assert same(kept, memory(tmp_path / "two epochs"))
    assert step_counts(kept) == {2 * STEPS}
    assert step_counts(memory(tmp_path / "staged" / "stage-2")) == {2 * STEPS + STEPS}


def test_without_it_a_stage_begins_with_the_weights_alone(whole: Path, tmp_path: Path) -> None:
    run(build("flying-shapes", [*CARRIED, "carry_optimizer=false"]), tmp_path / "run")
    assert same(best_weights(tmp_path / "run" / "stage-1"), best_weights(whole / "stage-1"))
    assert step_counts(memory(tmp_path / "run" / "stage-2")) == {STEPS}
    assert not same(best_weights(tmp_path / "run"), best_weights(whole))
    assert not list((tmp_path / "run").glob("*/best-optimizer.safetensors"))


def test_the_first_step_of_the_second_stage_is_adams(whole: Path, tmp_path: Path) -> None:
    """Against Adam's formula: m = 0.9 m' + 0.1 g and v = 0.999 v' + 0.001 g², which tell the gradient g twice."""
    one_step = [*CARRIED, f"stages=[[{FIRST}], [{SECOND}, data.train_size=8]]"]
    run(build("flying-shapes", one_step), tmp_path / "run")
    before = checkpoint.read_file(tmp_path / "run" / "stage-1" / "best-optimizer.safetensors")
    after, best = (
        memory(tmp_path / "run" / "stage-2"),
        read(tmp_path / "run" / "stage-1" / "summary.json")["best_epoch"],
    )
    old, new = best_weights(tmp_path / "run" / "stage-1"), best_weights(tmp_path / "run" / "stage-2")
    count = best * STEPS + 1
    for name in old:
        m, v = after[f"optimizer.{name}.exp_avg"].double(), after[f"optimizer.{name}.exp_avg_sq"].double()
        gradient = (m - 0.9 * before[f"optimizer.{name}.exp_avg"].double()) / 0.1
        squared = 0.999 * before[f"optimizer.{name}.exp_avg_sq"].double() + 0.001 * gradient**2
        torch.testing.assert_close(v, squared, rtol=1e-3, atol=1e-6 * float(v.max()))
        step = 0.01 * (m / (1 - 0.9**count)) / ((v / (1 - 0.999**count)).sqrt() + 1e-8)
        torch.testing.assert_close(new[name].double(), old[name].double() - step, rtol=1e-5, atol=1e-6)


class _Killed(Exception):
    """What ends a process in these tests."""


@pytest.mark.parametrize(
    ("event", "run_name", "times"),
    [("epoch", "stage-1", 1), ("epoch", "stage-1", 4), ("start", "stage-2", 1), ("steps", "stage-2", 2)],
)
def test_a_killed_run_ends_as_one_that_was_not(
    whole: Path, tmp_path: Path, event: str, run_name: str, times: int
) -> None:
    left = [times]

    def kill(happened: str, info: dict[str, Any]) -> None:
        if happened == event and info["run"] == run_name:
            left[0] -= 1
            if left[0] == 0:
                raise _Killed

    with pytest.raises(_Killed):
        run(build("flying-shapes", CARRIED), tmp_path, callbacks=[kill])
    run(reopen(tmp_path)[0], tmp_path)
    assert same(best_weights(tmp_path), best_weights(whole))
    assert same(memory(tmp_path / "stage-2"), memory(whole / "stage-2"))


def test_a_kill_before_the_best_epoch_was_written_loses_nothing(whole: Path, tmp_path: Path) -> None:
    """Its checkpoint was, which comes first."""

    def kill(event: str, info: dict[str, Any]) -> None:
        if event == "epoch":
            raise _Killed

    with pytest.raises(_Killed):
        run(build("flying-shapes", CARRIED), tmp_path, callbacks=[kill])
    for name in ("best.safetensors", "best-optimizer.safetensors"):
        (tmp_path / "stage-1" / name).unlink()
    run(reopen(tmp_path)[0], tmp_path)
    assert same(best_weights(tmp_path), best_weights(whole))


@pytest.mark.parametrize("damage", ["gone", "broken", "another's"])
def test_a_memory_that_cannot_be_used_is_one_clear_error(whole: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "stage-2")
    file = tmp_path / "run" / "stage-1" / "best-optimizer.safetensors"
    if damage == "another's":
        shutil.copy(tmp_path / "run" / "stage-1" / "best.safetensors", file)
    elif damage == "broken":
        file.write_bytes(b"\0" * 100)
    else:
        file.unlink()
    message = "optimizer: .*expected shape" if damage == "another's" else "best-optimizer.safetensors: cannot be read"
    with pytest.raises(NeuralEMError, match=message):
        run(reopen(tmp_path / "run")[0], tmp_path / "run")


def test_the_papers_stages_carry_it_and_older_runs_go_on_without(tmp_path: Path) -> None:
    assert preset("flying-mnist-staged").carry_optimizer
    assert preset("flying-mnist-plus").carry_optimizer
    run(build("flying-shapes", [*CARRIED, "carry_optimizer=false"]), tmp_path / "run")
    edit(tmp_path / "run" / "config.yaml", lambda values: values.pop("carry_optimizer"))
    assert reopen(tmp_path / "run")[0].carry_optimizer is False
    run(reopen(tmp_path / "run")[0], tmp_path / "run")
    with pytest.raises(NeuralEMError, match=r"expected the config of this run \(carry_optimizer=False\)"):
        run(build("flying-shapes", CARRIED), tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "changes"),
    [("flying-shapes", ["carry_optimizer=true"]), ("flying-mnist-staged", ["stages=[[carry_optimizer=true]]"])],
)
def test_there_has_to_be_a_next_stage(name: str, changes: list[str]) -> None:
    with pytest.raises(NeuralEMError, match="carry_optimizer needs stages"):
        build(name, changes)
