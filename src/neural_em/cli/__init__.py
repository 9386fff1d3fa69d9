"""The ``nem`` command: each file parses, wires and calls; no logic of its own."""

import os

# Before PyTorch is loaded: threads that have nothing to do sleep instead of spinning. Where other programs use the
# cores too, spinning made small products many times slower (docs/performance.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from neural_em.cli.app import main

__all__ = ["main"]
