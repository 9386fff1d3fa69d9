"""The kernels for whole images on a CPU, where an emulator takes the GPU's place: what they compute, not how fast.

Skipped where Triton or a C++ compiler is missing; on a machine with a GPU the tests marked `gpu` run them.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from neural_em.model import ModelConfig, NeuralEM
from neural_em.model.fast import accelerate
from neural_em.model.fast.convolutions import interleave
from neural_em.model.networks import Convolution, UpConvolution
from tests.model.test_kernels import GREY, kernels, twin, unrolled

COMPILER = shutil.which("c++") or shutil.which("g++")
if not COMPILER:
    pytest.skip("needs a C++ compiler", allow_module_level=True)
SOURCES = Path(kernels.__file__).parent
FLYING = replace(GREY, convolutions=(32, 64), noise=replace(GREY.noise, shared=False))


BLOCKS = 2  # so that some have more images than slots


def slots(side: int) -> int:
    """Images of a block."""
    return 1 + side % 3


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernels, compiled for a CPU, by the smallest image's side, the operands' type and images of a block."""
    folder = tmp_path_factory.mktemp("emulator")

    @functools.cache
    def library(side: int, dtype: torch.dtype, slots: int) -> ctypes.CDLL:
        made, half = folder / f"{side}-{dtype}-{slots}.so", dtype == torch.float16
        sizes = {"S": side, "E": dtype.itemsize, "W": 4 if half else dtype.itemsize, "HALF": int(half), "SLOTS": slots}
        how = ["-std=c++17", "-O1", "-shared", "-fPIC", *(f"-D{name}={value}" for name, value in sizes.items())]
        source = str(Path(__file__).parent / "emulator.cpp")
        subprocess.run([str(COMPILER), *how, f"-I{SOURCES}", "-o", str(made), source], check=True)
        return ctypes.CDLL(str(made))

    return library


@pytest.fixture(autouse=True)
def used(emulator: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Kernels on the CPU, and how often each was started."""
    names: Counter[str] = Counter()

    def launch(name: str, dtype: torch.dtype, side: int, N: int, *arguments: Any) -> None:
        names[name] += 1
        pointers = [ctypes.c_void_p(None if each is None else each.data_ptr()) for each in arguments]
        values = [*pointers, ctypes.c_int(N)]
        assert arguments[0].data_ptr() % 16 == 0  # a GPU reads so many bytes at once
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        library = emulator(side, dtype, 2 if name.endswith("weights") else slots(side))
        library.run(name.encode(), BLOCKS, places)

    monkeypatch.setattr(kernels.images, "launch", launch)
    monkeypatch.setattr(kernels.images, "blocks", lambda *given: BLOCKS)
    monkeypatch.setattr(kernels.images, "usable", lambda *given: True)
    monkeypatch.setattr(kernels.images, "operands", lambda dtype: dtype)
    monkeypatch.setattr(twin, "kernels_for", lambda like: kernels)
    return names


def model_of(config: ModelConfig) -> NeuralEM:
    """With scales, offsets and biases that do something."""
    model = NeuralEM(config, seed=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7))
    return model


@pytest.mark.parametrize(
    ("side", "more", "B", "K"),
    [(4, (), 3, 3), (8, (), 1, 2), (12, (), 3, 2), (16, (), 3, 3), (28, (), 1, 2), (24, (8,), 1, 2), (13, (), 1, 2)],
)
def test_they_equal_the_plain_path(side: int, more: tuple[int, ...], B: int, K: int, used: Counter[str]) -> None:
    """Also as the outer layers of deeper networks, and for images that are filled up."""
    config = replace(FLYING, height=side, width=side, convolutions=(32, 64, *more))
    fast = unrolled(model_of(config), accelerate, B=B, K=K)
    plain = unrolled(model_of(config).double(), lambda model: model, B=B, K=K)
    assert used == dict.fromkeys(kernels.images.NAMES, 2)
    for ours, theirs in zip(fast, plain, strict=True):
        assert (ours - theirs).abs().max() <= 1e-4 * max(1.0, float(theirs.abs().max()))


def ten_bits(x: torch.Tensor) -> torch.Tensor:
    """Rounded to what TF32 keeps, with whatever exponent."""
    fraction, exponent = torch.frexp(x.detach())
    return x + (torch.ldexp((fraction * 2**11).round() / 2**11, exponent) - x).detach()


class Coarse(torch.autograd.Function):
    """A convolution whose operands are rounded there and back."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: None = None, stride: int = 1, padding: int = 0
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = stride, padding
        return F.conv2d(ten_bits(x), ten_bits(weight), None, stride, padding)

    @staticmethod
    def backward(ctx: Any, *gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, weight), g = ctx.saved_tensors, ten_bits(gradient[0])
        back = torch.nn.grad.conv2d_input(x.shape, ten_bits(weight), g, *ctx.how)
        return back, torch.nn.grad.conv2d_weight(ten_bits(x), weight.shape, g, *ctx.how), None, None, None


def through(layers: Any, convolve: Any, x: torch.Tensor) -> torch.Tensor:
    """Plain outer layers, with another product in their convolutions."""
    for layer in layers:
        if isinstance(layer, UpConvolution):
            x = convolve(F.pad(F.interpolate(x, scale_factor=2, mode="nearest"), (1, 2, 1, 2)), layer.weight)
        elif isinstance(layer, Convolution):
            x = convolve(x, layer.weight, None, 2, 1)
        else:
            x = layer(x)
        if isinstance(layer, Convolution):
            x = x + layer.bias.view(-1, 1, 1)
    return x


@pytest.mark.parametrize("part", ["encoder", "decoder"])
@pytest.mark.parametrize(("images", "weights", "gradients"), [(1, 1, 1), (1e-5, 1e6, 1e-12), (1e7, 1e-6, 1e9)])
def test_16_bit_floats_are_as_exact_as_tf32(
    part: str, images: float, weights: float, gradients: float, used: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large images, weights and gradients are, and with images of very different sizes side by side."""
    monkeypatch.setattr(kernels.images, "operands", lambda dtype: torch.float16)
    model = model_of(replace(FLYING, height=28, width=28))
    layers = getattr(model.m_step, part).convolutions
    with torch.no_grad():
        layers[0].weight *= weights
        layers[0].bias.zero_()  # nothing but the product is normalised
        if part == "decoder":
            layers[1].offset += 6  # no number is so near to zero that rounding takes it to the other side
    twin_of, made = getattr(accelerate(model).fast[0], part).convolutions, torch.Generator().manual_seed(4)  # type: ignore[attr-defined]
    numbers = torch.randn(5, *((1, 28, 28) if part == "encoder" else (64, 7, 7)), generator=made)
    numbers *= images * torch.tensor([1, 1, 1, 0.01, 100]).view(5, 1, 1, 1)
    results = []
    for way in (twin_of, *(functools.partial(through, layers, each) for each in (Coarse.apply, F.conv2d))):
        if results:
            layers.double()
        x = numbers.to(layers[0].weight.dtype).requires_grad_()
        out = way(x)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(6)) * gradients
        each = torch.autograd.grad((out * weight).sum(), [x, *layers.parameters()])
        results.append([*out, *each[0], *each[1:]])
    assert used == dict.fromkeys((name for name in kernels.images.NAMES if name.startswith(part)), 1)
    for ours, coarse, exact in zip(*results, strict=True):
        assert (ours - exact).norm() <= 2 * (coarse - exact).norm() + 1e-5 * exact.norm()


def test_single_steps_equal_the_plain_ones(used: Counter[str]) -> None:
    fast = unrolled(model_of(FLYING), accelerate, singly=True)
    plain = unrolled(model_of(FLYING).double(), lambda model: model, singly=True)
    assert used == dict.fromkeys(kernels.images.NAMES, 2)
    for ours, theirs in zip(fast, plain, strict=True):
        assert (ours - theirs).abs().max() <= 1e-4 * max(1.0, float(theirs.abs().max()))


def test_weights_that_changed_count_at_once_with_gradients_and_without(used: Counter[str]) -> None:
    model = model_of(FLYING)
    twin, x = accelerate(model), torch.rand(3, 1, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    x_noisy, gamma = model.draw(x, 2, torch.zeros(1, dtype=torch.int64))
    for gradients in (True, False, True):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
        with torch.set_grad_enabled(gradients):
            ours, theirs = (each.unroll(x, 2, x_noisy=x_noisy, gamma=gamma) for each in (twin, model))
        torch.testing.assert_close(ours.psi, theirs.psi, rtol=0, atol=1e-5)
    assert used == {"encoder_there": 6, "decoder_there": 6}


def gradients(model: NeuralEM, way: Any, K: int = 2) -> list[torch.Tensor | None]:
    """The parameters', of two steps."""
    x = torch.rand(3, 1, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    x_noisy, gamma = model.draw(x, K, torch.zeros(1, dtype=torch.int64))
    way(model).unroll(x, K, x_noisy=x_noisy, gamma=gamma).loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def assert_same_gradients(ours: list[torch.Tensor | None], theirs: list[torch.Tensor | None]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one - other).abs().max() <= 1e-4 * max(1.0, float(other.abs().max()))


def test_frozen_layers_pass_gradients_on(used: Counter[str]) -> None:
    """Those of a frozen encoder or decoder get none; the others' are the plain path's."""
    for part in ("encoder", "decoder"):
        both = []
        for way in (accelerate, lambda model: model):
            model = model_of(FLYING)
            getattr(model.m_step, part).convolutions.requires_grad_(False)
            both.append(gradients(model, way))
        assert_same_gradients(*both)
    # nothing before a frozen encoder's first use wants a gradient
    weights = {"encoder_weights": 2, "decoder_weights": 2}
    assert used == {**dict.fromkeys(kernels.images.NAMES, 4), "encoder_back": 3, **weights}


@pytest.fixture
def _products_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter takes their bits for whole numbers; now they become float32 first."""
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    multiply = interpreter.InterpreterBuilder.create_dot

    def wide(factor: Any) -> Any:
        if factor.dtype.scalar != bfloat16:
            return factor
        data = interpreter._convert_float(factor.data, bfloat16, float32, None).view("float32")
        return interpreter.TensorHandle(data, float32)

    product = lambda self, a, b, *given: multiply(self, wide(a), wide(b), *given)  # noqa: E731
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", product)


@pytest.mark.usefixtures("_products_of_bfloat16")
def test_in_bfloat16_they_point_the_same_way(used: Counter[str]) -> None:
    config = replace(FLYING, height=28, width=28)
    coarse = unrolled(model_of(config), lambda model: accelerate(model, torch.bfloat16))
    exact = unrolled(model_of(config).double(), lambda model: model)
    assert used == dict.fromkeys(kernels.images.NAMES, 2)
    torch.testing.assert_close(coarse[-31].double(), exact[-31], rtol=0.01, atol=0)  # the loss, before 30 gradients
    for ours, theirs in zip(coarse[-30:], exact[-30:], strict=True):
        assert torch.nn.functional.cosine_similarity(ours.double().flatten(), theirs.flatten(), dim=0) > 0.97


def rounded(x: torch.Tensor) -> torch.Tensor:
    """As bfloat16, with the gradient of x itself."""
    return x + (x.bfloat16().double() - x).detach()


def rounded_encoder(x: torch.Tensor, layers: Any) -> torch.Tensor:
    for i in (0, 2):
        convolution, activation = layers[i].layer, layers[i + 1].layer
        product = F.conv2d(rounded(x), rounded(convolution.weight.double()), stride=2, padding=1)
        x = activation(rounded(product) + convolution.bias.double().view(-1, 1, 1))
    return rounded(x)


def rounded_decoder(x: torch.Tensor, layers: Any) -> torch.Tensor:
    up, activation, last = layers
    product = F.conv2d(rounded(x), rounded(up.of_phases(up.layer.weight).double()), padding=1)
    x = interleave(rounded(product)) + up.layer.bias.double().view(-1, 1, 1)
    taps = rounded(last.ready()[0].double()).view(5, 5, 1, -1).permute(3, 2, 0, 1)
    return F.conv_transpose2d(rounded(activation.layer(x)), taps, last.layer.bias.double(), 2, 2, 1)


@pytest.mark.usefixtures("_products_of_bfloat16")
@pytest.mark.parametrize("side", [4, 12, 16, 28])
@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_in_bfloat16_numbers_are_rounded_where_layers_round_them(part: str, side: int, used: Counter[str]) -> None:
    """Gradients as well: what is left comes from rounding those."""
    model = model_of(replace(FLYING, height=side, width=side)).float()
    twin_of = getattr(accelerate(model, torch.bfloat16).fast[0], part).convolutions[0]  # type: ignore[attr-defined]
    parameters = list(getattr(model.m_step, part).convolutions.parameters())
    size = (1, side, side) if part == "encoder" else (64, side // 4, side // 4)
    made, results = torch.Generator().manual_seed(4), []
    numbers = torch.randn(5, *size, generator=made).bfloat16()
    for way in (twin_of, lambda x: (rounded_encoder if part == "encoder" else rounded_decoder)(x.double(), twin_of)):
        x = numbers.float().requires_grad_()
        out = way(x)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(6))
        results.append([out, *torch.autograd.grad((out * weight.bfloat16()).sum(), [x, *parameters])])
    assert used == {f"{part}_{way}": 1 for way in ("there", "back", "weights")}
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() <= 0.01 * theirs.norm()  # rounding alone leaves a third of that


@pytest.mark.parametrize("what", ["kind", "norm", "bias"])
@pytest.mark.parametrize("late", [False, True])
def test_layers_that_someone_changed_count_as_they_are(what: str, late: bool, used: Counter[str]) -> None:
    """Before the twin is made, and after."""
    results = []
    for way in (accelerate, lambda model: model):
        model = model_of(FLYING)
        twin_of = way(model) if late else None
        convolutions = model.m_step.encoder.convolutions  # type: ignore[union-attr]
        if what == "kind":
            convolutions[1].kind = "tanh"  # type: ignore[union-attr, assignment]
        elif what == "norm":
            convolutions[1].scale = convolutions[1].offset = None  # type: ignore[union-attr, assignment]
        else:
            convolutions[0].bias = None  # type: ignore[union-attr, assignment]
        results.append(unrolled(model, lambda model, twin_of=twin_of, way=way: twin_of or way(model)))
    assert used == {"decoder_there": 2, "decoder_back": 2, "decoder_weights": 2}
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).abs().max() <= 1e-4 * max(1.0, float(theirs.abs().max()))


def test_gradients_that_lie_anywhere_in_memory(used: Counter[str]) -> None:
    """A relational M-step's, of one component: they lie behind those of others, at an odd place."""
    config = replace(FLYING, hidden=0, m_step="relational", theta_size=5)
    assert_same_gradients(*(gradients(model_of(config), way, K=1) for way in (accelerate, lambda model: model)))
    assert used["encoder_back"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"height": 32},
        {"height": 32, "width": 32},
        {"convolutions": (16, 64)},
        {"channels": 3, "distribution": "gaussian"},
        {"layer_norm": False},
    ],
    ids=str,
)
def test_what_they_are_not_made_for_goes_layer_by_layer(change: dict[str, Any], used: Counter[str]) -> None:
    unrolled(model_of(replace(FLYING, **change)), accelerate)
    assert not used
