"""``nem demo``: objects found, minutes after the installation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the subcommands of this file."""
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("demo"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Group moving shapes never seen before; write a page and a GIF."""
    from neural_em.demo import demo as run

    done = run(out, device, typer.echo)
    typer.echo(f"AMI {done.ami:.3f} at the last step, on average over {done.sequences} sequences")
    typer.echo(f"animation: {done.animation}")
    typer.echo(f"open: {done.page.absolute()}")
