"""Times grouping: a stream frame by frame, of flying shapes (K = 5) and of 64x64 pixels (K = 8); large batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench_training import product_peak
from benchmarks.timing import timed
from neural_em.data import flying_shapes, generate
from neural_em.model import NeuralEM, preset
from neural_em.model.fast import accelerate
from neural_em.training import device as devices

COMPONENTS, STEPS = 5, 20
MULTIPLICATIONS = 8.87e6  # of one component's step: encoder, recurrence, decoder with its phases


@torch.no_grad()
def main() -> dict[str, Any]:
    """Frames a second."""
    device = devices.choose()
    network = accelerate(NeuralEM(preset("flying-shapes")).to(device))
    with devices.products("auto", device):
        result: dict[str, Any] = {
            "device": device.type,
            "threads": torch.get_num_threads(),
            "stream, frames a second": frames_a_second(network, flying_shapes(1, device=device)[0], COMPONENTS),
            "stream, 64x64, K = 8, frames a second": frames_a_second(*large(device)),
        }
        floor = 2 * MULTIPLICATIONS * COMPONENTS / product_peak(device)  # seconds of products for a frame
        sizes = (256, 1024, 4096) if device.type == "cuda" else (16, 64)
        result["batches"] = [batch(network, size, device, floor) for size in sizes]
    return result


def frames_a_second(network: NeuralEM, x: Tensor, K: int) -> float:
    """Of one sequence x (T,1,C,H,W)."""
    return STEPS / timed(lambda: stream(network, x, K), x.device, 5)


def large(device: torch.device) -> tuple[NeuralEM, Tensor, int]:
    """RNN-EM with the network of bouncing balls, a sequence of 64 x 64 pixels, eight components."""
    config = replace(preset("bouncing-balls"), m_step="recurrent")
    frames, _ = generate("bouncing-balls", 1, frames=STEPS + 1, device=device)
    return accelerate(NeuralEM(config).to(device)), frames, 8


def stream(network: NeuralEM, x: Tensor, K: int) -> None:
    """A sequence, its frames one by one, the state carried."""
    state = network.start(x[0], K, generator=torch.Generator(x.device).manual_seed(0))
    for t in range(STEPS):
        state, _ = network.step(state, x[t], x[t + 1], check=False)
        state.gamma.argmax(dim=1).cpu()  # the labels are wanted before the next frame comes


def batch(network: NeuralEM, size: int, device: torch.device, floor: float) -> dict[str, Any]:
    """Many sequences at once."""
    x, _ = flying_shapes(size, device=device)
    x_noisy = network.add_noise(x[:-1])
    gamma = network.start(x[0], COMPONENTS).gamma
    seconds = timed(lambda: network.unroll(x, COMPONENTS, x_noisy=x_noisy, gamma=gamma, check=False), device, 3)
    rate = size * STEPS / seconds
    return {"sequences": size, "frames a second": rate, "share of the floor": rate * floor}
