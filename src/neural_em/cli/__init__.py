"""The ``nem`` command: each file parses, wires and calls; no logic of its own."""

import os

# Before PyTorch is loaded: threads that have nothing to do sleep instead of spinning. Where other programs use the
# cores too, spinning made small products many times slower (docs/performance-cpu.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# On ARM PyTorch's allocator gives memory back to the system after 10 ms and fetches it again: up to a sixth of a step.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")  # milliseconds

from neural_em.cli.app import main

__all__ = ["main"]
