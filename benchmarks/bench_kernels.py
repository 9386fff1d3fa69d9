"""Times the training step on a GPU with each of the fused kernels' ways switched off or set otherwise.

The convolutions of each network are timed by themselves, too: which of them pay, and by how much.
``BENCH_ONLY`` chooses steps by a part of their name, as in ``BENCH_ONLY=shapes python -m benchmarks kernels``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.bench_training import BF16, setting, stepper
from benchmarks.timing import timed
from neural_em.experiments import preset
from neural_em.model import NeuralEM
from neural_em.model.fast import accelerate, twin
from neural_em.training import device as devices

CASES = {  # name: preset and settings
    "flying shapes, K = 5": ("flying-shapes", ["training.components=5"]),
    "flying shapes, K = 3": ("flying-shapes", []),
    "flying digits, K = 2": ("flying-mnist", []),
    "bouncing balls, R-NEM, K = 5": ("bouncing-balls", []),
    "bouncing balls, RNN-EM, K = 5": ("bouncing-balls-rnn-em", []),
    "coloured shapes, 28x28, K = 4": ("coloured-shapes", []),
    "sprites, 64x64, K = 5": ("sprites", []),
}
PRECISIONS: dict[str, list[str]] = {"TF32": [], "bf16": BF16}
IMAGES = 320  # of a network's own times


def main() -> dict[str, Any]:
    """Milliseconds of a step, a row for each step and precision and a column for each variant; networks likewise."""
    device = devices.choose()
    if device.type != "cuda":
        return {"device": device.type, "note": "the kernels are the GPU's"}
    only = os.environ.get("BENCH_ONLY", "")
    chosen = {name: case for name, case in CASES.items() if only in name}
    with devices.products("auto", device):
        steps = [step_row(name, case, way, device) for name, case in chosen.items() for way in PRECISIONS]
        bases = dict.fromkeys(base for base, _ in chosen.values() if base != "bouncing-balls-rnn-em")
        networks = [row for base in bases for way in PRECISIONS for row in network_rows(base, way, device)]
    return {"device": device.type, "steps, ms": steps, "networks, us": networks}


def variants() -> dict[str, list[tuple[Any, str, Any]]]:
    """What each variant sets: modules, names and values."""
    from neural_em.model.fast.kernels import activation, assignment, folds, images

    off = {
        "no fused images": [(images, "USED", False)],
        "no folds": [(folds, "USED", False)],
        "no delta ahead": [(twin, "AHEAD", False)],
        "a sample a program": [(assignment, "PROGRAM", 1 << 15)],
        "small layer norms": [(activation, "LARGEST", 1 << 14)],
    }
    return {
        "as it is": [],
        "as before": [each for some in off.values() for each in some],
        **off,
        "an image a program": [(images, "ROWS", 1)],
        "two images for light weights": [(images, "HEAVY", 0)],
        "one image for heavy weights": [(images, "HEAVY", 1 << 30), (images, "HEAVIEST", 1 << 19)],
    }


@contextmanager
def varied(settings: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """The modules with other values, until it is left."""
    before = [(module, name, getattr(module, name)) for module, name, _ in settings]
    try:
        for module, name, value in settings:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def step_row(name: str, case: tuple[str, list[str]], way: str, device: torch.device) -> dict[str, Any]:
    """One step in one precision, every way."""
    experiment, data = setting(*case, device)
    row: dict[str, Any] = {"step": name, "precision": way}
    for variant, settings in variants().items():
        with varied(settings):
            row[variant] = 1e3 * timed(stepper(experiment, data, device, PRECISIONS[way]), device, 20)
        torch.cuda.empty_cache()
    return row


def network_rows(base: str, way: str, device: torch.device) -> list[dict[str, Any]]:
    """The convolutions of encoder and decoder by themselves: there alone, and there and back."""
    rows = []
    for part in ("encoder", "decoder"):
        for back in (False, True):
            row: dict[str, Any] = {"network": f"{base}, {part}", "precision": way, "back": back}
            for variant, settings in variants().items():
                with varied(settings):
                    row[variant] = 1e6 * graphed(convolutions(base, part, way, back, device), device)
            rows.append(row)
    return rows


def convolutions(base: str, part: str, way: str, back: bool, device: torch.device) -> Callable[[], Any]:
    """A call of all convolutions of a network with their activations."""
    model = NeuralEM(preset(base).model).to(device)
    half = torch.bfloat16 if way == "bf16" else None
    fast: Any = accelerate(model, half)
    network = getattr(fast.fast[0], part)
    C, H, W = model.config.channels, model.config.height, model.config.width
    shape = (H + network.padding[0], W + network.padding[1], C) if part == "encoder" else network.shape
    dtype = half if part == "decoder" else None
    x = torch.rand(IMAGES, *shape, device=device, dtype=dtype).permute(0, 3, 1, 2).requires_grad_(back)
    fast.hold(1)

    def call() -> None:
        with torch.set_grad_enabled(back):
            y = network.convolutions(x)
        if back:
            torch.autograd.grad(y, x, y.detach(), retain_graph=False)

    return call


def graphed(call: Callable[[], Any], device: torch.device, repeat: int = 20) -> float:
    """Seconds of a call, of many in one CUDA graph."""
    stream = torch.cuda.Stream(device)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(repeat):
            call()
    return timed(graph.replay, device, 5) / repeat
