"""Arrays that grow row by row into one ``.npz`` file, without ever being held in memory."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_em.errors import refuse


class Archive:
    """Writes rows as they come; :meth:`close` makes the ``.npz`` file of them. The rows wait beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrays: dict[str, _Growing] = {}

    def add(self, **rows: NDArray[Any]) -> None:
        """Adds one row to each of the arrays named; all rows of an array have one shape and type."""
        for name, row in rows.items():
            if name not in self._arrays:
                self._arrays[name] = _Growing(self.path.with_name(f".{self.path.stem}.{name}.rows"), row)
            self._arrays[name].add(name, row)

    def close(self) -> None:
        """Puts the arrays together; only a block of each is in memory at a time."""
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, array in self._arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    array.pour(entry)
        self._arrays.clear()


class _Growing:
    """Rows of one shape in a file."""

    def __init__(self, path: Path, first: NDArray[Any]) -> None:
        self.path, self.shape, self.dtype, self.count = path, first.shape, first.dtype, 0
        self._file = open(path, "wb")  # noqa: SIM115 (open as long as rows come)

    def add(self, name: str, row: NDArray[Any]) -> None:
        if row.shape != self.shape or row.dtype != self.dtype:
            refuse(f"row of {name}", f"{self.dtype} of shape {self.shape}", f"{row.dtype} of shape {row.shape}")
        self._file.write(np.ascontiguousarray(row).tobytes())
        self.count += 1

    def pour(self, entry: Any) -> None:
        """Writes all rows, a block at a time, and removes their file."""
        self._file.close()
        rows = np.memmap(self.path, self.dtype, "r", shape=(self.count, *self.shape))
        np.lib.format.write_array(entry, rows)
        self.path.unlink()
