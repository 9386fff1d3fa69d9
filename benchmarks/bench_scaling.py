"""How time and memory of a flying-shapes training step grow with components, steps and batch, in build/scaling.png."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from benchmarks.scaling_plot import fitted_power, scaling_plot
from benchmarks.timing import timed
from neural_em.data import DataConfig, load_split
from neural_em.model import NeuralEM, preset
from neural_em.report.figures import save_figure
from neural_em.training import TrainingConfig
from neural_em.training import device as devices
from neural_em.training.step import TrainingStep

SIZES = {  # what is varied: on a GPU, on a CPU; the others stay at the values of BASE
    "components": ((5, 10, 20, 40, 80), (1, 2, 4)),
    "steps": ((20, 40, 80, 160), (2, 4, 8)),
    "batch": ((64, 128, 256, 512, 1024, 2048), (4, 8, 16)),
}
BASE = {"cuda": {"components": 5, "steps": 20, "batch": 64}, "cpu": {"components": 2, "steps": 2, "batch": 4}}


def main() -> dict[str, Any]:
    """A table a quantity, and the slope over its last factor of four, which is 1 for linear growth."""
    device = devices.choose()
    result: dict[str, Any] = {"device": device.type, "slopes": {}}
    times, memories = {}, {}
    with devices.products("auto", device):
        for name, (gpu, cpu) in SIZES.items():
            sizes = gpu if device.type == "cuda" else cpu
            rows = [{name: size, **step_cost(device, **{**BASE[device.type], name: size})} for size in sizes]
            result[name] = rows
            times[name] = ([row[name] for row in rows], [row["ms"] for row in rows])
            result["slopes"][f"{name}, time"] = fitted_power(*times[name])[0]
            if device.type == "cuda":
                memories[name] = ([row[name] for row in rows], [row["MiB"] for row in rows])
                result["slopes"][f"{name}, memory"] = fitted_power(*memories[name])[0]
    Path("build").mkdir(exist_ok=True)
    save_figure(scaling_plot(times, "ms a step"), Path("build/scaling.png"))
    if memories:
        save_figure(scaling_plot(memories, "MiB"), Path("build/scaling-memory.png"))
    return result


def step_cost(device: torch.device, components: int, steps: int, batch: int) -> dict[str, float]:
    """Time and memory of a step."""
    data = load_split(DataConfig("flying-shapes", frames=steps + 1, train_size=batch), "training", 0, device)
    indices = torch.arange(batch, device=device)
    training = TrainingConfig(components=components, batch_size=batch)

    def fresh() -> TrainingStep:
        return TrainingStep(NeuralEM(preset("flying-shapes")).to(device), data, training)

    if device.type != "cuda":
        step = fresh()
        return {"ms": 1e3 * timed(lambda: step(indices, indices), device, 3)}
    fresh()(indices, indices)  # cuDNN tries its algorithms with the memory that each of them wants, once for each shape
    gc.collect()  # the last step's graph and its memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step = fresh()
    seconds = timed(lambda: step(indices, indices), device, 5)
    return {"ms": 1e3 * seconds, "MiB": (torch.cuda.max_memory_allocated(device) - before) / 2**20}
