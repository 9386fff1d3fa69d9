"""Arrays in a temporary file: what went in comes out, in any order."""

from __future__ import annotations

import errno
import io
import tempfile
from typing import Any

import numpy as np
import pytest

from neural_em import NeuralEMError
from neural_em.segment.spool import Spool


def test_rows_come_back_in_any_order() -> None:
    spool = Spool()
    arrays = [(np.arange(6, dtype=np.float32).reshape(2, 3) + i, np.full((2, 2), i > 1)) for i in range(4)]
    rows = [pair[: 1 + i % 2] for i, pair in enumerate(arrays)]
    for row in rows:
        spool.add(*row)
    assert len(spool) == 4
    for i in (3, 0, 2, 0, 1):
        found = spool[i]
        assert len(found) == len(rows[i])
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(found, rows[i], strict=True))
        assert all(a.flags.writeable for a in found)  # torch warns of others


def test_any_shape_comes_back() -> None:
    spool, arrays = Spool(), (np.array(0.5), np.zeros((0, 3)), np.arange(6).reshape(2, 3).T, np.arange(8)[::2])
    spool.add(*arrays)
    for found, array in zip(spool[0], arrays, strict=True):
        np.testing.assert_array_equal(found, array, strict=True)


def test_a_file_that_has_become_shorter_is_said() -> None:
    spool = Spool()
    spool.add(np.arange(6.0))
    spool._file.truncate(20)
    with pytest.raises(NeuralEMError, match="temporary file: it has become shorter"):
        spool[0]


def test_objects_that_would_run_code_are_refused() -> None:
    with pytest.raises(TypeError, match="data-type"):
        Spool().add(np.array([print], object))


def test_a_temporary_folder_that_is_missing_or_full_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise FileNotFoundError("No usable temporary directory found")

    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    spool = Spool()
    with pytest.raises(NeuralEMError, match="temporary file: No space left on device"):
        spool.add(np.zeros(3))
    monkeypatch.setattr(tempfile, "TemporaryFile", missing)
    with pytest.raises(NeuralEMError, match="No usable temporary directory found"):
        Spool()
