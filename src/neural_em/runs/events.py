"""Metrics as TensorBoard events, where the package is installed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from neural_em.errors import NeuralEMError
from neural_em.training.state import Row

FOLDER = "tensorboard"
MISSING = "no TensorBoard events are written: tensorboard is not installed (pip install neural-em[tensorboard])"


class Events:
    """A writer of one run's events."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    @classmethod
    def open(cls, folder: Path, epoch: int, wanted: bool) -> tuple[Events | None, str]:
        """The writer, and a line that says why where there is none.

        What an earlier start wrote after the ``epoch`` is no longer shown.
        """
        if not wanted:
            return None, ""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None, MISSING
        try:
            return cls(SummaryWriter(str(folder / FOLDER), purge_step=epoch + 1 if epoch else None)), ""
        except OSError as error:
            raise NeuralEMError(f"{folder / FOLDER}: cannot be written: {error.strerror or error}") from None

    def add(self, row: Row) -> None:
        """Adds an epoch."""
        try:
            for name, value in dataclasses.asdict(row).items():
                if name not in ("epoch", "best") and isinstance(value, int | float):
                    self._writer.add_scalar(name, value, row.epoch)
            self._writer.flush()
        except OSError as error:
            raise NeuralEMError(f"TensorBoard events: cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Writes out what is still in memory; what cannot be written any more was said before."""
        try:
            self._writer.close()
        except OSError:
            return
