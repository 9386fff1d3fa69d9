"""The ``nem`` command: each file parses, wires and calls; no logic of its own."""

from neural_em.cli.app import main

__all__ = ["main"]
