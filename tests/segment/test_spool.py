"""Arrays in a temporary file: what went in comes out, in any order."""

from __future__ import annotations

import errno
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


def test_objects_that_would_run_code_are_refused() -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        Spool().add(np.array([print], object))


def test_a_temporary_folder_that_is_missing_or_full_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise FileNotFoundError("No usable temporary directory found")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool()
    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(NeuralEMError, match="temporary file: cannot be written: No space left on device"):
        spool.add(np.zeros(3))
    monkeypatch.setattr(tempfile, "TemporaryFile", missing)
    with pytest.raises(NeuralEMError, match="No usable temporary directory found"):
        Spool()
