"""Times a frame of ``nem segment``: 64x64 pixels in colour, K = 8, four discs that cross each other on a texture."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.timing import seconds
from neural_em.segment import SegmentConfig, Stream, segment
from neural_em.segment.config import FEWER_STARTS
from neural_em.segment.stream import RACE
from neural_em.storage.pretrained import pretrained

FRAMES, SIZE, COMPONENTS = 200, 64, 8


def main() -> dict[str, Any]:
    """Milliseconds a frame: of the network alone once a race is over, and of all, ground, races and labels included."""
    model = pretrained("sprites")
    config = SegmentConfig(COMPONENTS, starts=FEWER_STARTS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.npy"
        np.save(path, clip())
        start = seconds()
        found = [(each.x, each.labels) for each in segment(path, model, config)]
        whole = seconds() - start
    stream, times = Stream(model, config), []
    for x, _ in found:
        start = seconds()
        stream.look(x)
        times.append(seconds() - start)
    network = statistics.median(times[RACE + 1 :])
    return {
        "threads": torch.get_num_threads(),
        "frames": len(found),
        "objects in the last frame": len(np.unique(found[-1][1])) - 1,
        "network, ms a frame, median after the race": 1000 * network,
        "whole clip, ms a frame": 1000 * whole / len(found),
        "whole clip, frames a second": len(found) / whole,
        "races": len(stream.agreement),
    }


def clip() -> NDArray[np.uint8]:
    """(T,H,W,3): discs of four colours go to and fro, each with a pace of its own, before a ground that stands."""
    rng = np.random.default_rng(0)
    ground = 90 + 40 * np.kron(rng.random((16, 16, 3)), np.ones((4, 4, 1)))
    colours = np.array([[230, 40, 40], [40, 220, 60], [60, 80, 240], [240, 220, 40]], float)
    y, x = np.mgrid[:SIZE, :SIZE]
    frames = np.repeat(ground[None], FRAMES, axis=0)
    for t, frame in enumerate(frames):
        for i, colour in enumerate(colours):
            place = 10 + 44 * (0.5 + 0.5 * np.sin(t / np.array([17.0 + 3 * i, 23.0 - 2 * i]) + [i, 2.0 * i]))
            frame[(y - place[0]) ** 2 + (x - place[1]) ** 2 < 36] = colour
    return np.clip(frames + rng.normal(0, 4, frames.shape), 0, 255).astype(np.uint8)
