"""The command itself: collects the subcommands and turns the project's errors into one line and exit status 2."""

from __future__ import annotations

import errno
import importlib
import sys
from typing import Annotated

import typer

import neural_em
from neural_em.errors import NeuralEMError

app = typer.Typer(
    name="nem", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Neural Expectation Maximization: finds the objects in images and video without labels.",
)  # fmt: skip
_debug = False

# each module has `register(app)`, which adds its subcommands
COMMANDS = ("data", "train", "evaluate", "figure", "report", "reproduce", "segment", "models", "export", "demo")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nem {neural_em.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Options that stand before the subcommand."""
    global _debug
    _debug = debug


for _name in COMMANDS:
    importlib.import_module(f"neural_em.cli.{_name}").register(app)


def main() -> None:
    """Runs the command line; a refused input ends in one line on standard error and exit status 2."""
    try:
        app()
    except NeuralEMError as error:
        if _debug:
            raise
        sys.stderr.write(f"nem: {error}\n")
        raise SystemExit(2) from None
    except BrokenPipeError:
        raise SystemExit(1) from None
    except (OSError, MemoryError, RuntimeError) as error:
        reason = _machine(error)
        if _debug or reason is None:
            raise
        sys.stderr.write(f"nem: {reason}\n")
        raise SystemExit(2) from None


def _machine(error: Exception) -> str | None:
    """What the machine ran out of, in one line; None for an error of another kind, which is a mistake in here."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
        return f"standard output: cannot be written: {error.strerror}"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # PyTorch's has no class of its own
        return "memory: expected enough for a run of this size, got too little; ask for less at a time"
    return None
