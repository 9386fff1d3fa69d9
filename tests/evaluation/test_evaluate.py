"""The whole evaluation path, with models whose grouping is known and with a real one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from neural_em.data import DataConfig, load_split
from neural_em.data.dataset import MemoryDataset
from neural_em.errors import NeuralEMError
from neural_em.evaluation import EvaluationConfig, evaluate
from neural_em.evaluation.evaluate import start_keys
from neural_em.evaluation.results import read_json, write_json
from neural_em.evaluation.summary import result_table
from neural_em.model import ModelConfig, NeuralEM
from tests.evaluation.stubs import (
    CONFIG,
    LOSSES,
    SCORES,
    SIDE,
    Perfect,
    Random,
    Stub,
    Swapping,
    means,
    sequences,
)


def test_a_perfect_segmentation_scores_one() -> None:
    result = evaluate(Perfect(), sequences(7), EvaluationConfig(components=3, batch_size=3))
    for section in ("last_step", "mean_over_steps", "whole_sequence"):
        assert {name: means(result, section)[name] for name in SCORES} == dict.fromkeys(SCORES, 1.0)
    assert result.last_step["confidence"].mean == 1.0
    assert (result.sequences, result.steps, result.has_groups) == (7, 5, True)
    assert all(result.curves[name].mean == (1.0,) * 5 for name in SCORES)
    assert result.curves["ari"].count == (7,) * 5


def test_a_number_of_components_that_was_counted_in_an_array(tmp_path: Path) -> None:
    data = sequences(4)
    counted = EvaluationConfig(components=np.uint8(3), steps=np.int64(4), batch_size=2)
    result = evaluate(Perfect(), data, counted)
    assert result == evaluate(Perfect(), data, EvaluationConfig(components=3, steps=4, batch_size=2))
    write_json(result, tmp_path / "result.json")
    assert read_json(tmp_path / "result.json") == result


def test_a_random_segmentation_scores_zero_within_error() -> None:
    result = evaluate(Random(), sequences(150), EvaluationConfig(components=3, baselines=False))
    for name in ("ami_max", "ami_arithmetic", "ari"):
        values = np.array(result.per_sequence[name])
        assert abs(values.mean()) < 4 * values.std() / np.sqrt(len(values))
        assert values.std() < 0.1
        assert result.last_step[name].mean == pytest.approx(values.mean(), abs=1e-6)
    assert result.last_step["iou"].mean < 0.5


def test_a_step_is_scored_against_the_next_frame() -> None:
    """Were step t scored against frame t, jumping squares would not fit; against frame t + 1 they do."""
    data = sequences(5)
    still = Perfect()
    still.step = lambda state, x_noisy, x_next, **options: Stub.step(still, state, x_noisy, x_noisy)  # type: ignore
    still.draw = lambda x, components, keys: (x[:-1], torch.ones(x.shape[1], components, 1, SIDE, SIDE))  # type: ignore
    assert evaluate(Perfect(), data, EvaluationConfig(3)).last_step["ari"].mean == 1.0
    assert evaluate(still, data, EvaluationConfig(3)).last_step["ari"].mean < 0.5


def test_a_swap_costs_over_the_sequence_only() -> None:
    result = evaluate(Swapping(), sequences(6), EvaluationConfig(components=3))
    assert result.mean_over_steps["ari"].mean == 1.0
    assert result.mean_over_steps["iou"].mean == 1.0
    assert result.whole_sequence["ari"].mean < 0.5
    assert result.whole_sequence["ami_max"].mean < 0.5
    assert result.whole_sequence["iou"].mean < 0.7


def test_losses_are_given_for_each_step() -> None:
    result = evaluate(Perfect(), sequences(4), EvaluationConfig(components=3))
    for name, factor in (("upper_bound", 1), ("inter", 2), ("intra", 3), ("total", 4)):
        assert result.curves[name].mean == tuple(float(factor * t) for t in range(1, 6))
        assert result.last_step[name].mean == 5 * factor
        assert result.mean_over_steps[name].mean == 3 * factor


def test_images_with_nothing_to_score_are_counted_and_left_out() -> None:
    result = evaluate(Perfect(), sequences(6, empty=2), EvaluationConfig(components=3, batch_size=2))
    assert (result.unscored_images, result.unscored_sequences) == (10, 2)
    assert result.last_step["ami_max"].mean == 1.0
    assert result.last_step["ami_max"].count == 4
    assert result.last_step["total"].count == 6
    assert result.per_sequence["ari"] == (None, None, 1.0, 1.0, 1.0, 1.0)
    assert result.baselines["k-means"]["ari"].count == 4


def test_without_groups_there_are_losses_and_confidence() -> None:
    result = evaluate(Perfect(), sequences(4, grouped=False), EvaluationConfig(components=3, starts=2))
    assert set(result.last_step) == {*LOSSES, "confidence"}
    assert not result.has_groups
    assert not result.whole_sequence
    assert not result.baselines
    assert result.unscored_images == 0
    assert len(set(result.examples().values())) == 3  # of four equal sequences


def test_static_repeats_the_first_frame() -> None:
    data = sequences(4)
    result = evaluate(Perfect(), data, EvaluationConfig(components=3, static=True, steps=9))
    assert result.steps == 9
    assert result.last_step["ari"].mean == 1.0
    single = MemoryDataset(data._frames[:, :1], data._groups[:, :1])
    alone = evaluate(Perfect(), single, EvaluationConfig(components=3))
    assert alone.steps == CONFIG.steps
    assert alone.last_step["ari"].mean == 1.0
    assert alone.baselines == result.baselines


def test_fewer_and_more_steps_than_frames() -> None:
    data = sequences(3)
    assert evaluate(Perfect(), data, EvaluationConfig(components=3, steps=2)).curves["ari"].mean == (1.0, 1.0)
    with pytest.raises(NeuralEMError, match="steps: expected"):
        evaluate(Perfect(), data, EvaluationConfig(components=3, steps=6))


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_results_do_not_depend_on_the_batch_size(batch_size: int) -> None:
    model, data = NeuralEM(CONFIG, seed=1).double(), sequences(9)  # in float32 near-ties may fall either way
    whole = evaluate(model, data, EvaluationConfig(components=3, starts=2))
    parts = evaluate(model, data, EvaluationConfig(components=3, starts=2, batch_size=batch_size))
    assert 0 < whole.last_step["confidence"].mean < 1
    for name, values in whole.per_sequence.items():
        assert parts.per_sequence[name] == pytest.approx(values, rel=0, abs=2e-6)
    assert parts.baselines == whole.baselines
    again = evaluate(model, data, EvaluationConfig(components=3, starts=2, seed=1))
    assert again.per_sequence["total"] != whole.per_sequence["total"]


def test_a_real_model_is_scored_as_its_unroll_is() -> None:
    """Against the model's own unroll with the same draws, its losses, and scikit-learn's scores of its gamma."""
    model, data = NeuralEM(CONFIG, seed=2), sequences(3)
    result = evaluate(model, data, EvaluationConfig(components=4, seed=5))
    x, groups = data.batch(torch.arange(3))
    drawn = []
    draw = model.draw
    model.draw = lambda *a, **k: drawn.append(draw(*a, **k)) or drawn[-1]  # type: ignore[method-assign]
    evaluate(model, data, EvaluationConfig(components=4, seed=5))
    with torch.no_grad():
        out = model.unroll(x, 4, x_noisy=drawn[0][0], gamma=drawn[0][1])
    for name in LOSSES:
        assert result.curves[name].mean == pytest.approx(getattr(out, name).tolist(), rel=1e-5)
    assignment = out.gamma[:, :, :, 0].argmax(dim=2)
    for t in range(5):
        ami, ari = [], []
        for n in range(3):
            scored = groups[t + 1, n] > 0
            true, found = groups[t + 1, n][scored].numpy(), assignment[t, n][scored].numpy()
            ami.append(adjusted_mutual_info_score(true, found, average_method="max"))
            ari.append(adjusted_rand_score(true, found))
        assert result.curves["ami_max"].mean[t] == pytest.approx(np.mean(ami), abs=1e-9)
        assert result.curves["ari"].median[t] == pytest.approx(np.median(ari), abs=1e-9)
    largest = out.gamma[-1].amax(dim=1)[:, 0]
    expected = [largest[n][groups[-1, n] > 0].mean().item() for n in range(3)]
    assert result.per_sequence["confidence"] == pytest.approx(expected, abs=1e-5)


def test_without_noise_the_frames_are_read_as_they_are() -> None:
    """With the same start as with it."""
    model, data = NeuralEM(CONFIG, seed=2), sequences(3)
    x, _ = data.batch(torch.arange(3))
    _, gamma = model.draw(x, 4, start_keys(5, 0, torch.arange(3)))
    with torch.no_grad():
        out = model.unroll(x, 4, x_noisy=x[:-1], gamma=gamma)
    clean, noisy = (
        evaluate(model, data, EvaluationConfig(components=4, seed=5, clean=clean)).curves["total"].mean
        for clean in (True, False)
    )
    assert clean == pytest.approx(out.total.tolist(), rel=1e-5)
    assert noisy != pytest.approx(out.total.tolist(), rel=1e-3)


def test_the_limit_takes_the_first_sequences() -> None:
    model, data = NeuralEM(CONFIG, seed=4), sequences(8)
    all_of_them = evaluate(model, data, EvaluationConfig(components=2, baselines=False))
    some = evaluate(model, data, EvaluationConfig(components=2, limit=3, baselines=False))
    assert some.sequences == 3
    assert some.per_sequence["total"] == pytest.approx(all_of_them.per_sequence["total"][:3], rel=1e-4)
    assert evaluate(model, data, EvaluationConfig(components=2, limit=50)).sequences == 8


def test_baselines_are_scored_on_the_last_frame() -> None:
    """Squares apart from each other: connected components are exact; one centre cannot tell two squares apart."""
    groups = torch.zeros(3, 2, SIDE, SIDE, dtype=torch.uint8)
    groups[:, :, :3, :3] = 1  # touching in the first frame, apart in the last
    groups[:, 0, 3:6, 3:6] = 2
    groups[:, 1, 8:11, 8:11] = 2
    data = MemoryDataset((groups > 0).float()[:, :, None], groups)
    result = evaluate(NeuralEM(CONFIG), data, EvaluationConfig(components=1))
    assert {name: score.mean for name, score in result.baselines["connected components"].items()} == {
        "ami_max": 1.0, "ami_arithmetic": 1.0, "ari": 1.0, "iou": 1.0,
    }  # fmt: skip
    assert result.baselines["k-means"]["ari"].mean == 0.0
    assert result.baselines["k-means"]["iou"].mean == 0.25  # 9 of 18 pixels for one square, none for the other
    assert evaluate(NeuralEM(CONFIG), data, EvaluationConfig(1, baselines=False)).baselines == {}


@pytest.mark.parametrize("colour", [[0.1, 0.2, 0.0], [0.1]])
def test_baselines_know_the_objects_from_a_bright_ground(colour: list[float]) -> None:
    groups = torch.zeros(2, 1, SIDE, SIDE, dtype=torch.uint8)
    groups[:, :, :3, :3], groups[:, :, 8:11, 8:11] = 1, 2
    frames = torch.where(groups[:, :, None] > 0, torch.tensor(colour).view(-1, 1, 1), 0.9)  # dark on bright
    model = NeuralEM(dataclasses.replace(CONFIG, channels=len(colour), distribution="gaussian"))
    result = evaluate(model, MemoryDataset(frames, groups), EvaluationConfig(components=2))
    assert [result.baselines[name]["ari"].mean for name in ("connected components", "k-means")] == [1.0, 1.0]


def test_the_model_is_left_as_it_was() -> None:
    model, data = NeuralEM(CONFIG), sequences(2)
    model.train()
    done: list[tuple[int, int]] = []
    evaluate(model, data, EvaluationConfig(components=2, batch_size=1), progress=lambda *count: done.append(count))
    assert model.training
    assert done == [(1, 2), (2, 2)]


@pytest.mark.parametrize("field", ["components", "steps", "starts", "limit", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, 10**12])
def test_bad_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(NeuralEMError, match=f"{field}: expected an integer from 1 to [0-9]+, got {value}"):
        dataclasses.replace(EvaluationConfig(components=1), **{field: value})


def test_more_than_any_memory_holds_is_refused_before_it_is_taken() -> None:
    config = EvaluationConfig(components=1024, steps=100_000, static=True)
    with pytest.raises(NeuralEMError, match=r"steps x components: expected at most .*, got 100000 x 1024"):
        evaluate(Perfect(), MemoryDataset(torch.zeros(1, 2, 1, SIDE, SIDE), None), config)


def test_no_sequences_are_refused() -> None:
    empty = MemoryDataset(torch.zeros(0, 2, 1, SIDE, SIDE), None)
    with pytest.raises(NeuralEMError, match="data: expected at least one sequence, got 0"):
        evaluate(Perfect(), empty, EvaluationConfig(components=1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_same_result() -> None:
    data = sequences(20)
    model = NeuralEM(CONFIG, seed=6)
    on_cpu = evaluate(model, data, EvaluationConfig(components=3))
    on_gpu = evaluate(model.cuda(), data, EvaluationConfig(components=3))
    for name in LOSSES:
        assert on_gpu.last_step[name].mean == pytest.approx(on_cpu.last_step[name].mean, rel=1e-3)
    assert on_gpu.baselines == on_cpu.baselines
    perfect = evaluate(Perfect().cuda(), data, EvaluationConfig(components=3))
    assert perfect.whole_sequence["ami_max"].mean == 1.0


def test_the_error_where_balls_meet_is_counted_apart() -> None:
    """By hand: binary cross entropy of the largest prediction, summed over the pixels of balls that have just met.

    In the frame in which they have, and at the same pixels in the next one.
    """
    config = DataConfig("bouncing-balls", frames=6, height=32, width=32, radii=(3, 4), speed=8)
    data = load_split(config, "test", 1, size=12)
    model = NeuralEM(ModelConfig(height=32, width=32, theta_size=4, convolutions=(2,), hidden=4), seed=2)
    result = evaluate(model, data, EvaluationConfig(3, batch_size=5))
    rows = torch.arange(12)
    x, met = data.batch(rows).frames, data.collisions(rows)
    with torch.no_grad():
        x_noisy, gamma = model.draw(x, 3, start_keys(0, 0, rows))
        psi = model.unroll(x, 3, x_noisy=x_noisy, gamma=gamma).psi.amax(dim=2).double()
    for t in range(5):
        on = x[t + 1].double()
        error = -(on * psi[t].clamp(min=1e-6).log() + (1 - on) * (1 - psi[t]).clamp(min=1e-6).log())[:, 0]
        for name, where in (("relational", met[t + 1]), ("relational_later", met[t])):
            errors = [float((error[n] * where[n]).sum()) for n in range(12) if where[n].any()]
            assert result.curves[name].count[t] == len(errors)
            if errors:
                assert result.curves[name].mean[t] == pytest.approx(np.mean(errors), rel=1e-4)
    assert sum(result.curves["relational"].count) > 5
    assert sum(result.curves["relational_later"].count) > 5
    ahead = evaluate(model, data, EvaluationConfig(3, steps=2, rollout=3)).rollout
    some = met.flatten(2).any(dim=2).sum(dim=1).tolist()
    assert f"at the last step balls met in {some[5]} of 12 sequences" in result_table(result)
    assert list(ahead["relational"].count) == some[3:]
    assert list(ahead["relational_later"].count) == some[2:5]
    still = evaluate(model, data, EvaluationConfig(3, steps=2, static=True)).curves
    assert list(still["relational"].count) == list(still["relational_later"].count) == [some[0]] * 2
