"""What all tests of data share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def free_memory() -> Iterator[None]:
    """The same on every machine: what is free there decides nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        for user in ("config", "arrays"):
            patch.setattr(f"neural_em.data.{user}.memory_budget", lambda device: 1 << 30)
        yield
