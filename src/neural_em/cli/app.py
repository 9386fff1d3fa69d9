"""The command itself: collects the subcommands and turns the project's errors into one line and exit status 2."""

from __future__ import annotations

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
