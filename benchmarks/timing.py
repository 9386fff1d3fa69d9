"""How long a call takes."""

from __future__ import annotations

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
