"""The GPU's fused kernels on a CPU, by Triton's own interpreter: what they compute, not how fast.

Skipped where Triton is not installed (`pip install triton`, Linux), and on machines with a GPU, where the tests marked
`gpu` compile them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("the compiled kernels are tested instead", allow_module_level=True)
os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import
pytest.importorskip("triton")

from neural_em import randomness
from neural_em.model import ModelConfig, NeuralEM, NoiseConfig
from neural_em.model.fast import accelerate, kernels, twin

COLOUR = ModelConfig(
    channels=3, height=8, width=8, theta_size=5, convolutions=(4, 6), hidden=7, distribution="gaussian",
    prior="median", e_step_deviation=0.3, noise=NoiseConfig("masked-uniform", 0.2, shared=True), inter_weight=0.2,
)  # fmt: skip
GREY = replace(COLOUR, channels=1, distribution="bernoulli", prior=0.0, noise=NoiseConfig("bit-flips", 0.2))
CASES = {
    "grey": GREY,
    "grey, relational": replace(GREY, m_step="relational"),
    "grey, through gamma": replace(GREY, gamma_gradient=True),
    "grey, normalised": replace(GREY, distribution="gaussian", normalize_input=True),
    "colour": COLOUR,
    "colour, through gamma": replace(COLOUR, gamma_gradient=True),
    "colour, background": replace(COLOUR, prior="background"),
    "colour, a number": replace(COLOUR, prior=0.3),
    "colour, in blocks": replace(COLOUR, height=10, width=12, prior=0.3, gamma_gradient=True),
}


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Kernels on the CPU, and the names of those that were called."""
    names: set[str] = set()
    for name in ("Activation", "Assignment", "MaskedDifference", "ToFeatures", "ToImage"):
        function = getattr(kernels, name)

        def counted(*given: Any, name: str = name, apply: Any = function.apply) -> Any:
            names.add(name)
            return apply(*given)

        monkeypatch.setattr(function, "apply", staticmethod(counted))
    monkeypatch.setattr(twin, "kernels_for", lambda like: kernels)
    return names


def unrolled(model: NeuralEM, twin_of: Any) -> list[torch.Tensor]:
    """States, losses and gradients of two steps."""
    c = model.config
    x = torch.rand(3, 1, c.channels, c.height, c.width, generator=torch.Generator().manual_seed(5)).double()
    x_noisy, gamma = model.draw(x, 2, randomness.keys(0, torch.arange(1)))
    out = twin_of(model).unroll(x, 2, x_noisy=x_noisy, gamma=gamma)
    gradients = torch.autograd.grad(out.loss, list(model.parameters()))
    return [*(part.detach() for part in out), *gradients]


@pytest.mark.parametrize("name", CASES)
def test_they_equal_the_plain_path_in_float64(name: str, used: set[str]) -> None:
    model = NeuralEM(CASES[name], seed=2).double()
    plain, fast = unrolled(model, lambda plain: plain), unrolled(model, accelerate)
    assert used >= {"Activation", "MaskedDifference"}
    for ours, theirs in zip(fast, plain, strict=True):
        assert (ours - theirs).abs().max() <= 1e-10 * max(1.0, float(theirs.abs().max()))


def test_random_numbers(used: set[str]) -> None:
    keys = randomness.keys(3, torch.arange(4))
    assert torch.equal(kernels.uniform(keys, 37, 1), randomness.uniform(keys, 37, 1))
