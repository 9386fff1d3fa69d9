"""R-NEM's M-step beyond the authors' numbers: any K, any order of the components, the formula written out."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from neural_em import NeuralEM, NeuralEMError
from neural_em.model import ModelConfig
from neural_em.model.fast import accelerate

SMALL = ModelConfig(height=8, width=8, m_step="relational", theta_size=6, convolutions=(4,), hidden=8)


def small(**changes: object) -> NeuralEM:
    model = NeuralEM(dataclasses.replace(SMALL, **changes), seed=3).double()
    with torch.no_grad():  # biases and offsets start at 0, where some mistakes do not show
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


def frames(T: int = 3, B: int = 2) -> torch.Tensor:
    return torch.rand(T, B, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round()


@pytest.mark.parametrize("attention", [True, False])
def test_permuting_the_components_permutes_everything(attention: bool) -> None:
    model, x = small(attention=attention), frames()
    gamma = torch.rand(2, 4, 1, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gamma = gamma / gamma.sum(dim=1, keepdim=True)
    order = torch.tensor([2, 0, 3, 1])
    out, other = (model.unroll(x, 4, x_noisy=x[:-1], gamma=each) for each in (gamma, gamma[:, order]))
    for ours, theirs in ((other.theta, out.theta), (other.psi, out.psi), (other.gamma, out.gamma)):
        torch.testing.assert_close(ours, theirs[:, :, order])
    torch.testing.assert_close(other.total, out.total)
    attentions = [model.m_step.attention(each.theta[-1]) for each in (out, other)]
    torch.testing.assert_close(attentions[1], attentions[0][:, order][:, :, order])


@pytest.mark.parametrize("attention", [True, False])
def test_the_interaction_written_out(attention: bool) -> None:
    """Pair by pair, with the whole weight of the pair's layer."""
    part = small(attention=attention).m_step.interaction
    theta = torch.rand(1, 3, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    encoded, effects, weights = part(theta)
    hidden = part.encode(theta[0])
    torch.testing.assert_close(encoded[0], hidden)
    for k in range(3):
        total = torch.zeros(6, dtype=torch.float64)
        for place, j in enumerate(j for j in range(3) if j != k):
            core = part.core((part.pair.weight @ torch.cat([hidden[k], hidden[j]]) + part.pair.bias)[None])
            weight = torch.sigmoid(part.attend(core))[0, 0] if attention else torch.tensor(1.0).double()
            torch.testing.assert_close(weights[0, k, place], weight)
            total = total + weight * part.effect(core)[0]
        torch.testing.assert_close(effects[0, k], total)


def test_a_single_component_has_nobody_to_look_at() -> None:
    model = small()
    theta = torch.rand(2, 1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    _, effects, _ = model.m_step.interaction(theta)
    assert not effects.any()
    assert model.m_step.attention(theta).tolist() == [[[0.0]], [[0.0]]]
    assert model.unroll(frames(), 1).psi.shape == (2, 2, 1, 1, 8, 8)


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("K", [1, 2, 5])
def test_the_fast_path_computes_the_same(K: int, attention: bool) -> None:
    model, x = small(attention=attention, loss_steps="mean"), frames(T=4)
    gamma = torch.rand(2, K, 1, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gamma = gamma / gamma.sum(dim=1, keepdim=True)
    results = []
    for twin in (model, accelerate(model)):
        model.zero_grad()
        out = twin.unroll(x, K, x_noisy=x[:-1], gamma=gamma)
        out.loss.backward()
        assert out.loss.item() == pytest.approx(out.total.mean().item())
        results.append([*out, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_attention_is_for_the_relational_m_step() -> None:
    with pytest.raises(NeuralEMError, match=r"model\.attention is for model\.m_step=relational, not for recurrent"):
        ModelConfig(attention=False)
