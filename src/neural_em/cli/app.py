"""The command itself: collects the subcommands and turns every mistake into one line and exit status 2."""

import errno
import importlib
import io
import os
import re
import sys
from typing import Annotated, NoReturn

import typer

import neural_em
from neural_em.errors import NeuralEMError, printable

app = typer.Typer(
    name="nem", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"max_content_width": 100},
    help="Neural Expectation Maximization: finds the objects in images and video without labels.",
)  # fmt: skip
_debug = False

# the subcommands of each module, which are functions of these names
COMMANDS = {
    "data": ("data",), "train": ("train", "presets"), "adapt": ("adapt",), "evaluate": ("evaluate",),
    "figure": ("figure", "report"), "reproduce": ("reproduce",), "segment": ("segment",),
    "models": ("models", "export", "demo"),
}  # fmt: skip
# a mistake in the command line; typer's own copy of click does not say its name
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

# PyTorch's errors for the CPU have no class of their own, and their words differ with the platform and the build
_OUT_OF_MEMORY = re.compile(
    "out of memory|enough memory|allocate memory|CPUAllocator|alloc_cpu|bad_alloc|ALLOC_FAILED"
    "|Storage size calculation overflowed",
    re.IGNORECASE,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nem {neural_em.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the subcommand."""
    global _debug
    _debug = debug
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _module, _names in COMMANDS.items():
    for _name in _names:
        app.command(_name)(getattr(importlib.import_module(f"neural_em.cli.{_module}"), _name))


def main() -> None:
    """Runs the command line; a refused input ends in one line on standard error and exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may hold bytes that are no text
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = app(standalone_mode=False)
    except NeuralEMError as error:
        if _debug:
            raise
        _refuse(str(error))
    except _UsageError as error:
        _refuse(_usage(error))
    except BrokenPipeError:
        raise SystemExit(1) from None
    except typer.Abort:  # Ctrl-C, as older versions of typer pass it on
        raise SystemExit(130) from None
    except (OSError, MemoryError, RuntimeError) as error:
        reason = _machine(error)
        if _debug or reason is None:
            raise
        _refuse(reason)
    raise SystemExit(status or 0)


def _refuse(line: str) -> NoReturn:
    sys.stderr.write(f"nem: {printable(line)}\n")
    raise SystemExit(2) from None


def _usage(error: Exception) -> str:
    """What is wrong with the command line, in one line."""
    message = " ".join(str(getattr(error, "format_message", error.__str__)()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message[:1].lower()}{message[1:]} (see {context.command_path if context else 'nem'} --help)"


def _machine(error: Exception) -> str | None:
    """What the machine ran out of, in one line; None for an error of another kind, which is a mistake in here."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
        return f"standard output: cannot be written: {error.strerror}"
    if isinstance(error, OSError) and error.filename is not None:  # such as a name that is too long
        return f"{os.fsdecode(error.filename)}: {error.strerror or 'cannot be used'}"
    out = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    if out or type(error).__name__ == "OutOfMemoryError" or _OUT_OF_MEMORY.search(str(error)):  # the class is PyTorch's
        return "out of memory: try a smaller batch or fewer components"
    return None
