"""Times making and serving data: the paper's 50,000 training sequences, with their groups.

The targets are 10 s on two CPU cores and 1 s on a GPU for flying shapes, in less than twice the result's memory; the
memory is the peak of a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import best_of
from neural_em.data import DataConfig, flying_shapes, load_split

SEQUENCES = 50_000
BATCH = 64
PEAK = """
import re, sys, torch
from neural_em.data import flying_shapes
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
flying_shapes(64)
before = peak()
frames, groups = flying_shapes(10_000, dtype=torch.uint8)
print((peak() - before) / (frames.nbytes + groups.nbytes))
"""


def main() -> dict[str, Any]:
    """Prints and returns the rows: seconds for each kind, type and device, and the peak of memory."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    rows = [row for device in devices for row in _making(device) + _serving(device)]
    for row in rows:
        print(f"{row['what']:<52}{row['device']:>6}{row['seconds']:>12.4g} s")
    result: dict[str, Any] = {"sequences": SEQUENCES, "threads": torch.get_num_threads(), "rows": rows}
    if Path("/proc/self/status").exists():
        done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
        result["peak memory / result"] = float(done.stdout)
        print(f"peak memory, times the result's: {result['peak memory / result']:.2f}")
    return result


def _making(device: str) -> list[dict[str, Any]]:
    flying_shapes(256, device=device)  # the first call loads kernels
    rows = []
    for objects in (3, 5):
        for dtype in (torch.uint8, torch.float32):
            what = f"make {SEQUENCES} flying shapes, {objects} objects, {str(dtype).removeprefix('torch.')}"
            rows.append(
                _row(what, device, lambda o=objects, d=dtype: flying_shapes(SEQUENCES, o, device=device, dtype=d))
            )
    config = DataConfig("static-shapes", train_size=SEQUENCES)
    rows.append(_row(f"make {SEQUENCES} static shapes", device, lambda: load_split(config, "training", 0, device)))
    return rows


def _serving(device: str) -> list[dict[str, Any]]:
    """One batch of 64 from memory, and one made when asked for."""
    rows = []
    indices = torch.randint(0, 2000, (BATCH,), generator=torch.Generator().manual_seed(0)).to(device)
    for fresh in (False, True):
        data = load_split(DataConfig("flying-shapes", train_size=2000, fresh=fresh), "training", 0, device)
        what = f"a batch of {BATCH}, {'made fresh' if fresh else 'held in memory'}"
        rows.append(_row(what, device, lambda data=data: data.batch(indices), times=10))
    for kind in ("coloured-shapes", "sprites", "objects"):
        config = DataConfig(kind, ground="mixed", objects=5, most_objects=5, frames=20)
        data = load_split(config, "training", 0, device, size=2000)
        rows.append(_row(f"paint a batch of {BATCH} {kind}", device, lambda data=data: data.batch(indices), times=10))
    return rows


def _row(what: str, device: str, run: Any, times: int = 1) -> dict[str, Any]:
    """Seconds of the fastest of a few runs."""
    best, _ = best_of(run, device, times)
    return {"what": what, "device": device, "seconds": best}


if __name__ == "__main__":
    main()
