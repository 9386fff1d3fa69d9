"""``nem data``: makes the paper's data sets as files."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the subcommands of this file."""
