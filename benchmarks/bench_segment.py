"""Times a frame of ``nem segment``: 64x64 pixels, K = 8, four balls that cross each other."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import seconds
from neural_em.segment import SegmentConfig, Stream, segment
from neural_em.segment.config import FEWER_STARTS
from neural_em.segment.stream import RACE
from neural_em.storage.pretrained import pretrained
from tools import own_clips

COMPONENTS = 8
CLIPS = tuple(own_clips.Recipe(kind, 1, 4, 64, 64, frames=200) for kind in ("colour", "grey"))


def main() -> dict[str, Any]:
    """Two models of colour, on coloured balls on a texture and on grey ones on black."""
    each = [
        {"model": name, "clip": clip.kind, **frame_times(name, clip)}
        for name in ("sprites", "objects")
        for clip in CLIPS
    ]
    return {"threads": torch.get_num_threads(), "clips": each}


def frame_times(name: str, clip: own_clips.Recipe) -> dict[str, Any]:
    """Milliseconds a frame: of the network alone once a race is over, and of all, ground, races and labels included."""
    model = pretrained(name)
    config = SegmentConfig(COMPONENTS, starts=FEWER_STARTS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.npy"
        np.save(path, own_clips.make(clip)[0])
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
        "frames": len(found),
        "objects in the last frame": len(np.unique(found[-1][1])) - 1,
        "network, ms a frame, median after the race": 1000 * network,
        "whole clip, ms a frame": 1000 * whole / len(found),
        "whole clip, frames a second": len(found) / whole,
        "races": len(stream.agreement),
    }
