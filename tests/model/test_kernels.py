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
from neural_em.model.fast.kernels import assignment, folds, images

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
    "three convolutions": replace(GREY, height=16, width=24, convolutions=(3, 17, 5)),
    "colour, three convolutions": replace(COLOUR, height=8, width=16, convolutions=(6, 3, 16)),
}


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Kernels on the CPU, and the names of those that were called."""
    names: set[str] = set()

    def counted(name: str, called: Any) -> Any:
        return lambda *given: (names.add(name), called(*given))[1]

    for name in ("Activation", "Assignment", "MaskedDifference", "ToFeatures", "ToImage"):
        function = getattr(kernels, name)
        monkeypatch.setattr(function, "apply", staticmethod(counted(name, function.apply)))
    for name in ("activation_backward", "image_there", "image_back", "to_image"):
        monkeypatch.setattr(kernels, name, counted(name, getattr(kernels, name)))
    monkeypatch.setattr(twin, "kernels_for", lambda like: kernels)
    return names


def unrolled(model: NeuralEM, twin_of: Any, components: int = 2) -> list[torch.Tensor]:
    """States, losses and gradients of two steps."""
    c = model.config
    x = torch.rand(3, 1, c.channels, c.height, c.width, generator=torch.Generator().manual_seed(5))
    x = x.to(next(model.parameters()).dtype)
    x_noisy, gamma = model.draw(x, components, randomness.keys(0, torch.arange(1)))
    out = twin_of(model).unroll(x, components, x_noisy=x_noisy, gamma=gamma)
    gradients = torch.autograd.grad(out.loss, list(model.parameters())) if out.loss.requires_grad else ()
    return [*(part.detach() for part in out), *gradients]


def assert_equal(config: ModelConfig, components: int = 2) -> None:
    """The kernels' numbers and gradients are the plain path's."""
    model = NeuralEM(config, seed=2).double()
    with torch.no_grad():  # scales, offsets and biases that do something
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)).double()
    plain, fast = unrolled(model, lambda plain: plain, components), unrolled(model, accelerate, components)
    for ours, theirs in zip(fast, plain, strict=True):
        assert (ours - theirs).abs().max() <= 1e-10 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_they_equal_the_plain_path_in_float64(name: str, used: set[str]) -> None:
    assert_equal(CASES[name])
    assert used >= {"Activation", "MaskedDifference", "activation_backward", "image_there", "image_back", "to_image"}


VARIANTS: dict[str, tuple[Any, str, Any, set[str]]] = {  # what is set to what, and kernels that must then be used
    "samples shared out among programs": (assignment, "PROGRAM", 64, {"Assignment"}),
    "several images a program": (images, "PROGRAMS", 1, {"image_there", "image_back"}),
    "no delta ahead": (twin, "AHEAD", False, {"Assignment"}),
    "layers one by one": (images, "USED", False, {"ToFeatures", "ToImage"}),
    "small images in one kernel, large ones not": (images, "LARGEST", 256, {"ToFeatures", "ToImage", "image_there"}),
    "neighbours read": (folds, "USED", False, {"to_image"}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_way_equals_the_plain_path(name: str, used: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module, setting, value, wanted = VARIANTS[name]
    monkeypatch.setattr(module, setting, value)
    assert_equal(replace(GREY, convolutions=(20, 3, 2)), components=3)  # which no program's images divide by
    assert used >= wanted


def test_without_gradients(used: set[str]) -> None:
    with torch.no_grad():
        assert_equal(GREY)
    assert used >= {"image_there"}
    assert "image_back" not in used


@pytest.mark.parametrize("config", [GREY, COLOUR], ids=["grey", "colour"])
def test_bfloat16_points_the_same_way(config: ModelConfig, used: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def wide(a: Any) -> Any:  # the interpreter would multiply the bits of bfloat16 numbers as integers
        return (a.data.astype("uint32") << 16).view("float32") if a.data.dtype == "uint16" else a.data

    def dot(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        return TensorHandle(wide(a) @ wide(b) + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)
    model = NeuralEM(config, seed=2)
    exact = unrolled(model, accelerate)
    coarse = unrolled(model, lambda model: accelerate(model, torch.bfloat16))
    assert used >= {"image_there", "image_back"}
    assert not torch.equal(exact[1], coarse[1])
    for ours, theirs in zip(coarse, exact, strict=True):
        assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.97


def test_random_numbers(used: set[str]) -> None:
    keys = randomness.keys(3, torch.arange(4))
    assert torch.equal(kernels.uniform(keys, 37, 1), randomness.uniform(keys, 37, 1))
