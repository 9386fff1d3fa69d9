"""A prior that is the image's own: its median colour, or a learned background; and the E-step's deviation."""

from __future__ import annotations

from dataclasses import replace
from statistics import median_low

import numpy as np
import pytest
import torch
from torch import Tensor

from neural_em import ModelConfig, NeuralEM, NeuralEMError, randomness
from neural_em.model import NoiseConfig, State
from neural_em.model.fast import accelerate
from neural_em.model.inference import infer
from neural_em.training.step import segmented_gradients

H, W, K = 6, 5, 3
KEYS = randomness.keys(0, torch.arange(2))
SINGLE = ModelConfig(
    channels=3, height=H, width=W, theta_size=4, convolutions=(), hidden=0, layer_norm=False, distribution="gaussian",
    prior="median", e_step_deviation=0.3, inter_weight=0.4, noise=NoiseConfig("none"), steps=3,
)  # fmt: skip
DEEP = replace(SINGLE, convolutions=(2, 3), hidden=6, layer_norm=True, noise=NoiseConfig("masked-uniform", 0.2, True))


def build(config: ModelConfig) -> NeuralEM:
    """A model in float64 whose background, if it has one, is no constant."""
    model = NeuralEM(config, seed=1).double()
    if model.background is not None:
        noise = torch.rand(model.background.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        model.background.data.copy_(noise)
    return model


def frames(count: int = 4, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 2, channels, H, W, generator=generator, dtype=torch.float64)


def own_prior(model: NeuralEM, x: Tensor) -> np.ndarray:
    """(B,C,1,1) or (B,C,H,W), worked out without torch."""
    if model.background is not None:
        return np.broadcast_to(model.background.detach().numpy(), x.shape)
    return np.array([[median_low(channel.flatten().tolist()) for channel in image] for image in x])[..., None, None]


def unroll_in_numpy(model: NeuralEM, x: Tensor, gamma: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """The algorithm with an absolute psi, its prior in the first psi, in eta and in the divergence."""
    U, a = (p.detach().numpy() for p in (model.m_step.recurrence.weight, model.m_step.recurrence.bias))
    V, b = (p.detach().numpy() for p in (model.m_step.decoder.dense[0].weight, model.m_step.decoder.dense[0].bias))
    c, prior = model.config, own_prior(model, x[0])[:, None]
    psi, theta, out = np.broadcast_to(prior, (2, K, 3, H, W)), np.zeros((2, K, 4)), []
    for t in range(len(x) - 1):
        delta = gamma * (x[t].numpy()[:, None] - psi)
        delta = delta.transpose(0, 1, 3, 4, 2).reshape(2, K, -1)  # channels last
        theta = 1 / (1 + np.exp(-(np.concatenate([delta, theta], 2) @ U.T + a)))
        psi = prior + (theta @ V.T + b).reshape(2, K, H, W, 3).transpose(0, 1, 4, 2, 3)
        error, s = x[t + 1].numpy()[:, None] - psi, c.e_step_deviation
        density = (np.exp(-(error**2) / (2 * s**2)) / (s * np.sqrt(2 * np.pi))).prod(axis=2, keepdims=True) + 1e-6
        gamma = density / density.sum(axis=1, keepdims=True)
        intra = (gamma * error**2 / 2).sum((1, 2, 3, 4))
        inter = ((1 - gamma) * (psi - prior) ** 2 / 2).sum((1, 2, 3, 4))
        out.append((theta, psi, gamma, intra + c.inter_weight * inter, intra, inter))
    return out


@pytest.mark.parametrize("prior", ["median", "background"])
@pytest.mark.parametrize("twin", [lambda model: model, accelerate])
def test_an_unroll_worked_out_in_numpy(prior, twin) -> None:
    model, x = build(replace(SINGLE, prior=prior)), frames()
    _, gamma = model.draw(x, K, KEYS)
    wanted = unroll_in_numpy(model, x, gamma.numpy())
    found = list(infer(twin(model), x, K, KEYS))
    assert len(found) == len(wanted) == 3
    for step, expected in zip(found, wanted, strict=True):
        parts = (*step.state[:3], *step.info[:3])
        assert all(part.numpy() == pytest.approx(each) for part, each in zip(parts, expected, strict=True))
        assert step.state.prior is not None
        assert torch.equal(step.state.prior, found[0].state.prior)  # it stays that of the first frame


def test_a_ground_of_one_colour_is_not_seen_at_first() -> None:
    x = torch.full((1, 1, 3, H, W), 0.7)
    x[..., :2, :2] = 0.2  # less than half of the pixels
    model = NeuralEM(SINGLE)
    state = model.start(x[0], K)
    delta = model.difference(x[0], state.psi, state.gamma)
    assert delta[..., 2:, :].abs().max() == 0
    assert delta[..., :2, :2].abs().min() > 0


@pytest.mark.parametrize("changes", [
    {"prior": "median"}, {"prior": "background"}, {"gamma_gradient": True}, {"normalize_input": True},
    {"prior": 0.3, "gamma_gradient": True}, {"prior": 0.3, "channel_rule": "sum"},
    {"channel_rule": "sum", "gamma_gradient": True}, {"prior": "background", "gamma_gradient": True},
    {"distribution": "bernoulli", "prior": 0.2}, {"distribution": "bernoulli", "prior": 0.2, "gamma_gradient": True},
    {"m_step": "relational"}, {"m_step": "gradient", "convolutions": (), "hidden": 0},
])  # fmt: skip
@pytest.mark.parametrize("deviation", [None, 0.6])
def test_colour_is_the_same_on_both_paths(changes, deviation) -> None:
    model, x = build(replace(DEEP, **changes)), frames()
    if deviation is not None and model.config.distribution == "gaussian":
        model.deviation = torch.tensor(deviation, dtype=torch.float64)
    x_noisy, gamma = model.draw(x, K, KEYS)
    results = []
    for network in (model, accelerate(model)):
        out = network.unroll(x, K, x_noisy=x_noisy, gamma=gamma)
        results.append([*out, *torch.autograd.grad(out.loss, list(model.parameters()))])
    for ours, theirs in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_the_fast_path_covers_colour(monkeypatch) -> None:
    model, x = build(DEEP), frames()
    network = accelerate(model)
    monkeypatch.setattr(NeuralEM, "assign", lambda *_: pytest.fail("left to the plain path"))
    network.unroll(x, K).loss.backward()


@pytest.mark.parametrize("prior", ["median", "background", 0.1])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_gradients_in_segments_are_those_of_the_whole(prior, length) -> None:
    model, x = build(replace(DEEP, prior=prior)), frames()
    x_noisy, gamma = model.draw(x, K, KEYS)
    whole = model.unroll(x, K, x_noisy=x_noisy, gamma=gamma).loss
    wanted = torch.autograd.grad(whole, list(model.parameters()))
    for network in (model, accelerate(model)):
        model.zero_grad()
        loss = segmented_gradients(network, x, x_noisy, network.start(x[0], K, gamma), 1.0, length, truncate=False)
        torch.testing.assert_close(loss, whole.detach())
        for parameter, gradient in zip(model.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


def test_truncated_segments_train_the_background() -> None:
    model, x = build(replace(DEEP, prior="background")), frames()
    x_noisy, gamma = model.draw(x, K, KEYS)
    segmented_gradients(model, x, x_noisy, model.start(x[0], K, gamma), 1.0, 1, truncate=True)
    assert model.background is not None
    assert model.background.grad is not None
    assert model.background.grad.abs().min() > 0


def test_a_rollout_adds_what_the_components_add_to_the_prior() -> None:
    model, x = build(SINGLE), frames(6)
    found = list(infer(model, x, K, KEYS, steps=2, rollout=2))
    hidden = list(infer(model, torch.cat([x[:3], 1 - x[3:]]), K, KEYS, steps=2, rollout=2))
    for step, other in zip(found[2:], hidden[2:], strict=True):
        psi, prior = step.state.psi.numpy(), own_prior(model, x[0])
        truth = prior + (psi - prior[:, None]).sum(axis=1)
        density = np.exp(-((truth[:, None] - psi) ** 2) / (2 * 0.3**2)) / (0.3 * np.sqrt(2 * np.pi))
        density = density.prod(axis=2, keepdims=True) + 1e-6
        assert step.state.gamma.numpy() == pytest.approx(density / density.sum(axis=1, keepdims=True))
        assert torch.equal(step.state.psi, other.state.psi)  # what really came is not seen, nor its colour


def test_a_state_without_its_prior_is_refused() -> None:
    model, x = build(SINGLE), frames()
    state = model.start(x[0], K)
    with pytest.raises(NeuralEMError, match=r"^state\.prior is missing; begin with the state that `start` gives$"):
        model.step(State(*state[:3]), x[0], x[1])


@pytest.mark.parametrize(("changes", "message"), [
    ({"prior": "mean"}, r"model\.prior: expected a finite number, median or background"),
    ({"distribution": "bernoulli"}, r"model\.prior=median is for model\.distribution=gaussian or masked, not b"),
])  # fmt: skip
def test_a_prior_that_cannot_be_is_refused(changes, message) -> None:
    with pytest.raises(NeuralEMError, match=message):
        replace(SINGLE, **changes)


def test_one_model_with_its_background_is_saved_and_loaded(tmp_path) -> None:
    from neural_em import load, save

    model = build(replace(DEEP, prior="background"))
    save(model, tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path / "model.safetensors").background, model.background)
    del model.background
    model.background = None
    others = NeuralEM(DEEP, seed=1).double()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), others.parameters(), strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("changes", [
    {}, {"prior": "background"}, {"gamma_gradient": True}, {"normalize_input": True}, {"prior": 0.3},
    {"channel_rule": "sum"}, {"distribution": "bernoulli", "prior": 0.2}, {"convolutions": (8,), "layer_norm": False},
    {"distribution": "bernoulli", "prior": 0.2, "gamma_gradient": True}, {"height": 28, "width": 28},
])  # fmt: skip
@pytest.mark.parametrize("deviation", [None, 0.6])
def test_the_gpu_kernels_of_colour_equal_the_plain_path_in_float64(changes, deviation) -> None:
    config = replace(DEEP, **changes)
    shape = (4, 3, 3, config.height, config.width)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).cuda()
    results = []
    for twin in (lambda model: model, accelerate):
        model = build(config).cuda()
        if deviation is not None and config.distribution == "gaussian":
            model.deviation = torch.tensor(deviation, dtype=torch.float64, device="cuda")
        x_noisy, gamma = model.draw(x, 5, randomness.keys(0, torch.arange(3)))
        out = twin(model).unroll(x, 5, x_noisy=x_noisy, gamma=gamma)
        out.loss.backward()
        results.append([*(part.detach() for part in out), *(parameter.grad for parameter in model.parameters())])
    for ours, theirs in zip(*reversed(results), strict=True):
        assert (ours - theirs).abs().max() <= 1e-9 * theirs.abs().max()
