"""Times grouping with a flying-shapes model, K = 5: a stream frame by frame, and the largest batches."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.bench_training import product_peak
from benchmarks.timing import timed
from neural_em.data import flying_shapes
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
            "stream, frames a second": STEPS / timed(lambda: stream(network, device), device, 5),
        }
        floor = 2 * MULTIPLICATIONS * COMPONENTS / product_peak(device)  # seconds of products for a frame
        sizes = (256, 1024, 4096) if device.type == "cuda" else (16, 64)
        result["batches"] = [batch(network, size, device, floor) for size in sizes]
    return result


def stream(network: NeuralEM, device: torch.device) -> None:
    """One sequence, its frames one by one, the state carried."""
    x, _ = flying_shapes(1, device=device)
    state = network.start(x[0], COMPONENTS, generator=torch.Generator(device).manual_seed(0))
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
