"""The one loop: against the model's own steps, against rollouts worked out in NumPy, for any model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neural_em import ModelConfig, NeuralEM, NeuralEMError, randomness
from neural_em.model import NoiseConfig
from neural_em.model.em import Info, State
from neural_em.model.fast import accelerate
from neural_em.model.inference import batch_that_fits, best_start, infer, next_groups
from tests.known import BARS, known_model

H, W = 4, 6
SMALL: dict[str, Any] = {
    "height": H, "width": W, "theta_size": 5, "convolutions": (), "hidden": 0, "layer_norm": False,
}  # fmt: skip
KEYS = randomness.keys(3, torch.arange(2))


def build(noise: str = "none", probability: float = 0.3, **changes: Any) -> NeuralEM:
    return NeuralEM(ModelConfig(**SMALL, **changes, noise=NoiseConfig(noise, probability)), seed=1).double()


def frames(count: int, batch: int = 2) -> Tensor:
    return torch.rand(count, batch, 1, H, W, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round()


def same(a: State, b: State) -> bool:
    return all(torch.equal(*both) for both in zip(a[:3], b[:3], strict=True))


def test_it_is_draw_start_and_one_step_after_the_other() -> None:
    model, x = build("bit-flips"), frames(5)
    x_noisy, gamma = model.draw(x, 3, KEYS, steps=3)
    state = model.start(x[0], 3, gamma)
    found = list(infer(model, x, 3, KEYS, steps=3))
    assert len(found) == 3
    for t, step in enumerate(found):
        state, info = model.step(state, x_noisy[t], x[t + 1])
        assert same(step.state, state)
        assert torch.equal(step.info.total, info.total)
        assert torch.equal(step.x_noisy, x_noisy[t])
        assert torch.equal(step.x_next, x[t + 1])
        assert not step.rollout
        assert not step.state.psi.requires_grad
    last = list(infer(model, x[2:4], 3, KEYS, state=found[1].state, noise=False))
    assert same(last[0].state, model.step(found[1].state, x[2], x[3])[0])
    noisy = next(infer(model, x[2:4], 3, KEYS, state=found[1].state))
    assert torch.equal(noisy.x_noisy, model.draw(x[2:4], 3, KEYS)[0][0])
    assert same(noisy.state, model.step(found[1].state, noisy.x_noisy, x[3])[0])


def test_an_image_is_repeated_and_wrong_values_are_refused() -> None:
    model, x = build(steps=4), frames(1)
    found = list(infer(model, x, 2, KEYS, rollout=2))
    assert [step.rollout for step in found] == [False] * 4 + [True] * 2
    assert all(torch.equal(step.x_next, x[0]) for step in found)
    with pytest.raises(NeuralEMError, match="x: expected numbers between 0 and 1"):
        next(infer(model, x + 1, 2, KEYS))
    with pytest.raises(NeuralEMError, match="rollout: expected an integer >= 0, got -1"):
        list(infer(model, x, 2, KEYS, rollout=-1))


def sigmoid(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("distribution", ["bernoulli", "gaussian"])
def test_a_rollout_worked_out_by_hand(distribution: str, rounded: bool) -> None:
    """In NumPy, as the authors' rollout goes: the input, the predictions, the assignment to them, and the error."""
    model, x = build(distribution=distribution, prior=0.125), frames(7)
    (*_, before), binary = infer(model, x, 3, KEYS, steps=3), distribution == "bernoulli"
    U, a = (p.detach().numpy() for p in (model.m_step.recurrence.weight, model.m_step.recurrence.bias))
    V, b = (p.detach().numpy() for p in (model.m_step.decoder.dense[0].weight, model.m_step.decoder.dense[0].bias))
    theta, psi, gamma = (part.flatten(2).numpy() for part in before.state[:3])  # (B,K,M) and twice (B,K,P)
    found = list(model.rollout(before.state, 3, x=x[4:], noise=False, rounded=rounded))
    assert len(found) == 3
    for r, step in enumerate(found):
        read = (gamma * psi).sum(axis=1)
        if rounded:
            read = np.rint(read) if binary else read.clip(0, 1)
        theta = sigmoid(np.concatenate([gamma * (read[:, None] - psi), theta], axis=2) @ U.T + a)
        psi = theta @ V.T + b
        psi = sigmoid(psi) if binary else psi
        truth = (psi.max(axis=1) > 0.1) * 1.0 if binary else 0.125 + (psi - 0.125).sum(axis=1)
        truth, came = truth[:, None], x[4 + r].flatten(1).numpy()
        density = np.exp(-((truth - psi) ** 2) / (2 * 0.25**2)) / (0.25 * np.sqrt(2 * np.pi))
        likelihood = (truth * psi + (1 - truth) * (1 - psi) if binary else density) + 1e-6
        gamma = likelihood / likelihood.sum(axis=1, keepdims=True)
        best = psi.max(axis=1)
        error = -np.where(came == 1, np.log(best), np.log(1 - best)) if binary else (came - best) ** 2 / 2
        assert step.x_noisy.flatten(1).numpy() == pytest.approx(read)
        for part, expected in zip(step.state[:3], (theta, psi, gamma), strict=True):
            assert part.flatten(2).numpy() == pytest.approx(expected)
        assert step.info.upper_bound.numpy() == pytest.approx(error.sum(axis=1))
        assert step.rollout


def test_what_really_came_is_measured_and_not_seen() -> None:
    model, x = build("bit-flips"), frames(8)
    known, part, other = (
        list(infer(model, sequence, 3, KEYS, 4, 3)) for sequence in (x, x[:6], torch.cat([x[:5], 1 - x[5:]]))
    )
    for t in range(7):
        assert same(known[t].state, part[t].state)
        assert same(known[t].state, other[t].state)
    assert not torch.equal(known[-1].info.total, other[-1].info.total)
    assert [step.x_next is None for step in part] == [False] * 5 + [True] * 2
    assert bool(torch.stack(part[-1].info).isnan().all())
    assert not torch.stack(part[-3].info).isnan().any()


def test_the_noise_of_a_rollout_is_that_of_the_samples_next_frames() -> None:
    """The pixels flipped are those that would be in a longer sequence, in any batch; a flipped m becomes 1 - m."""
    model, x = build("bit-flips"), frames(4)
    flipped = model.draw(torch.zeros(8, 2, 1, H, W, dtype=torch.float64), 3, KEYS)[0]  # (7,B,C,H,W): 1 where flipped
    found = list(infer(model, x, 3, KEYS, rollout=4))
    alone = list(infer(model, x[:, 1:], 3, KEYS[1:], rollout=4))
    for t in range(3, 7):
        m = model.predict(found[t - 1].state)
        assert torch.equal(found[t].x_noisy, torch.where(flipped[t] == 1, 1 - m, m))
        torch.testing.assert_close(found[t].state.psi[1:], alone[t].state.psi)
    before = found[2].state
    m = model.predict(before, rounded=False)
    assert 0.01 < float(m.mean()) < 0.99
    (step,) = build("bit-flips", 1.0).rollout(before, 1, KEYS, rounded=False)
    assert torch.equal(step.x_noisy, 1 - m)
    drawn = [next(model.rollout(before, 1, generator=torch.Generator().manual_seed(s))).x_noisy for s in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_objects_that_stand_still_are_predicted_for_ever() -> None:
    x = torch.from_numpy(BARS)[None, None, None]
    for step in infer(known_model(), x, 2, KEYS[:1], steps=2, rollout=5):
        assert torch.equal(step.state.psi.amax(dim=1).round(), x[0])
        assert set(step.state.gamma[0, :, 0, [0, -1], 0].argmax(dim=0).tolist()) == {0, 1}


def test_the_fast_twin_rolls_out_the_same() -> None:
    model = build("bit-flips")
    plain, fast = (list(infer(twin, frames(4), 3, KEYS, rollout=3)) for twin in (model, accelerate(model)))
    for a, b in zip(plain, fast, strict=True):
        torch.testing.assert_close(a.state, b.state)
        torch.testing.assert_close(a.info, b.info, equal_nan=True)


class Counting:
    """No NeuralEM: a model that counts its steps in theta and assigns each pixel to the component of its value."""

    def frames(self, x: Tensor, steps: int | None, check: bool = True) -> Tensor:
        return x if steps is None else x[: steps + 1]

    def draw(self, x: Tensor, components: int, keys: Tensor) -> tuple[Tensor, Tensor]:
        return self.draw_noise(x[:-1], keys), torch.zeros(x.shape[1], components, 1, *x.shape[3:])

    def draw_noise(self, x: Tensor, keys: Tensor, first: int = 0) -> Tensor:
        return x + 10 * (first + torch.arange(len(x))).view(-1, 1, 1, 1, 1)  # the time shows

    def start(self, x: Tensor, components: int, gamma: Tensor) -> State:
        return State(torch.zeros(len(x), components, 1), torch.zeros(len(x), components, *x.shape[1:]), gamma)

    def step(self, state: State, x_noisy: Tensor, x_next: Tensor, check: bool = True, losses: bool = True) -> Any:
        gamma = torch.stack([x_next == k for k in range(state.gamma.shape[1])], dim=1).float()
        info = Info(*[x_noisy.flatten(1).amax(dim=1)] * 4)
        return State(state.theta + 1, x_next.unsqueeze(1).expand_as(state.psi), gamma), info

    def predict(self, state: State, rounded: bool = True) -> Tensor:
        return state.psi[:, 0]

    def reassign(self, state: State) -> State:
        return state._replace(gamma=-state.gamma)


def test_any_model_with_the_outer_protocol_will_do() -> None:
    x = torch.tensor([0.0, 1.0, 0.0, 1.0]).view(4, 1, 1, 1, 1)
    model: Any = Counting()
    found = list(infer(model, x, 2, KEYS[:1], steps=2, rollout=3))
    assert [float(step.state.theta.max()) for step in found] == [1, 2, 3, 4, 5]
    assert [float(step.x_noisy) for step in found] == [0, 11, 20, 31, 41]  # the prediction is the frame that came last
    assert [step.state.gamma.flatten().tolist() for step in found[:3]] == [[0, 1], [1, 0], [0, -1]]
    assert [float(step.info.total) for step in found[:3]] == [0, 11, 20]
    assert all(bool(step.info.total.isnan()) for step in found[3:])


def test_groups_of_the_next_frame() -> None:
    groups = torch.arange(5).view(5, 1, 1, 1)
    assert next_groups(groups, 3).flatten().tolist() == [1, 2, 3]
    assert next_groups(groups[2:3], 3).flatten().tolist() == [2, 2, 2]


def test_the_best_start_is_the_one_with_the_lowest_loss_that_is_a_number() -> None:
    nan, inf = float("nan"), float("inf")
    losses = torch.tensor([[3.0, nan, 1.0, inf], [2.0, 5.0, 1.0, nan], [nan, 4.0, 2.0, 7.0]])
    assert best_start(losses).tolist() == [1, 2, 0, 2]


def test_the_batch_that_fits() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert batch_that_fits(1, cpu, 500) == 500
    assert batch_that_fits(1 << 20, cpu, 500) == 32
    assert batch_that_fits(1 << 20, gpu, 500) == 256
    assert batch_that_fits(1 << 40, cpu, 500) == 1
