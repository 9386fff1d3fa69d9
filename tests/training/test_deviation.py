"""The E-step's deviation that shrinks in training: against the same steps by hand, and across a stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_em import NeuralEM, randomness
from neural_em.data import DataConfig, load_split
from neural_em.errors import NeuralEMError
from neural_em.model import NoiseConfig
from neural_em.training import TrainingConfig, fit, order
from neural_em.training.step import TrainingStep


def gaussian(tiny: Any, deviation: float = 0.1, distribution: str = "gaussian") -> NeuralEM:
    noise = NoiseConfig("masked-uniform", 0.2)
    config = replace(tiny.model, distribution=distribution, noise=noise, prior="median", e_step_deviation=deviation)
    return NeuralEM(config, seed=3)


@pytest.mark.parametrize("distribution", ["gaussian", "masked"])
@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_it_shrinks_by_the_same_factor_and_then_stays(tiny: Any, engine: Any, distribution: str) -> None:
    """Three epochs of four steps: 0.8 to 0.1 in the first two is 0.8 * 0.125 ** (step / 8), and 0.1 from there on."""
    config = replace(tiny.config, first_deviation=0.8, deviation_epochs=2, engine=engine)
    ours = fit(gaussian(tiny, distribution=distribution), tiny.training, config).model
    model, step = gaussian(tiny, distribution=distribution), 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    best, kept = float("inf"), {}
    for epoch in range(3):
        total = 0.0
        for indices, keys in zip(*order.plan(0, epoch, len(tiny.training), 8), strict=True):
            network = gaussian(tiny, 0.8 * 0.125 ** min(step / 8, 1), distribution)
            network.load_state_dict(model.state_dict())
            x = tiny.training.batch(indices).frames
            x_noisy, gamma = network.draw(x, 2, keys)
            loss = network.unroll(x, 2, x_noisy=x_noisy, gamma=gamma).loss
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            step, total = step + 1, total + float(loss.detach())
        if total < best:
            best, kept = total, {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, kept[name], rtol=1e-4, atol=1e-6)


def test_validation_has_the_models_own(tiny: Any) -> None:
    step = TrainingStep(gaussian(tiny), tiny.training, replace(tiny.config, first_deviation=0.8))
    step(torch.arange(8), randomness.keys(0, torch.arange(8)))
    assert step.model.distribution.deviation == 0.1
    assert step.exact.distribution.deviation == 0.1


def test_goes_on_where_it_stopped(tiny: Any, tmp_path: Path) -> None:
    config = replace(tiny.config, first_deviation=0.8, deviation_epochs=3)
    whole = fit(gaussian(tiny), tiny.training, config, tiny.validation)

    def stop_in_the_second(event: str, info: dict[str, Any]) -> None:
        if event == "steps" and info["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(gaussian(tiny), tiny.training, config, tiny.validation, tmp_path, callbacks=[stop_in_the_second])
    rest = fit(gaussian(tiny), tiny.training, config, tiny.validation, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(rest.model.parameters(), whole.model.parameters(), strict=True))


def test_what_cannot_be_is_refused(tiny: Any) -> None:
    with pytest.raises(
        NeuralEMError, match=r"^training\.first_deviation: expected a number from 0\.001 to 1000, got 0"
    ):
        TrainingConfig(first_deviation=0)
    config = replace(tiny.config, first_deviation=0.8)
    with pytest.raises(NeuralEMError, match=r"^training\.first_deviation is for model\.distribution=gaus"):
        fit(tiny.build(), tiny.training, config)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_step_reads_the_deviation_of_the_moment(tiny: Any) -> None:
    """The graph that the first step recorded gives, at another deviation, the loss of a model that has that one."""
    config = replace(tiny.config, first_deviation=0.8, engine="fast", learning_rate=1e-30)
    shapes = DataConfig("flying-shapes", objects=2, frames=4, height=8, width=14, train_size=34, validation_size=10)
    data, keys = load_split(shapes, "training", 0, "cuda"), randomness.keys(0, torch.arange(8), device="cuda")
    indices = torch.arange(8, device="cuda")
    step = TrainingStep(gaussian(tiny).cuda(), data, config)
    for done, deviation in ((0.0, 0.8), (0.5, 0.8 * 0.125**0.5), (2.0, 0.1)):
        step.set_deviation(done)
        model = gaussian(tiny, deviation).cuda()
        x = data.batch(indices).frames.float()
        x_noisy, gamma = model.draw(x, 2, keys)
        wanted = model.unroll(x, 2, x_noisy=x_noisy, gamma=gamma).loss
        torch.testing.assert_close(step(indices, keys), wanted.detach(), rtol=1e-3, atol=0)
