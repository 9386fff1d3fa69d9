"""``nem export``: a trained model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the subcommands of this file."""
    app.command("export")(export)


def export(
    model: Annotated[str, typer.Argument(metavar="RUN", hidden=True)],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    format: Annotated[str, typer.Option(help="onnx or torch.")] = "onnx",
    steps: Annotated[
        int | None, typer.Option(help="EM steps of torch's unroll; ONNX takes any number.", show_default="the model's")
    ] = None,
) -> None:
    """Write one EM step and a whole unroll for ONNX or PyTorch.

    RUN is a run folder, a weight file or a shipped model's name.
    """
    from neural_em.storage.export import export as write
    from neural_em.storage.pretrained import find_model

    for what, path in write(find_model(model).load(), out, format, steps).items():
        typer.echo(f"{what}: {path}")
