"""Tagger against its formulas in NumPy, against autograd, and for what every model has to keep."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import neural_em
from neural_em import NeuralEMError, randomness
from neural_em.data.dataset import MemoryDataset
from neural_em.model import NoiseConfig, State, build
from neural_em.model.fast import accelerate
from neural_em.model.tagger import Tagger, TaggerConfig, z_gradient
from neural_em.storage.export import export
from neural_em.training import TrainingConfig, fit

TINY = TaggerConfig(height=3, width=2, layers=(5, 4, 3))


def made(config: TaggerConfig = TINY, seed: int = 0) -> Tagger:
    """A model, in double precision, all of whose parameters are random: as built, its outputs are all alike."""
    model = Tagger(config, seed).to(torch.float64)
    generator = torch.Generator().manual_seed(seed + 100)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def images(count: int, config: TaggerConfig = TINY, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, config.height, config.width, generator=generator, dtype=torch.float64).round()


def sigmoid(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


def softmax(a: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(a)
    return e / e.sum(axis=axis, keepdims=True)


def by_hand(
    model: Tagger, before: np.ndarray, z: np.ndarray, m: np.ndarray, x: np.ndarray, clean: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One iteration as its paper writes it, for arrays (B,K,P) and images (B,P): new z, new m, the loss (B,)."""
    w = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    B, K, P = z.shape
    n = 0.2

    def norm(a: np.ndarray) -> np.ndarray:
        axis = 0 if model.config.norm == "batch" else 1
        return (a - a.mean(axis, keepdims=True)) / np.sqrt(a.var(axis, keepdims=True) + 1e-10)

    def g(i: int, lateral: np.ndarray, u: np.ndarray) -> np.ndarray:
        (a1, a6), (a2, a7), (a3, a8), (a4, a9), (a5, a10) = w[f"ladder.combine.{i}.a"]
        mu = a1 * sigmoid(a2 * u + a3) + a4 * u + a5
        v = a6 * sigmoid(a7 * u + a8) + a9 * u + a10
        return (lateral - mu) * v + mu

    x = x[:, None]
    seen = z * (1 - 2 * n) + n
    xi = (m * seen).sum(axis=1, keepdims=True)
    gradient = m * (1 - 2 * n) / (xi - 1 + x)
    soft = seen * (1 - 2e-4) + 1e-4
    likelihood = np.where(x == 1, soft, 1 - soft)
    likelihood = likelihood / likelihood.sum(axis=1, keepdims=True)
    inputs = np.concatenate([before, gradient, m, likelihood], axis=2).reshape(B * K, 4 * P)
    h0 = np.maximum(0, norm(inputs @ w["project.weight"].T) + w["offset"])
    z1 = norm(h0 @ w["ladder.up.0.weight"].T)
    h1 = np.maximum(0, z1 + w["ladder.offsets.0"])
    z2 = norm(h1 @ w["ladder.up.1.weight"].T)
    h2 = softmax((z2 + w["ladder.offsets.1"]) * w["ladder.scale"], axis=1)
    top = g(2, z2, norm(h2))
    middle = g(1, z1, norm(top @ w["ladder.down.1.weight"].T))
    u = g(0, h0, norm(middle @ w["ladder.down.0.weight"].T))
    new_z = sigmoid(w["picture_scale"] * norm(u @ w["picture.weight"].T) + w["picture_offset"]).reshape(B, K, P)
    new_m = softmax((w["mask_scale"] * norm(u @ w["mask.weight"].T)).reshape(B, K, P), axis=1)
    p = (new_m * new_z).sum(axis=1) * (1 - 2e-4) + 1e-4
    return new_z, new_m, -np.where(clean == 1, np.log(p), np.log(1 - p)).mean(axis=1)


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_two_iterations_are_those_worked_out_in_numpy(norm: str) -> None:
    """Three images, two components; the second iteration reads the first one's z before its sigmoid."""
    model = made(dataclasses.replace(TINY, norm=norm))
    clean, noisy = images(3), images(3, seed=2)
    normal = torch.randn(3, 2, 1, 3, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    state = model.start(clean, 2, model.first_assignment(normal))
    z, m = np.full((3, 2, 6), 0.26), softmax(normal.numpy().reshape(3, 2, 6), axis=1)
    before = z
    for _ in range(2):
        state, info = model.step(state, noisy, clean)
        z, m, loss = by_hand(model, before, z, m, noisy.numpy().reshape(3, 6), clean.numpy().reshape(3, 6))
        before = np.log(z / (1 - z))
        np.testing.assert_allclose(state.psi.detach().numpy().reshape(3, 2, 6), z, rtol=1e-8)
        np.testing.assert_allclose(state.gamma.detach().numpy().reshape(3, 2, 6), m, rtol=1e-8)
        np.testing.assert_allclose(info.total.detach().numpy(), loss, rtol=1e-8)


def test_the_loss_is_the_mean_over_iterations() -> None:
    model, x = made(), images(4)
    out = model.unroll(x[None], 3, 4, x_noisy=x.expand(4, -1, -1, -1, -1))
    assert out.loss.item() == pytest.approx(out.total.mean().item(), rel=1e-12)
    assert out.total.shape == (4,)


def test_the_second_input_is_the_gradient_of_the_log_likelihood() -> None:
    """Of log xi where the noisy pixel is 1 and log(1 - xi) where it is 0, by autograd; without noise too."""
    gamma = torch.randn(2, 3, 1, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(dim=1)
    x = images(2).unsqueeze(1)
    for n in (0.2, 0.0):
        psi = torch.rand(2, 3, 1, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        psi.requires_grad_()
        xi = (gamma * (psi * (1 - 2 * n) + n)).sum(dim=1, keepdim=True)
        torch.where(x == 1, xi, 1 - xi).log().sum().backward()
        torch.testing.assert_close(z_gradient(psi.detach(), gamma, x, n), psi.grad)


def test_masks_sum_to_one_and_components_are_alike() -> None:
    """Another order of the first masks gives another order of everything, and nothing else."""
    model, x = made(), images(5)
    normal = torch.randn(5, 4, 1, 3, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    first, order = model.first_assignment(normal), torch.tensor([2, 0, 3, 1])
    noisy = x.expand(3, -1, -1, -1, -1)
    one = model.unroll(x[None], 4, x_noisy=noisy, gamma=first)
    other = model.unroll(x[None], 4, x_noisy=noisy, gamma=first[:, order])
    torch.testing.assert_close(one.gamma.sum(dim=2), torch.ones(3, 5, 1, 3, 2, dtype=torch.float64))
    torch.testing.assert_close(first.sum(dim=1), torch.ones(5, 1, 3, 2, dtype=torch.float64))
    for name in ("theta", "psi", "gamma"):
        torch.testing.assert_close(getattr(other, name), getattr(one, name)[:, :, order])
    torch.testing.assert_close(other.total, one.total)
    assert not torch.allclose(one.gamma[:, :, 0], one.gamma[:, :, 1])


@pytest.mark.parametrize(("norm", "alike"), [("layer", True), ("batch", False)])
def test_only_batch_norm_looks_at_who_shares_the_batch(norm: str, alike: bool) -> None:
    """In evaluation mode as well."""
    model, x = made(dataclasses.replace(TINY, norm=norm)).eval(), images(4)
    keys = randomness.keys(0, torch.arange(4))
    found = []
    for count in (2, 4):
        noisy, gamma = model.draw(x[None, :count], 3, keys[:count])
        found.append(model.unroll(x[None, :count], 3, x_noisy=noisy, gamma=gamma).gamma[-1, :2])
    assert torch.allclose(*found, atol=1e-12) is alike
    assert model.config.batch_matters is not alike
    alone = model.unroll(x[None, :1], 1)  # one component of one image, whose statistics are its own
    torch.testing.assert_close(alone.gamma, torch.ones_like(alone.gamma))


def test_all_iterations_read_the_same_noise() -> None:
    """A fifth of the pixels, with the same ones in each iteration; without keys too."""
    config = TaggerConfig(layers=(5, 4))
    model = Tagger(config)
    x = torch.zeros(1, 50, 1, 20, 20)
    noisy, _ = model.draw(x, 2, randomness.keys(0, torch.arange(50)), 4)
    assert noisy.shape == (4, 50, 1, 20, 20)
    assert torch.equal(noisy, noisy[:1].expand_as(noisy))
    assert 0.19 < float(noisy.mean()) < 0.21
    assert not torch.equal(noisy[0, 0], noisy[0, 1])
    drawn = model.add_noise(x.expand(3, -1, -1, -1, -1), torch.Generator().manual_seed(0))
    assert torch.equal(drawn[0], drawn[2])


def test_its_weights_are_those_of_the_paper() -> None:
    """Counted by hand; and drawn with a variance of one over the inputs."""
    model = Tagger()
    dense = 4 * 400 * 2000 + 2 * (2000 * 1000 + 1000 * 500) + 2 * 2000 * 400
    others = 2000 + 1000 + 2 * 500 + 10 * (2000 + 1000 + 500) + 2 * 400 + 1
    assert sum(parameter.numel() for parameter in model.parameters()) == dense + others == 9_839_801
    for layer in (model.project, model.picture, model.ladder.up[1]):
        weight = layer.weight.detach()
        assert float(weight.std() * weight.shape[1] ** 0.5) == pytest.approx(1, abs=0.01)
    assert torch.equal(Tagger(TINY, 3).project.weight, Tagger(TINY, 3).project.weight)
    assert not torch.equal(Tagger(TINY, 3).project.weight, Tagger(TINY, 4).project.weight)


def test_it_comes_back_from_a_file(tmp_path: Path) -> None:
    model = build(dataclasses.replace(TINY, norm="batch", noise=NoiseConfig("bit-flips", 0.1)), seed=2)
    neural_em.save(model, tmp_path / "tagger.safetensors")
    again = neural_em.load(tmp_path / "tagger.safetensors")
    assert type(again) is Tagger
    assert again.config == model.config
    x, gamma = images(2).float(), torch.full((2, 2, 1, 3, 2), 0.5)
    state = State(torch.zeros(2, 2, 6), gamma, gamma)
    for one, other in zip(model.step(state, x, x), again.step(state, x, x), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True) if a is not None)
    with pytest.raises(NeuralEMError, match=r"^export: a model with model\.kind=tagger cannot be exported yet$"):
        export(model, tmp_path / "exported")


def test_the_fast_path_leaves_it_as_it_is() -> None:
    model = Tagger(TINY)
    assert accelerate(model) is model
    with pytest.raises(NeuralEMError, match=r"^dtype=torch.bfloat16 is not for a Tagger"):
        accelerate(model, torch.bfloat16)


def rows(count: int, seed: int) -> MemoryDataset:
    """Two of five rows of four pixels are on: what belongs together has to be learned."""
    frames = torch.zeros(count, 1, 1, 5, 4, dtype=torch.uint8)
    groups = torch.zeros(count, 1, 5, 4, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(seed)
    for i in range(count):
        for k, row in enumerate(torch.randperm(5, generator=generator)[:2].tolist()):
            frames[i, 0, 0, row], groups[i, 0, row] = 1, k + 1
    return MemoryDataset(frames, groups, levels=1)


def test_it_learns_to_group_what_it_was_never_told() -> None:
    """Chance is 0; it comes to about 0.35."""
    model = Tagger(TaggerConfig(height=5, width=4, layers=(40, 20, 10)))
    training = TrainingConfig(components=2, batch_size=50, epochs=4, learning_rate=0.01, patience=None)
    first, *_, last = fit(model, rows(1000, 0), training, validation=rows(200, 1)).progress.rows
    assert last.validation_loss is not None
    assert first.validation_loss is not None
    assert last.validation_loss < 0.85 * first.validation_loss
    assert last.ami_last is not None
    assert last.ami_last > 0.15


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "group"}, r"model\.norm: expected one of layer, batch, got 'group'"),
        ({"layers": (5,)}, r"model\.layers: expected the units of 2 to 12 layers, got 1"),
        ({"layers": ()}, r"model\.layers: expected the units of at least two layers"),
        ({"start": 1.5}, r"model\.start: expected a number between 0 and 1"),
        ({"noise": NoiseConfig("masked-uniform", 0.2)}, r"model\.noise: expected none, or bit-flips .*, got masked"),
        ({"noise": NoiseConfig("bit-flips", 0.5)}, r"model\.noise: expected none, or bit-flips with a .* below 0"),
        ({"kind": "neural-em"}, r"model\.kind: expected 'tagger', the kind of TaggerConfig, got 'neural-em'"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(NeuralEMError, match=f"^{message}"):
        TaggerConfig(**changes)  # type: ignore[arg-type]
