"""Times a training step of flying shapes beside the same step in the public PyTorch port, in one process.

``BENCH_PEER`` names the port's folder ``nem-unofficial``, of FudanVI/compositional-scene-representation-toolbox. The
port needs a GPU. Both have the batch on the GPU already, TF32 products, 20 steps, batch 64.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.bench_training import BATCH, BF16, setting, stepper
from benchmarks.timing import timed
from neural_em.data import Dataset
from neural_em.training import device as devices


def main() -> dict[str, Any]:
    """Milliseconds of a step, and how many times faster ours is."""
    device, folder = devices.choose(), os.environ.get("BENCH_PEER")
    if device.type != "cuda" or not folder:
        return {"device": device.type, "note": "needs a GPU, and BENCH_PEER: the folder of the port"}
    with devices.products("auto", device):
        return {"device": device.type, "steps, ms": [row(K, Path(folder), device) for K in (3, 5)]}


def row(K: int, folder: Path, device: torch.device) -> dict[str, Any]:
    """The port and ours on the same 64 sequences."""
    experiment, data = setting("flying-shapes", [f"training.components={K}"], device)
    port = 1e3 * timed(peer(folder, K, data), device, 10)
    ours, bf16 = (1e3 * timed(stepper(experiment, data, device, some), device, 20) for some in ((), BF16))
    return {"K": K, "port": port, "ours": ours, "bf16": bf16, "times faster": port / ours, "bf16 times": port / bf16}


def peer(folder: Path, K: int, data: Dataset) -> Callable[[], None]:
    """A step of the port as its own training makes it, metrics of the batch included."""
    if str(folder / "src") not in sys.path:
        sys.path.insert(0, str(folder / "src"))
    config = yaml.safe_load((folder / "experiments" / "config_flying_shapes_3_3.yaml").read_text())
    frames, groups = data.batch(torch.arange(BATCH))
    assert groups is not None
    segment = torch.where(groups == 0, groups.amax() + 1, groups).transpose(0, 1) - 1  # the background comes last
    batch = {
        "image": (frames.transpose(0, 1) * 255).to(torch.uint8), "segment": segment,
        "overlap": torch.zeros_like(segment),
    }  # fmt: skip
    net = importlib.import_module("model").get_model({**config, "image_shape": list(frames.shape[2:])}).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
    weight, phase = config["loss_coef"]["kld"]["value"][0], {**config["phase_param"]["train"], "num_slots": K}

    def step() -> None:
        losses = net(batch, phase, require_extra=False)[2]
        optimizer.zero_grad()
        (losses["elbo"].mean() + weight * losses["kld"].mean()).backward()
        optimizer.step()

    return step
