"""``nem models``, ``nem export`` and ``nem demo``: what trained models there are, and what can be done with one."""

from pathlib import Path
from typing import Annotated

import typer

from neural_em.cli.options import Device, option


def models() -> None:
    """List the shipped models, their scores and how they were made."""
    from neural_em.storage import pretrained

    cards = pretrained.models()
    if not cards:
        typer.echo("this version ships no trained models; `nem train` makes one")
    for card in cards:
        size = " x ".join(str(getattr(card.config, name)) for name in ("channels", "height", "width"))
        typer.echo(f"{card.name}: {card.notes.get('about', '')}".rstrip(": "))
        typer.echo(f"  frames {size}, {card.components or '?'} components, {card.path.stat().st_size / 1e6:.1f} MB")
        for title, score in card.scores.items():
            typer.echo(f"  {title}: {score:.3f}")
        typer.echo(f"  made by: {card.notes.get('command', 'unknown')}")


def export(
    model: Annotated[str, typer.Argument(metavar="RUN", hidden=True)],
    out: Annotated[Path, option("Folder to write.")],
    format: Annotated[str, option("onnx or torch.")] = "onnx",
    steps: Annotated[int | None, option("EM steps of torch's unroll; ONNX takes any number.", "the model's")] = None,
) -> None:
    """Export one EM step and a whole unroll for ONNX or PyTorch.

    RUN is a run folder, a weight file or a shipped model's name.
    """
    from neural_em.storage.export import export as write
    from neural_em.storage.pretrained import find_model

    for what, path in write(find_model(model).load(), out, format, steps).items():
        typer.echo(f"{what}: {path}")


def demo(out: Annotated[Path, option("Folder to write.")] = Path("demo"), device: Device = "auto") -> None:
    """Find the objects in new moving shapes; write a page and a GIF."""
    from neural_em.demo import demo as run

    done = run(out, device, typer.echo)
    typer.echo(f"AMI {done.ami:.3f} at the last step, on average over {done.sequences} sequences")
    typer.echo(f"animation: {done.animation}")
    typer.echo(f"open: {done.page.absolute()}")
