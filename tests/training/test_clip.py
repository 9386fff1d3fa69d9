"""Gradients that are cut to a length: against the same steps by hand, with several processes, and on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from neural_em import randomness
from neural_em.data import DataConfig, load_split
from neural_em.training import fit, order
from neural_em.training.step import TrainingStep


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_a_longer_gradient_is_shortened_and_a_shorter_one_left(tiny: Any, engine: Any) -> None:
    """Adam by hand on gradients divided by their length where that is above the limit, which some are and some not."""
    lengths = _by_hand(tiny, float("inf"))[0]
    limit = sorted(lengths)[len(lengths) // 2]
    lengths, weights = _by_hand(tiny, limit)
    assert min(lengths) < limit < max(lengths)
    config = replace(tiny.config, clip=limit, engine=engine, precision="float64", epochs=1)
    ours = fit(tiny.build(), tiny.training, config).model
    for mine, theirs in zip(ours.parameters(), weights, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-6)
    without = fit(tiny.build(), tiny.training, replace(config, clip=None)).model
    assert not torch.allclose(next(without.parameters()).double(), weights[0], rtol=1e-5, atol=1e-6)


def _by_hand(tiny: Any, limit: float) -> tuple[list[float], list[torch.Tensor]]:
    model, lengths = tiny.build().double(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=tiny.config.learning_rate)
    for indices, keys in zip(*order.plan(0, 0, len(tiny.training), 8), strict=True):
        x = tiny.training.batch(indices).frames.double()
        x_noisy, gamma = model.draw(x, 2, keys)
        gradients = torch.autograd.grad(model.unroll(x, 2, x_noisy=x_noisy, gamma=gamma).loss, list(model.parameters()))
        lengths.append(float(sum(gradient.square().sum() for gradient in gradients) ** 0.5))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient * min(1.0, limit / lengths[-1])
        optimizer.step()
    return lengths, [parameter.detach() for parameter in model.parameters()]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_step_clips(tiny: Any) -> None:
    """The step as a graph leaves the gradients that one on the CPU leaves, as long as the limit."""
    shapes = DataConfig("flying-shapes", objects=2, frames=4, height=8, width=14, train_size=34, validation_size=10)
    config = replace(tiny.config, clip=0.5, precision="float64")
    left = {}
    for device in ("cpu", "cuda"):
        indices = torch.arange(8, device=device)
        step = TrainingStep(tiny.build().double().to(device), load_split(shapes, "training", 0, device), config)
        for _ in range(2):
            step(indices, randomness.keys(0, indices, device=device))
        left[device] = torch.cat([parameter.grad.cpu().flatten() for parameter in step.model.parameters()])
    assert float(left["cpu"].norm()) == pytest.approx(0.5, rel=1e-5)
    torch.testing.assert_close(left["cuda"], left["cpu"], rtol=1e-5, atol=1e-8)
