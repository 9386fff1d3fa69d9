"""Frames, sizes and lengths at the edge of what can be: everything that comes out is finite, gradients too."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from neural_em import ModelConfig, NeuralEM, randomness
from neural_em.model import PRESETS
from neural_em.model.fast import accelerate
from tests.tiny import NETWORKS

TWINS = {"plain": lambda model: model, "fast": accelerate}
FRAMES = {
    "all zero": lambda x: x,
    "all one": lambda x: x + 1,
    "one pixel": lambda x: x.index_fill(3, torch.tensor([0]), 1.0) * x.index_fill(4, torch.tensor([0]), 1.0),
}


def narrow(name: str, **changes: object) -> ModelConfig:
    """One of the networks, a few units wide."""
    config = PRESETS[name]
    sizes = {"theta_size": 3, "hidden": 4 if config.hidden else 0, "convolutions": (2,) * len(config.convolutions)}
    return dataclasses.replace(config, **{**sizes, **changes})


def check(config: ModelConfig, twin: str, x: torch.Tensor, K: int, T: int, gradients: bool = True) -> None:
    """Unrolls the model on the frames, goes back through it, and looks at every number."""
    model = NeuralEM(config, seed=1).to(x.dtype)
    x = model.frames(x, T)
    x_noisy, gamma = model.draw(x, K, randomness.keys(0, torch.arange(x.shape[1])))
    out = TWINS[twin](model).unroll(x, K, x_noisy=x_noisy, gamma=gamma)
    for name, value in out._asdict().items():
        assert bool(value.isfinite().all()), name
    slack = torch.finfo(x.dtype).eps * K
    assert float((out.gamma.sum(dim=2) - 1).abs().max()) <= 4 * slack
    assert len(out.gamma) == T
    if gradients:
        out.loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is None or bool(parameter.grad.isfinite().all()), name


def frames(config: ModelConfig, kind: str, T: int = 1, B: int = 2, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return FRAMES[kind](torch.zeros(T, B, config.channels, config.height, config.width, dtype=dtype))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("name", NETWORKS)
def test_frames_without_anything_in_them(name: str, kind: str, twin: str) -> None:
    config = narrow(name)
    check(config, twin, frames(config, kind), K=3, T=4)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("name", NETWORKS)
def test_frames_without_anything_in_them_in_other_precisions(
    name: str, kind: str, dtype: torch.dtype, twin: str
) -> None:
    config = narrow(name)
    with torch.no_grad():
        check(config, twin, frames(config, kind, dtype=dtype), K=3, T=4, gradients=False)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("size", [(1, 1), (1, 512), (512, 512)], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_frames_of_one_pixel_and_of_many(name: str, size: tuple[int, int], twin: str) -> None:
    config = narrow(name, height=size[0], width=size[1])
    x = torch.rand(1, 1, config.channels, *size, generator=torch.Generator().manual_seed(0)).round()
    check(config, twin, x, K=2, T=2)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("K", [1, 64])
@pytest.mark.parametrize("name", NETWORKS)
def test_one_component_and_many(name: str, K: int, twin: str) -> None:
    config = narrow(name, height=8, width=8)
    check(config, twin, frames(config, "one pixel"), K, T=3)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("T", [1, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NETWORKS)
def test_one_step_and_a_thousand(name: str, T: int, twin: str) -> None:
    """A single image for so long, with fresh noise at each step; back through a thousand steps where that is cheap."""
    config = narrow(name, height=6, width=6)
    check(config, twin, frames(config, "one pixel", B=1), K=2, T=T, gradients=T == 1 or not config.convolutions)
