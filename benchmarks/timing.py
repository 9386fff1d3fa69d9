"""How long a call takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def best_of(run: Callable[[], Any], device: str, times: int = 1) -> tuple[float, Any]:
    """Seconds of the fastest of some runs, and the last one's result; one result at a time is held."""
    result, best = None, float("inf")
    for _ in range(times):
        del result
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        result = run()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best, result


def seconds() -> float:
    """A CPU's clock: with one thread the time that this process had, since others may use the core too."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def timed(function: Callable[[], Any], device: torch.device, repeat: int) -> float:
    """Median seconds of a call, after two to warm up; on a GPU the mean over calls that follow each other."""
    for _ in range(2):
        function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(repeat):
            function()
        torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / repeat
    times = []
    for _ in range(repeat):
        start = seconds()
        function()
        times.append(seconds() - start)
    return statistics.median(times)
