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

from neural_em.model import ModelConfig, NeuralEM
from neural_em.model.fast import accelerate
from tests.model.test_kernels import GREY, kernels, twin, unrolled

COMPILER = shutil.which("c++") or shutil.which("g++")
if not COMPILER:
    pytest.skip("needs a C++ compiler", allow_module_level=True)
SOURCES = Path(kernels.__file__).parent
SLOTS = 2  # images of a block
FLYING = replace(GREY, convolutions=(32, 64), noise=replace(GREY.noise, shared=False))


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernels, compiled for a CPU, by the side of the smallest image and the bytes of a number."""
    folder = tmp_path_factory.mktemp("emulator")

    @functools.cache
    def library(side: int, size: int) -> ctypes.CDLL:
        made = folder / f"{side}-{size}.so"
        sizes = [f"-DS={side}", f"-DE={size}", f"-DSLOTS={SLOTS}"]
        how = ["-std=c++17", "-O1", "-shared", "-fPIC", *sizes, f"-I{SOURCES}"]
        subprocess.run([str(COMPILER), *how, "-o", str(made), str(Path(__file__).parent / "emulator.cpp")], check=True)
        return ctypes.CDLL(str(made))

    return library


@pytest.fixture(autouse=True)
def used(emulator: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Kernels on the CPU, and how often each was started."""
    names: Counter[str] = Counter()

    def launch(name: str, side: int, N: int, *arguments: torch.Tensor | None) -> None:
        names[name] += 1
        pointers = [ctypes.c_void_p(None if each is None else each.data_ptr()) for each in arguments]
        values = [*pointers, ctypes.c_int(N)]
        dtype = next(each.dtype for each in arguments[1:] if each is not None)
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        blocks = 2  # so that some have more images than slots
        emulator(side, dtype.itemsize).run(name.encode(), blocks, places)

    monkeypatch.setattr(kernels.images, "launch", launch)
    monkeypatch.setattr(kernels.images, "usable", lambda *given: True)
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
    ("side", "more", "B", "K"), [(8, (), 1, 2), (16, (), 3, 3), (28, (), 1, 2), (24, (8,), 1, 2), (13, (), 1, 2)]
)
def test_they_equal_the_plain_path(side: int, more: tuple[int, ...], B: int, K: int, used: Counter[str]) -> None:
    """Also as the outer layers of deeper networks, and for images that are filled up."""
    config = replace(FLYING, height=side, width=side, convolutions=(32, 64, *more))
    fast = unrolled(model_of(config), accelerate, B=B, K=K)
    plain = unrolled(model_of(config).double(), lambda model: model, B=B, K=K)
    assert used == dict.fromkeys(kernels.images.NAMES, 2)
    for ours, theirs in zip(fast, plain, strict=True):
        assert (ours - theirs).abs().max() <= 1e-4 * max(1.0, float(theirs.abs().max()))


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


def test_frozen_layers_pass_gradients_on(used: Counter[str]) -> None:
    """Those of a frozen encoder or decoder get none; the others' are the plain path's."""
    for part in ("encoder", "decoder"):
        gradients = []
        for way in (accelerate, lambda model: model):
            model = model_of(FLYING)
            getattr(model.m_step, part).convolutions.requires_grad_(False)
            x = torch.rand(3, 1, 1, 8, 8, generator=torch.Generator().manual_seed(5))
            x_noisy, gamma = model.draw(x, 2, torch.zeros(1, dtype=torch.int64))
            way(model).unroll(x, 2, x_noisy=x_noisy, gamma=gamma).loss.backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        for ours, theirs in zip(*gradients, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert (ours - theirs).abs().max() <= 1e-4 * max(1.0, float(theirs.abs().max()))
    # nothing before a frozen encoder's first use wants a gradient
    assert used == {**dict.fromkeys(kernels.images.NAMES, 4), "encoder_back": 3}


def test_in_bfloat16_they_point_the_same_way(used: Counter[str]) -> None:
    config = replace(FLYING, height=28, width=28)
    coarse = unrolled(model_of(config), lambda model: accelerate(model, torch.bfloat16))
    exact = unrolled(model_of(config).double(), lambda model: model)
    assert used == dict.fromkeys(kernels.images.NAMES, 2)
    torch.testing.assert_close(coarse[-31].double(), exact[-31], rtol=0.01, atol=0)  # the loss, before 30 gradients
    for ours, theirs in zip(coarse[-30:], exact[-30:], strict=True):
        assert torch.nn.functional.cosine_similarity(ours.double().flatten(), theirs.flatten(), dim=0) > 0.97


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
