"""``nem models``: what trained models there are to start from."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the subcommands of this file."""
    app.command("models")(models)


def models() -> None:
    """List the shipped models, their scores and what made them."""
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
