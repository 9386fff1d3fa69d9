"""Starts that race, and beginning again: against races run by hand, and on a scene that a state cannot follow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neural_em import ModelConfig, NeuralEM, randomness
from neural_em.data import flying_shapes
from neural_em.model.inference import infer
from neural_em.segment import SegmentConfig, Stream
from neural_em.segment.stream import RACE, same_components
from tests.known import BARS, LOWER, UPPER, known_model

MODEL = NeuralEM(ModelConfig(height=8, width=14, theta_size=5, convolutions=(3,), hidden=7, layer_norm=False), seed=2)
with torch.no_grad():
    for weights in MODEL.parameters():
        weights *= 3  # so that different starts stay different


def through(stream: Stream, frames: np.ndarray) -> list[torch.Tensor]:
    return [step.gamma for _, step in stream.through((t, frame) for t, frame in enumerate(frames))]


def by_hand(frames: torch.Tensor, start: int, steps: int) -> tuple[float, list[torch.Tensor]]:
    """One start alone over frames (T,1,C,H,W): the sum of its losses over the race, and every step's gamma."""
    key = randomness.keys(0, 0x5354, 0, torch.tensor([start]))
    *_, last = infer(MODEL, frames[:1], 3, key, steps)
    state, total, found = last.state, float(last.info.total), [last.state.gamma[0, :, 0]]
    for t in range(1, len(frames)):
        key = randomness.keys(0, 0x4E4F, torch.tensor([t]))
        (step,) = infer(MODEL, frames[t - 1 : t + 1], 3, key, state=state)
        state, total = step.state, total + float(step.info.total) * (t < RACE)
        found.append(state.gamma[0, :, 0])
    return total, found


def test_the_start_with_the_lowest_sum_of_losses_gives_all_frames() -> None:
    """Every second start makes one step on the first frame instead of all of them."""
    frames = flying_shapes(1, objects=2, frames=RACE + 3, height=8, width=14, seed=1)[0]
    alone = [by_hand(frames, start, 1 if start % 2 else 6) for start in range(4)]
    assert len({round(total, 3) for total, _ in alone}) == 4
    wanted = min(alone, key=lambda each: each[0])[1]
    found = through(Stream(MODEL, SegmentConfig(3, steps=6, starts=4)), frames[:, 0].numpy())
    order = same_components(wanted[0].argmax(0) + 1, found[0].argmax(0) + 1, 3)
    for gamma, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(gamma[order], expected, atol=1e-4, rtol=1e-4)


def test_the_winner_of_a_race_does_not_repeat_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        "neural_em.segment.stream.infer", lambda *given, **named: calls.append(given) or infer(*given, **named)
    )
    frames = flying_shapes(1, objects=2, frames=RACE + 3, height=8, width=14, seed=1)[0]
    through(Stream(MODEL, SegmentConfig(3, steps=6, starts=4)), frames[:, 0].numpy())
    assert len(calls) == 2 + RACE + 3 - 1  # both kinds of starts on the first frame, then one step a frame


def test_a_clip_that_is_left_within_a_race_leaves_nothing_to_the_next_frame() -> None:
    """Of another frame the stream makes what it makes of it after the first frame of a race that nobody foresaw."""
    frames, others = (flying_shapes(1, objects=2, frames=RACE, height=8, width=14, seed=seed)[0] for seed in (1, 2))
    config, clip = SegmentConfig(3, steps=6, starts=2), frames[:, 0].numpy()
    stream = Stream(MODEL, config)
    next(iter(stream.through((t, frame) for t, frame in enumerate(clip))))
    step = stream.look(others[1, 0].numpy())
    ends = [by_hand(torch.stack([frames[0], others[1]]), start, 1 if start % 2 else 6)[1][1] for start in range(2)]
    orders = [same_components(end.argmax(0) + 1, step.gamma.argmax(0) + 1, 3) for end in ends]
    gaps = [(step.gamma[order] - end).abs().max() for order, end in zip(orders, ends, strict=True)]
    assert min(gaps) < 1e-4


def entering() -> np.ndarray:
    """The upper bar alone, which both components take; then the lower one comes, and neither can let go."""
    return np.stack([UPPER] * 34 + [BARS] * 26)[:, None]


@pytest.mark.parametrize("ahead", [True, False])
def test_it_begins_again_where_the_loss_jumps(ahead: bool) -> None:
    stream = Stream(known_model(), SegmentConfig(2, starts=4))
    frames = entering()
    found = through(stream, frames) if ahead else [stream.look(frame).gamma for frame in frames]
    assert stream.restarts == ([34] if ahead else [34 + RACE - 1])
    owners = [gamma.argmax(dim=0).numpy() for gamma in found]
    for owner in owners[34:] if ahead else owners[36:]:
        upper, lower = np.unique(owner[UPPER > 0]), np.unique(owner[LOWER > 0])
        assert (len(upper), len(lower)) == (1, 1)
        assert upper != lower
    assert len({int(owner[0, 0]) for owner in owners[36:]}) == 1  # and nobody changes places


def test_without_a_jump_nothing_begins_again() -> None:
    stream = Stream(known_model(), SegmentConfig(2, starts=4))
    through(stream, np.stack([BARS] * 60)[:, None])
    assert stream.restarts == []
    assert stream.agreement == [1.0]  # all starts find the two bars


def test_components_are_continued_by_the_pixels_they_own() -> None:
    before = torch.tensor([[1, 1, 0], [2, 2, 3]])
    after = torch.tensor([[3, 3, 0], [1, 0, 2]])
    assert same_components(before, after, 3).tolist() == [2, 0, 1]


def test_changes_of_the_model_do_not_reach_a_stream_that_is_there() -> None:
    model = NeuralEM(ModelConfig(height=8, width=8, theta_size=8, convolutions=(2, 3), hidden=6), seed=1)
    frames, config = np.random.default_rng(0).random((3, 1, 8, 8), np.float32), SegmentConfig(3, starts=1)
    one, other, first = Stream(model, config), Stream(model, config), Stream(model, config).look(frames[0])
    for frame in frames:
        step = one.look(frame)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5)
        torch.testing.assert_close(step.psi, other.look(frame).psi)
    assert not torch.equal(Stream(model, config).look(frames[0]).theta, first.theta)
