"""Training from Python: early stopping, what is left behind, what goes wrong."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import neural_em
from neural_em.errors import NeuralEMError
from neural_em.model import MODELS, ModelConfig, NeuralEM, build
from neural_em.storage.weights import read
from neural_em.training import fit
from neural_em.training.validation import Validation


def _weights(model: NeuralEM) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_training_lowers_the_loss(tiny: Any) -> None:
    """Validation loss falls every epoch at first, and the model is left with the best weights."""
    model = tiny.build()
    outcome = fit(model, tiny.training, tiny.config, validation=tiny.validation)
    losses = [row.validation_loss for row in outcome.progress.rows]
    assert losses == sorted(losses, reverse=True)
    assert (outcome.stopped, outcome.finished, outcome.path) == ("epochs", True, None)
    assert outcome.model is model


def test_the_run_folder_holds_everything(tiny: Any, tmp_path: Path) -> None:
    """Config, both weights, metrics, environment, log, summary, one checkpoint."""
    model = tiny.build()
    outcome = fit(model, tiny.training, tiny.config, validation=tiny.validation, run=tmp_path)
    names = {"config.yaml", "best.safetensors", "last.safetensors", "metrics.csv", "environment.json", "log.txt"}
    assert names | {"summary.json", "checkpoints", ".lock"} == {path.name for path in tmp_path.iterdir()}
    assert _same(_weights(neural_em.load(tmp_path / "best.safetensors")), _weights(model))
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [int(row["steps"]) for row in rows] == [4, 8, 12]  # 34 samples are 4 steps of 8
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["stopped"], summary["finished"], summary["epochs"]) == ("epochs", True, 3)
    assert summary["best"]["validation_loss"] == min(float(row["validation_loss"]) for row in rows)
    start = json.loads((tmp_path / "environment.json").read_text())["starts"][0]
    assert start["packages"]["torch"] == torch.__version__
    assert start["precision"] == "float32"
    assert "epoch 3/3" in (tmp_path / "log.txt").read_text()
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    assert outcome.path == tmp_path


@dataclasses.dataclass(frozen=True)
class OtherConfig(ModelConfig):
    """Of a model with one more setting."""

    kind: str = "other"
    strength: float = 0.5


class Other(NeuralEM):
    """Sees its errors weaker."""

    def difference(self, x: torch.Tensor, psi: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return self.config.strength * super().difference(x, psi, gamma)


def test_another_model_goes_on_where_it_stopped(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the fast engine, which does not know it; and not as a model with another config of its class."""
    monkeypatch.setitem(MODELS, OtherConfig, Other)
    config, training = OtherConfig(**{**vars(tiny.model), "kind": "other"}), tiny.with_(engine="fast", epochs=2)
    whole = fit(build(config), tiny.training, training).model
    fit(build(config), tiny.training, tiny.with_(engine="fast", epochs=1), run=tmp_path)
    model = fit(build(config), tiny.training, training, run=tmp_path).model
    assert _same(_weights(model), _weights(whole))
    assert _same(_weights(neural_em.load(tmp_path / "best.safetensors")), _weights(model))
    with pytest.raises(NeuralEMError, match=r"expected the config of this run \(model\.strength=0\.5\), got"):
        fit(build(dataclasses.replace(config, strength=0.1)), tiny.training, training, run=tmp_path)


def test_patience_ends_a_run(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With losses 5 4 6 4 7 and a patience of 3, epoch 2 is the best and epoch 5 the last."""
    losses = iter([5.0, 4.0, 6.0, 4.0, 7.0, 1.0])
    monkeypatch.setattr("neural_em.training.loop.validate", lambda *a: Validation(next(losses), 0.0, 1.0, 0.5))
    seen: list[dict[str, torch.Tensor]] = []
    model = tiny.build()

    def watch(event: str, info: dict[str, Any]) -> None:
        if event == "epoch":
            seen.append(_weights(model))

    outcome = fit(model, tiny.training, tiny.with_(epochs=9, patience=3), tiny.validation, tmp_path, [watch])
    assert outcome.stopped == "patience"
    assert (outcome.progress.epoch, outcome.progress.best_epoch) == (5, 2)
    assert [row.best for row in outcome.progress.rows] == [True, True, False, False, False]
    assert _same(_weights(model), seen[1])
    assert _same(read(tmp_path / "best.safetensors")[2], seen[1])
    assert _same(read(tmp_path / "last.safetensors")[2], seen[4])


def test_without_patience_a_run_goes_on_to_its_last_epoch(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter(range(100))
    monkeypatch.setattr("neural_em.training.loop.validate", lambda *a: Validation(float(next(losses)), 0.0, 1.0, 0.5))
    outcome = fit(tiny.build(), tiny.training, tiny.with_(epochs=14, patience=None), tiny.validation)
    assert (outcome.stopped, outcome.progress.epoch, outcome.progress.best_epoch) == ("epochs", 14, 1)


def test_scores_never_stop_a_run(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Falling AMI with falling loss goes on."""
    values = iter(range(100))
    monkeypatch.setattr(
        "neural_em.training.loop.validate", lambda *a: Validation(-float(next(values)), 0, 1, 0.5, ami_last=-1.0)
    )
    assert fit(tiny.build(), tiny.training, tiny.with_(epochs=4, patience=1), tiny.validation).stopped == "epochs"


def test_without_validation_the_training_loss_decides(tiny: Any) -> None:
    """Best is the epoch with the lowest training loss."""
    outcome = fit(tiny.build(), tiny.training, tiny.config)
    losses = [row.loss for row in outcome.progress.rows]
    assert outcome.progress.best_epoch == 1 + losses.index(min(losses))
    assert outcome.progress.rows[0].validation_loss is None


def test_frames_alone_are_data_enough(tiny: Any) -> None:
    """(T,N,C,H,W) in, and the same result as from a data set of them."""
    frames = tiny.training.batch(torch.arange(34)).frames
    first, second = tiny.build(), tiny.build()
    fit(first, frames, tiny.with_(epochs=1))
    fit(second, tiny.training, tiny.with_(epochs=1))
    assert _same(_weights(first), _weights(second))


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (torch.zeros(4, 5, 1, 9, 14), r"data: expected frames \(T, N, 1, 8, 14\), got shape \(4, 5, 1, 9, 14\)"),
        (torch.zeros(4, 0, 1, 8, 14), r"data: expected frames \(T, N, 1, 8, 14\), got shape \(4, 0, 1, 8, 14\)"),
        (torch.full((4, 5, 1, 8, 14), 2.0), "data: expected numbers between 0 and 1, got values from 2 to 2"),
    ],
)
def test_wrong_frames_are_refused(tiny: Any, frames: torch.Tensor, message: str) -> None:
    """By what they should be and what they are."""
    with pytest.raises(NeuralEMError, match=message):
        fit(tiny.build(), frames, tiny.config)


def test_callbacks_see_every_step_and_epoch(tiny: Any) -> None:
    """In order, with the numbers that the result has."""
    events: list[tuple[str, dict[str, Any]]] = []
    callbacks = [lambda event, info: events.append((event, info))]
    outcome = fit(tiny.build(), tiny.training, tiny.config, tiny.validation, callbacks=callbacks)
    steps = [(info["epoch"], info["step"]) for event, info in events if event == "steps"]
    assert steps == [(epoch, step) for epoch in (1, 2, 3) for step in (1, 2, 3, 4)]
    assert tuple(info["row"] for event, info in events if event == "epoch") == outcome.progress.rows
    mean = sum(info["loss"] for event, info in events if event == "steps" and info["epoch"] == 2) / 4
    assert outcome.progress.rows[1].loss == pytest.approx(mean, rel=1e-12)
    assert events[0][0] == "start"
    assert events[-1][0] == "stop"


def test_fixed_batches_are_trained_on(tiny: Any, tmp_path: Path) -> None:
    """One batch of all samples has no order: the same weights as shuffled. Smaller ones are others."""
    ends = {}
    for batch_size in (34, 8):
        for way in ("shuffled", "fixed-batches"):
            model = tiny.build().double()
            fit(model, tiny.training, tiny.with_(order=way, batch_size=batch_size, precision="float64"))
            ends[batch_size, way] = torch.cat([tensor.flatten() for tensor in model.state_dict().values()])
    torch.testing.assert_close(ends[34, "shuffled"], ends[34, "fixed-batches"], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(ends[8, "shuffled"], ends[8, "fixed-batches"], rtol=1e-4)


def test_the_best_epoch_may_lie_before_the_interruption(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With losses 5 4, a stop, and then 6 7: the model that is left is that of epoch 2, which this start never had."""
    losses = iter([5.0, 4.0, 6.0, 7.0])
    monkeypatch.setattr("neural_em.training.loop.validate", lambda *a: Validation(next(losses), 0.0, 1.0, 0.5))
    first, second = tiny.build(), tiny.build()
    fit(first, tiny.training, tiny.with_(epochs=2), tiny.validation, tmp_path)
    outcome = fit(second, tiny.training, tiny.with_(epochs=4), tiny.validation, tmp_path)
    assert (outcome.progress.epoch, outcome.progress.best_epoch) == (4, 2)
    assert _same(_weights(second), _weights(first))
    assert _same(read(tmp_path / "best.safetensors")[2], _weights(first))
    assert not _same(read(tmp_path / "last.safetensors")[2], _weights(first))


def test_not_a_number_stops_and_keeps_what_was_good(tiny: Any, tmp_path: Path) -> None:
    """The error names epoch and step and what to try; best weights and checkpoint are those of the epoch before."""
    model = tiny.build()

    def spoil(event: str, info: dict[str, Any]) -> None:
        if event == "steps" and (info["epoch"], info["step"]) == (2, 2):
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))

    with pytest.raises(NeuralEMError) as caught:
        fit(model, tiny.training, tiny.config, tiny.validation, tmp_path, [spoil])
    text = str(caught.value)
    assert "training loss at epoch 2, step 3 of 4: expected a finite number, got nan" in text
    assert "learning_rate (it is 0.001)" in text
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["stopped"], summary["finished"]) == ("not-a-number", False)
    assert "epoch 2, step 3" in summary["problem"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004-validated"]
    good = neural_em.load(tmp_path / "best.safetensors")  # refuses anything that is not finite
    assert _same(_weights(good), read(tmp_path / "last.safetensors")[2])
    fit(tiny.build(), tiny.training, tiny.config, tiny.validation, tmp_path)  # goes on from the good one


def test_broken_weights_are_never_saved(tiny: Any, tmp_path: Path) -> None:
    """Where the last step before a checkpoint breaks the weights, the checkpoint before stays."""
    model = tiny.build()

    def spoil(event: str, info: dict[str, Any]) -> None:
        if event == "steps" and (info["epoch"], info["step"]) == (1, 3):
            next(model.parameters()).data.fill_(float("inf"))

    with pytest.raises(NeuralEMError, match="expected a finite number"):
        fit(model, tiny.training, tiny.with_(checkpoint_seconds=1e-9), callbacks=[spoil], run=tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


def test_binding_failures_are_named(tiny: Any, tmp_path: Path) -> None:
    """An untrained model binds nothing: log and summary say so, once."""
    outcome = fit(tiny.build(), tiny.training, tiny.config, tiny.validation, tmp_path)
    assert {row.binding for row in outcome.progress.rows} == {"uniform"}
    log = (tmp_path / "log.txt").read_text()
    assert log.count("warning: binding failure from epoch 1 on") == 1
    assert log.count("; usual in the first 500 steps, of which this run has done ") == 1
    assert json.loads((tmp_path / "summary.json").read_text())["warnings"] == outcome.warnings
    assert "nearly uniform" in outcome.warnings[0]
    single = fit(tiny.build(), tiny.training, tiny.with_(components=1), tiny.validation)
    assert single.warnings == []


def test_a_binding_failure_that_has_gone_is_said_to_be(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, after the first epoch without it."""
    found = iter(["uniform", "uniform", "", ""])
    monkeypatch.setattr(Validation, "binding_failure", lambda self, components: next(found))
    said: list[tuple[str, str]] = []

    def listen(event: str, info: dict[str, Any]) -> None:
        if event in ("warning", "note"):
            said.append((event, info["text"].partition(":")[0]))

    fit(tiny.build(), tiny.training, tiny.with_(epochs=4), tiny.validation, callbacks=[listen])
    assert said == [("warning", "binding failure from epoch 1 on"), ("note", "binding failure gone after epoch 3")]


def test_float64_is_float64(tiny: Any, tmp_path: Path) -> None:
    """Weights, checkpoints and weight files."""
    model = tiny.build()
    fit(model, tiny.training, tiny.with_(precision="float64", epochs=1), tiny.validation, tmp_path)
    assert next(model.parameters()).dtype == torch.float64
    assert next(neural_em.load(tmp_path / "best.safetensors").parameters()).dtype == torch.float64


def test_tensorboard_events_are_written(tiny: Any, tmp_path: Path) -> None:
    """One value an epoch, and after going on no epoch twice."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for epochs in (2, 3):
        config = tiny.with_(tensorboard=True, epochs=epochs)
        outcome = fit(tiny.build(), tiny.training, config, tiny.validation, tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    values = {scalar.step: scalar.value for scalar in events.Scalars("validation_loss")}
    rows = {row.epoch: row.validation_loss for row in outcome.progress.rows}
    assert values == pytest.approx(rows, rel=1e-6)


def test_without_tensorboard_one_line_says_so(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything else works."""
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    fit(tiny.build(), tiny.training, tiny.with_(tensorboard=True, epochs=1), tiny.validation, tmp_path)
    assert (tmp_path / "log.txt").read_text().count("tensorboard is not installed") == 1
