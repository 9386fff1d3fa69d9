"""Arrays that wait in a temporary file, so that a clip can be gone through again in bounded memory."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_em.errors import NeuralEMError


class Spool:
    """Rows of arrays: added one after another, read in any order. The file is gone when nobody holds it any more."""

    def __init__(self) -> None:
        with _told():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as it is held)
        self._rows: list[tuple[int, list[tuple[Any, Any]]]] = []  # where each begins; its arrays' shapes and types

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def add(self, *arrays: NDArray[Any]) -> None:
        """One row more."""
        with _told():
            self._rows.append((self._file.seek(0, 2), [(array.shape, array.dtype) for array in arrays]))
            for array in arrays:
                self._file.write(_bytes(np.ascontiguousarray(array)))
            self._file.flush()

    def __getitem__(self, row: int) -> list[NDArray[Any]]:
        """The arrays of a row."""
        start, kinds = self._rows[row]
        arrays = [np.empty(*kind) for kind in kinds]
        with _told():
            self._file.seek(start)
            if any(self._file.readinto(_bytes(array)) < array.nbytes for array in arrays):
                raise OSError("it has become shorter")
        return arrays


def _bytes(array: NDArray[Any]) -> memoryview:
    """The memory of an array of numbers; objects are refused."""
    return array.reshape(-1).view(np.uint8).data


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise NeuralEMError(f"temporary file: {why} (TMPDIR names another folder)") from None
