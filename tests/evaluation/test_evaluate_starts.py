"""Evaluation over several starts, and of steps without input."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from neural_em.data.dataset import MemoryDataset
from neural_em.errors import NeuralEMError
from neural_em.evaluation import EvaluationConfig, evaluate
from neural_em.model import NeuralEM
from tests.evaluation.stubs import (
    CONFIG,
    Perfect,
    sequences,
)
from tests.known import GROUPS, known_model


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
    with pytest.raises(NeuralEMError, match=r"^rollout=5: 3 \+ 5 steps need 9 frames, and a sequence has 6$"):
        evaluate(Perfect(), sequences(2), EvaluationConfig(components=3, steps=3, rollout=5))
    with pytest.raises(NeuralEMError, match=r"1 \+ 5 steps need 7 frames"):
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
