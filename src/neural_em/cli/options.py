"""Options that several subcommands share, and the bar that shows how far they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer


def option(help: str, default: str | None = None, name: str = "", metavar: str | None = None) -> Any:
    """An option of a command; its help shows ``default`` where that is not its value."""
    return typer.Option(*([name] if name else []), help=help, show_default=default or True, metavar=metavar)


def flag(name: str, help: str) -> Any:
    """An option that is there or not."""
    return typer.Option(name, help=help)


def assignments(help: str) -> Any:
    """``--set``, which changes any field."""
    return option(f"{help}; may be repeated.", name="--set", metavar="FIELD=VALUE")


Runs = Annotated[list[str], typer.Argument(metavar="RUN", hidden=True)]
Weights = Annotated[str, option("Weights of which epoch: best or last.")]
Preset = Annotated[str | None, option("Preset whose data to use, if a weight file does not name its own.")]
Device = Annotated[str, option("auto, cpu, cuda or cuda:N.")]
Objects = Annotated[int | None, option("Objects in a sequence.", "as trained")]
Components = Annotated[int | None, option("Number of components, K.", "as trained")]
Static = Annotated[bool, flag("--static", "Use frame 0 only, repeated.")]
Split = Annotated[
    str | None,
    option("training, validation or test; all, of your own data.", "test; all of your own data"),
]
Data = Annotated[Path | None, option("Your own data: HDF5, array, image, video, GIF or folder.")]
Masks = Annotated[Path | None, option("True groups of your own data, for scores.")]
Rollout = Annotated[int, option("Extra steps without input, on the model's own predictions.")]
Seed = Annotated[int, option("Seed of the starts and of the noise.")]
Size = Annotated[int | None, option("Sequences to score.", "all, if an evaluation of all is there, or 500")]
Changes = Annotated[list[str] | None, assignments("Any other field of generated data, such as data.most_objects=6")]
STEPS = "one a frame; images and --static: the model's"
INTERRUPTED = 130  # what a shell expects after Ctrl-C


def text(path: Path | None) -> str | None:
    """A path as text."""
    return None if path is None else str(path)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each name on a terminal, nothing elsewhere; gives a function of name, done and total."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
    times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    tasks: dict[str, Any] = {}
    with progress.Progress(
        *columns, *times, console=console, disable=not console.is_terminal, transient=True
    ) as bars:  # fmt: skip

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total)

        yield show
