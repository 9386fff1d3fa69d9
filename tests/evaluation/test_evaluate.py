"""The whole evaluation path, with models whose grouping is known and with a real one."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score
from torch import Tensor

from neural_em import randomness
from neural_em.data import DataConfig, load_split
from neural_em.data.dataset import MemoryDataset
from neural_em.errors import NeuralEMError
from neural_em.evaluation import EvaluationConfig, Result, evaluate
from neural_em.evaluation.evaluate import start_keys
from neural_em.evaluation.results import read_json, write_json
from neural_em.model import ModelConfig, NeuralEM
from neural_em.model.em import Info, State
from tests.known import GROUPS, known_model

SIDE, SCALE = 12, 0.1
CONFIG = ModelConfig(height=SIDE, width=SIDE, theta_size=8, convolutions=(4,), hidden=0, steps=5)
SCORES = ("ami_max", "ami_arithmetic", "ari", "iou")
LOSSES = ("total", "intra", "inter", "upper_bound")


class Stub(NeuralEM):
    """A model whose assignment is read off the frame it sees: a pixel's value is its label times SCALE."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.taken = 0

    def start(self, x, components, gamma=None, generator=None) -> State:
        self.taken = 0
        return super().start(x, components, gamma, generator)

    def step(
        self, state: State, x_noisy: Tensor, x_next: Tensor, check: bool = True, losses: bool = True
    ) -> tuple[State, Info]:
        label = (x_next[:, 0] / SCALE).round().long()
        K = state.gamma.shape[1]
        gamma = torch.nn.functional.one_hot(self.component(label, x_noisy, K), K).movedim(-1, 1)[:, :, None].float()
        self.taken += 1
        loss = x_next.new_full((len(label),), float(self.taken))
        return State(state.theta, state.psi, gamma), Info(4 * loss, 3 * loss, 2 * loss, loss)

    def component(self, label: Tensor, x_noisy: Tensor, components: int) -> Tensor:
        raise NotImplementedError


class Perfect(Stub):
    def component(self, label: Tensor, x_noisy: Tensor, components: int) -> Tensor:
        return (label + 1) % components


class Swapping(Stub):
    """Perfect in each frame, but from the third step on two components have changed places."""

    def component(self, label: Tensor, x_noisy: Tensor, components: int) -> Tensor:
        return (label if self.taken < 2 else (2 * label) % 3) % components


class Random(Stub):
    """Draws a component for every pixel from its own noise."""

    def component(self, label: Tensor, x_noisy: Tensor, components: int) -> Tensor:
        keys = randomness.keys(self.taken, (x_noisy.double() * 2**24).long().flatten(1).sum(dim=1))
        return randomness.integers(keys, SIDE * SIDE, components).view(-1, SIDE, SIDE)


def sequences(count: int, frames: int = 6, objects: int = 2, empty: int = 0, grouped: bool = True) -> MemoryDataset:
    """Squares that jump about; the value of a pixel tells its group. In ``empty`` sequences nothing is scored."""
    generator = torch.Generator().manual_seed(count)
    groups = torch.zeros(count, frames, SIDE, SIDE, dtype=torch.uint8)
    for n in range(count):
        for t in range(frames):
            for label in range(1, objects + 1):
                y, x = torch.randint(0, SIDE - 4, (2,), generator=generator).tolist()
                groups[n, t, y : y + 5, x : x + 5] = label
    pictures = (groups.float() * SCALE)[:, :, None]
    if empty:
        groups[:empty] = 0
    return MemoryDataset(pictures, groups if grouped else None)


def means(result: Result, section: str) -> dict[str, float | None]:
    return {name: summary.mean for name, summary in getattr(result, section).items()}


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
    assert result.examples() == {"best": 0, "typical": 0, "worst": 0}


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


def test_a_rollout_is_scored_apart() -> None:
    """Bars that stand still are predicted for ever; where squares jump, each wrong pixel of a repeat costs 6 ln 10."""
    still = np.broadcast_to(GROUPS, (3, 6, 6, 6)).copy()
    data = MemoryDataset(torch.from_numpy(still > 0)[:, :, None].float(), torch.from_numpy(still))
    result = evaluate(known_model(), data, EvaluationConfig(components=2, steps=2, rollout=3, starts=2))
    assert (result.steps, len(result.curves["ari"].mean)) == (2, 2)
    assert result.rollout["ami_max"].mean == pytest.approx((1.0,) * 3)
    assert result.rollout["upper_bound"].mean == pytest.approx([24 * 4.54e-5] * 3, rel=0.01)
    assert result.rollout["repeated"].mean == pytest.approx([0.0] * 3, abs=1e-4)
    assert result.rollout["ari"].count == (6, 6, 6)  # two starts

    jumping, model = sequences(5, frames=8), NeuralEM(CONFIG, seed=2)
    binary = MemoryDataset((jumping._frames > 0).float(), jumping._groups)
    result = evaluate(model, binary, EvaluationConfig(components=3, rollout=3))
    x = binary.batch(torch.arange(5)).frames
    wrong = [(x[4] != x[t]).flatten(1).sum(dim=1).double().mean().item() for t in (5, 6, 7)]
    assert result.steps == 4
    assert result.rollout["repeated"].mean == pytest.approx([6 * math.log(10) * number for number in wrong], rel=1e-4)
    short = MemoryDataset(binary._frames[:, :5], binary._groups[:, :5])
    before = evaluate(model, short, EvaluationConfig(components=3))
    assert result.per_sequence == before.per_sequence
    assert (result.curves, result.whole_sequence) == (before.curves, before.whole_sequence)
    assert result.baselines == before.baselines
    assert before.rollout == {}


def test_a_rollout_needs_frames_to_be_compared_with() -> None:
    with pytest.raises(NeuralEMError, match=r"rollout: expected 9 frames a sequence, for 3 \+ 5 steps, got 6"):
        evaluate(Perfect(), sequences(2), EvaluationConfig(components=3, steps=3, rollout=5))
    with pytest.raises(NeuralEMError, match=r"expected 7 frames a sequence, for 1 \+ 5 steps"):
        evaluate(Perfect(), sequences(2), EvaluationConfig(components=3, rollout=5))
    with pytest.raises(NeuralEMError, match="rollout: expected an integer from 0 to 100000, got -1"):
        EvaluationConfig(components=3, rollout=-1)
    image = evaluate(NeuralEM(CONFIG), sequences(2), EvaluationConfig(components=3, static=True, rollout=4))
    assert (image.steps, len(image.rollout["total"].mean)) == (CONFIG.steps, 4)


def test_more_starts_begin_with_the_first() -> None:
    model, data = NeuralEM(CONFIG, seed=3), sequences(5)
    one = evaluate(model, data, EvaluationConfig(components=3))
    four = evaluate(model, data, EvaluationConfig(components=3, starts=4))
    assert one.per_sequence == four.per_sequence
    assert not one.starts
    spread = four.starts["ari"]
    assert len(spread.means) == 4
    assert spread.means[0] == pytest.approx(one.last_step["ari"].mean)
    assert np.mean(spread.means) == pytest.approx(four.last_step["ari"].mean)
    assert spread.deviation > 0
    assert four.last_step["ari"].count == 20


@pytest.mark.parametrize("loss_steps", ["last", "every"])
def test_the_start_with_the_lowest_loss_is_found(loss_steps: str) -> None:
    """Against unrolls of each sequence alone with the draws of each start."""
    model, data = NeuralEM(dataclasses.replace(CONFIG, loss_steps=loss_steps), seed=3), sequences(5)
    draws: list[tuple[Tensor, Tensor]] = []
    draw = model.draw
    model.draw = lambda *a, **k: draws.append(draw(*a, **k)) or draws[-1]  # type: ignore[method-assign]
    result = evaluate(model, data, EvaluationConfig(components=3, starts=3))
    x = data.batch(torch.arange(5)).frames
    lowest = []
    with torch.no_grad():
        for n in range(5):
            one = [model.unroll(x[:, n : n + 1], 3, x_noisy=noisy[:, n : n + 1], gamma=gamma[n : n + 1])
                   for noisy, gamma in draws]  # fmt: skip
            best = min(one, key=lambda out: out.total[-1] if loss_steps == "last" else out.total.sum())
            lowest.append(best.total[-1].item())
    assert result.starts["total"].lowest_loss.mean == pytest.approx(np.mean(lowest), rel=1e-5)
    if loss_steps == "last":
        assert result.starts["total"].lowest_loss.mean < min(result.starts["total"].means)


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
    """By hand: binary cross entropy of the largest prediction, summed over the pixels of balls that have just met."""
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
        errors = [float((error[n] * met[t + 1, n]).sum()) for n in range(12) if met[t + 1, n].any()]
        assert result.curves["relational"].count[t] == len(errors)
        if errors:
            assert result.curves["relational"].mean[t] == pytest.approx(np.mean(errors), rel=1e-4)
    assert sum(result.curves["relational"].count) > 5
