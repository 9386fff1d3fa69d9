"""Options that several subcommands share, and the bar that shows how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

Runs = Annotated[list[str], typer.Argument(metavar="RUN", hidden=True)]
Weights = Annotated[str, typer.Option(help="Weights of which epoch: best or last.")]
Preset = Annotated[str | None, typer.Option(help="Preset whose data to use, if a weight file does not name its own.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Objects = Annotated[int | None, typer.Option(help="Objects in a sequence.", show_default="as trained")]
Components = Annotated[int | None, typer.Option(help="Number of components, K.", show_default="as trained")]
Static = Annotated[bool, typer.Option("--static", help="Use frame 0 only, repeated.")]
Split = Annotated[
    str | None,
    typer.Option(
        help="training, validation or test; all, of your own data.", show_default="test; all of your own data"
    ),
]
Data = Annotated[Path | None, typer.Option(help="Your own data: HDF5, array, image, video, GIF or folder.")]
Masks = Annotated[Path | None, typer.Option(help="True groups of your own data, for scores.")]
Rollout = Annotated[int, typer.Option(help="Extra steps without input, on the model's own predictions.")]
Seed = Annotated[int, typer.Option(help="Seed of the starts and of the noise.")]
Size = Annotated[int | None, typer.Option(help="Sequences to score.", show_default="an earlier evaluation's, or 500")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Any other field of generated data, such as data.most_objects=6; may be repeated.",
    ),
]
INTERRUPTED = 130  # what a shell expects after Ctrl-C


def text(path: Path | None) -> str | None:
    """A path as text."""
    return None if path is None else str(path)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each name on a terminal, nothing elsewhere; gives a function of name, done and total."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    tasks: dict[str, Any] = {}
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        transient=True,
    ) as bars:  # fmt: skip

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total)

        yield show
