"""The GPU's fused kernels on a CPU, by Triton's own interpreter: what they compute, not how fast.

Skipped where Triton is not installed (`pip install triton`, Linux), and on machines with a GPU, where the tests marked
`gpu` compile them.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

if torch.cuda.is_available():
    pytest.skip("the compiled kernels are tested instead", allow_module_level=True)
os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import
pytest.importorskip("triton")

from neural_em import randomness
from neural_em.model import ModelConfig, NeuralEM, NoiseConfig
from neural_em.model.fast import accelerate, kernels, twin
from neural_em.model.fast.activation import FastActivation
from neural_em.model.fast.gathering import StepMemory
from neural_em.model.fast.kernels import assignment, edges, pairs, sums, window
from neural_em.model.networks import Activation
from neural_em.model.window import windowed
from neural_em.training import adam as training_adam
from tests.model.test_fast import NESTED, losses_and_gradients, nested

COLOUR = ModelConfig(
    channels=3, height=8, width=8, theta_size=5, convolutions=(4, 6), hidden=7, distribution="gaussian",
    prior="median", e_step_deviation=0.3, noise=NoiseConfig("masked-uniform", 0.2, shared=True), inter_weight=0.2,
)  # fmt: skip
GREY = replace(COLOUR, channels=1, distribution="bernoulli", prior=0.0, noise=NoiseConfig("bit-flips", 0.2))
MASKED = replace(COLOUR, distribution="masked", window=0.4)
CASES = {
    "grey": GREY,
    "grey, relational": replace(GREY, m_step="relational"),
    "grey, through gamma": replace(GREY, gamma_gradient=True),
    "grey, normalised": replace(GREY, distribution="gaussian", normalize_input=True),
    "colour": COLOUR,
    "colour, through gamma": replace(COLOUR, gamma_gradient=True),
    "colour, background": replace(COLOUR, prior="background"),
    "colour, a number": replace(COLOUR, prior=0.3),
    "masked, in windows": MASKED,
    "masked, of one colour, in windows": replace(MASKED, one_colour=True),
    "masked, of one colour": replace(MASKED, one_colour=True, window=None),
    "masked, through gamma": replace(MASKED, gamma_gradient=True, window=None),
    "masked, in windows, through gamma": replace(MASKED, gamma_gradient=True),
    "grey, in windows": replace(GREY, window=0.4),
}
KERNELS = ("Activation", "Assignment", "Heeded", "MaskedDifference", "ToFeatures", "ToImage", "Window")


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Kernels on the CPU, and how often each was called."""
    names: Counter[str] = Counter()
    for name in KERNELS:
        function = getattr(kernels, name)

        def counted(*given: Any, name: str = name, apply: Any = function.apply) -> Any:
            names[name] += 1
            return apply(*given)

        monkeypatch.setattr(function, "apply", staticmethod(counted))
    monkeypatch.setattr(twin, "kernels_for", lambda like: kernels)
    return names


def unrolled(model: NeuralEM, twin_of: Any, singly: bool = False, B: int = 1, K: int = 2) -> list[torch.Tensor]:
    """States, losses and gradients of two steps, at once or one by one."""
    c, each = model.config, twin_of(model)
    x = torch.rand(3, B, c.channels, c.height, c.width, generator=torch.Generator().manual_seed(5))
    x = x.to(next(model.parameters()))
    x_noisy, gamma = model.draw(x, K, randomness.keys(0, torch.arange(B)))
    if singly:
        state, loss = each.start(x[0], K, gamma=gamma), torch.zeros(())
        for t in range(2):
            state, info = each.step(state, x_noisy[t], x[t + 1])
            loss = loss + info.total.sum()
        out = [part for part in (*state, *info, loss) if part is not None]
    else:
        out = list(each.unroll(x, K, x_noisy=x_noisy, gamma=gamma))
        loss = out[-1]
    return [*(part.detach() for part in out), *torch.autograd.grad(loss, list(model.parameters()))]


def assert_equal(config: ModelConfig, **how: Any) -> None:
    """The kernels' numbers and gradients are the plain path's."""
    model = NeuralEM(config, seed=2).double()
    with torch.no_grad():  # scales, offsets and biases that do something
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)).double()
    plain, fast = unrolled(model, lambda plain: plain, **how), unrolled(model, accelerate, **how)
    for ours, theirs in zip(fast, plain, strict=True):
        assert (ours - theirs).abs().max() <= 1e-10 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_they_equal_the_plain_path_in_float64(name: str, used: Counter[str]) -> None:
    assert_equal(CASES[name])
    e_step = name != "colour, background"  # that prior is not for the kernel
    assert set(used) | {"Assignment", "Heeded", "Window"} == set(KERNELS)
    assert used["Window"] == 2 * ("windows" in name)
    assert used["Heeded"] == 2 * ("relational" in name)
    assert used["Assignment"] == 2 * e_step
    assert used["MaskedDifference"] == 2 - e_step  # the E-step makes the next step's delta


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("K", [2, 4])
def test_any_number_of_components_see_each_other(K: int, attention: bool, used: Counter[str]) -> None:
    assert_equal(replace(GREY, m_step="relational", attention=attention), B=3, K=K)
    assert used["Heeded"] == 2 * attention


def test_a_hook_put_on_later_sees_the_attention(used: Counter[str]) -> None:
    model = NeuralEM(CASES["grey, relational"], seed=2).double()
    fast, seen = accelerate(model), []
    unrolled(model, lambda plain: fast, K=3)  # the twin is made before there is a hook
    hook = model.m_step.interaction.register_forward_hook(lambda module, given, out: seen.append((given[0], out[2])))
    unrolled(model, lambda plain: fast, K=3)
    hook.remove()
    assert used["Heeded"] == 2  # in the first unroll alone
    for theta, attention in seen:
        assert torch.allclose(attention, model.m_step.interaction(theta)[2], atol=1e-12)
    assert [tuple(attention.shape) for _, attention in seen] == [(1, 3, 2)] * 2


def test_pairs_in_half_precision_are_rounded_only_once() -> None:
    made = torch.Generator().manual_seed(1)
    halves, bias = (torch.randn(*shape, generator=made).bfloat16() for shape in ((2, 3, 14), (14,)))
    own, other = halves.float().chunk(2, dim=2)
    joined = kernels.join(halves, bias[::2])
    for k, others in enumerate(((1, 2), (0, 2), (0, 1))):
        wanted = own[:, k, None] + bias[::2].float() + other[:, others]
        assert ((joined[:, k] - wanted).abs() <= wanted.abs() / 2**7).all()  # the interpreter rounds towards 0


def test_more_pairs_than_a_program_holds_go_the_plain_way(used: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "LARGEST", 16)  # of a theta of five, filled up to eight: two others
    assert_equal(CASES["grey, relational"], B=2, K=3)
    assert used["Heeded"] == 2
    assert_equal(CASES["grey, relational"], B=2, K=4)
    assert used["Heeded"] == 2


@pytest.mark.parametrize("name", ["grey, through gamma", "colour, through gamma", "masked, of one colour, in windows"])
def test_single_steps_equal_the_plain_ones(name: str, used: Counter[str]) -> None:
    assert_equal(CASES[name], singly=True)
    assert used["MaskedDifference"] == 2


@pytest.mark.parametrize(("name", "singly"), [("grey, through gamma", True), ("colour, through gamma", False)])
def test_a_sample_may_be_shared_out_among_programs(name: str, singly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "PROGRAM", 64)
    assert_equal(replace(CASES[name], convolutions=()), singly=singly, B=2, K=3)


def masked_step(model: Any, K: int, coming: bool, spread: float = 1.0) -> list[torch.Tensor]:
    """What a model makes of random eta, and the gradient of eta by all of it that has any."""
    c, made = model.config, torch.Generator().manual_seed(3)
    x, x_noisy = torch.rand(2, 2, c.channels, c.height, c.width, generator=made).double()
    eta = spread * torch.randn(2, K, c.channels + 1, c.height, c.width, generator=made).double()
    eta.requires_grad_()
    if coming and isinstance(model, twin.FastNeuralEM):
        model.coming = iter([x_noisy])
    psi, gamma, info = model.assign(eta, x)
    out = [psi, gamma, info.total, model.difference(x_noisy, psi, gamma)]
    loss = sum((torch.randn(part.shape, generator=made).double() * part).sum() for part in out)
    return [*out, *info, *torch.autograd.grad(loss, eta)]


@pytest.mark.parametrize("gamma_gradient", [False, True])
@pytest.mark.parametrize("coming", [False, True])
@pytest.mark.parametrize(("C", "K", "size"), [(1, 1, (5, 7)), (3, 2, (7, 5)), (1, 5, (4, 4)), (3, 5, (9, 11))], ids=str)
def test_masked_pixels(
    C: int, K: int, size: tuple[int, int], coming: bool, gamma_gradient: bool, used: Counter[str]
) -> None:
    """Of one program, which they do not fill, or of several."""
    config = replace(MASKED, channels=C, height=size[0], width=size[1], convolutions=(), prior=0.2)
    model = NeuralEM(replace(config, gamma_gradient=gamma_gradient), seed=2).double()
    for deviation in (None, torch.tensor(0.2, dtype=torch.float64)):  # the config's, and one that training changes
        model.deviation = deviation
        fast, plain = (masked_step(each, K, coming) for each in (accelerate(model), model))
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)
    assert used["Assignment"] == 2
    assert used["MaskedDifference"] == 2 * (not coming)


def test_masked_pixels_that_no_component_expects(used: Counter[str]) -> None:
    """Log-odds and colours in the hundreds, as windows and early training make them."""
    model = NeuralEM(replace(MASKED, convolutions=(), gamma_gradient=True), seed=2).double()
    fast, plain = (masked_step(each, 3, True, spread=300.0) for each in (accelerate(model), model))
    assert all(bool(part.isfinite().all()) for part in fast)
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)
    assert used["Assignment"] == 1


@pytest.mark.parametrize(("C", "size"), [(1, (3, 5)), (4, (7, 6)), (2, (10, 9))], ids=str)
def test_windows(C: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_BLOCK", 32)  # the larger images are read in parts
    eta, weight = torch.randn(2, 2, 3, C, *size, generator=torch.Generator().manual_seed(4)).double()
    results = []
    for confined in (windowed, lambda eta, share: kernels.Window.apply(eta, share, StepMemory(1))):
        given = (2 * eta).requires_grad_()
        out = confined(given, 0.4)
        results.append([out, *torch.autograd.grad((out * weight).sum(), given)])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("changes", [{"channels": kernels.CHANNELS}, {"prior": "background"}], ids=str)
def test_masked_pixels_that_are_not_for_the_kernel_stay_on_the_plain_path(
    changes: dict[str, Any], used: Counter[str]
) -> None:
    assert_equal(replace(MASKED, convolutions=(), **changes))
    assert not used["Assignment"]
    assert used["Window"] == 2 * ("channels" not in changes)


@pytest.mark.parametrize("shape", [(32, 32, 32), (20, 30, 30), (32768,)], ids=str)
def test_layer_norm_of_the_largest_samples(shape: tuple[int, ...], used: Counter[str]) -> None:
    layer, made = Activation(shape[0], "elu").double(), torch.Generator().manual_seed(3)
    x, weight = (torch.randn(2, *shape, generator=made).double() for _ in range(2))
    results = []
    for each in (layer, FastActivation(layer, kernels, None)):
        given = x.clone().requires_grad_()
        y = each(given)
        results.append((y, *torch.autograd.grad((y * weight).sum(), (given, *layer.parameters()))))
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-10)
    assert used["Activation"] == 1


@pytest.mark.parametrize("tensor", [False, True], ids=["fixed rate", "rate in memory"])
def test_adam_on_large_parameters_is_pytorchs(tensor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside small ones, and one whose gradient does not lie in one piece, which PyTorch moves."""
    monkeypatch.setattr(training_adam, "LARGE", 3000)
    adam, moved = kernels.adam, []

    def counted(weight: torch.Tensor, *given: Any, moves: bool = True) -> None:
        adam(weight, *given, moves=moves)
        moved.extend([weight.data_ptr()] * moves)

    monkeypatch.setattr(kernels, "adam", counted)
    made = torch.Generator().manual_seed(3)
    first = [torch.randn(size, generator=made).double() for size in ((70, 50), (9,), (60, 60))]
    ours, theirs = ([nn.Parameter(each.clone()) for each in first] for _ in range(2))
    rate = torch.tensor(0.01, dtype=torch.float64) if tensor else 0.01
    own, torchs = training_adam.Adam(ours, rate, kernels), torch.optim.Adam(theirs, lr=rate, foreach=False)

    def gradients(step: int) -> None:
        for mine, other in zip(ours, theirs, strict=True):
            g = torch.randn(mine.shape[::-1], generator=made).double() * 10.0 ** (-2 * step)
            g = g.mT if g.dim() == 2 else g
            mine.grad, other.grad = (g if mine is ours[2] else g.contiguous()), g.contiguous()

    for step in range(5):
        if tensor:
            rate.fill_(0.01 / (step + 1))  # type: ignore[union-attr]
        own.step(functools.partial(gradients, step))
        torchs.step()
        assert all(parameter.grad is not None for parameter in ours)
    assert moved == 5 * [ours[0].data_ptr()]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.state[mine], torchs.state[other], rtol=1e-12, atol=0)


@pytest.mark.parametrize("where", NESTED)
def test_chains_in_chains(where: str) -> None:
    model = NeuralEM(replace(GREY, layer_norm=True, convolutions=(4, 6), hidden=7), seed=1)
    plain, fast = losses_and_gradients(nested(model, where))
    torch.testing.assert_close(fast, plain)


def test_random_numbers(used: Counter[str]) -> None:
    keys = randomness.keys(3, torch.arange(4))
    assert torch.equal(kernels.uniform(keys, 37, 1), randomness.uniform(keys, 37, 1))


@pytest.mark.parametrize("shape", [(1, 1), (33, 1), (5, 300), (5000, 3), (300, 300)], ids=str)
def test_sums_of_columns(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few rows and of many, one behind another or apart."""
    monkeypatch.setattr(sums, "_PROGRAMS", 4)  # with several tiles for each
    monkeypatch.setattr(sums, "_FEW", 32)
    numbers = torch.randint(-9, 9, (shape[0], 2 * shape[1]), generator=torch.Generator().manual_seed(3))
    for x in (numbers[:, : shape[1]], numbers[:, ::2], numbers[:, : shape[1]].contiguous()):
        for dtype, wide in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
            made = kernels.column_sums(x.to(dtype))
            assert made.dtype == wide
            assert torch.equal(made, x.sum(0).to(wide))


@pytest.mark.parametrize(("patch", "padding"), [((4, 1), 1), ((5, 2), 2)], ids=str)
@pytest.mark.parametrize(("N", "C", "size"), [(1, 1, (2, 4)), (40, 3, (6, 4)), (7, 1, (28, 28))], ids=str)
def test_gradients_of_the_outer_weights(
    N: int, C: int, size: tuple[int, int], patch: tuple[int, int], padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges, "_PROGRAMS", 4)  # with several tiles for each
    made = torch.Generator().manual_seed(3)
    x = torch.randn(N, C, *size, generator=made).double()
    y = torch.randn(N, 6, size[0] // 2, size[1] // 2, generator=made).double()
    weight = torch.zeros(6, C, patch[0], patch[0]).double().requires_grad_()
    padded = torch.nn.functional.pad(x, (padding, 3, padding, 3))
    out = torch.nn.functional.conv2d(padded, weight, stride=2)[:, :, : y.shape[2], : y.shape[3]]
    wanted = torch.autograd.grad((out * y).sum(), weight)[0].permute(2, 3, 1, 0).flatten(0, 2)
    torch.testing.assert_close(kernels.patches_by_features(x, y, patch), wanted, rtol=1e-10, atol=1e-10)
