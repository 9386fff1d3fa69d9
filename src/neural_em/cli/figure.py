"""``nem figure``: the paper's figures from trained runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neural_em.cli.evaluate import (
    Components,
    Data,
    Device,
    Masks,
    Objects,
    Preset,
    Runs,
    Seed,
    Split,
    Static,
    Weights,
    progress_bar,
)
from neural_em.errors import refuse, unknown


def register(app: typer.Typer) -> None:
    """Adds the subcommands of this file."""
    app.command("figure")(figure)


def figure(
    runs: Runs,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="sequence (over time), static (images step by step), curve (AMI per step), bce (prediction error by "
            "objects), learning (curves); repeat it for several.",
            show_default="sequence, or static for images",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder, or a file: .png, .pdf, .gif, .mp4.", show_default="RUN/figures")
    ] = None,
    pick: Annotated[
        list[str] | None,
        typer.Option(help="best, typical, worst or an index; repeat it.", show_default="typical; the first images"),
    ] = None,
    gif: Annotated[bool, typer.Option("--gif", help="Sequences as animated GIF too.")] = False,
    mp4: Annotated[bool, typer.Option("--mp4", help="Sequences as MP4 video too.")] = False,
    objects: Objects = None,
    components: Components = None,
    steps: Annotated[int | None, typer.Option(help="EM steps.", show_default="as trained; curve 50")] = None,
    split: Split = "test",
    static: Static = False,
    data: Data = None,
    masks: Masks = None,
    size: Annotated[
        int | None, typer.Option(help="Sequences to score.", show_default="an earlier evaluation's, or 500")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    weights: Weights = "best",
    preset: Preset = None,
) -> None:
    """Draw the paper's figures from trained runs, as PNG and PDF."""
    from neural_em.experiments.evaluation import Evaluation, Evaluator
    from neural_em.experiments.runs import find_runs
    from neural_em.report.run_figures import KINDS, Subject, draw, save, save_as

    evaluation = Evaluation(
        objects, components, steps, split, static, None if data is None else str(data),
        None if masks is None else str(masks), size=size, seed=seed,
    )  # fmt: skip
    found = find_runs(runs, weights, preset)
    images = static or found.runs[0].experiment.data.frames == 1
    kinds = kind or ["static" if images and gif is mp4 is False else "sequence"]
    for each in kinds:
        if each not in KINDS:
            unknown("kind", each, KINDS)
    with progress_bar() as progress:
        subject = Subject(Evaluator(device, progress), found.runs, evaluation, pick or ())
        drawings = [drawing for each in kinds for drawing in draw(each, subject)]
    if out is not None and out.suffix:
        if len(drawings) > 1:
            refuse("out", f"a folder for {len(drawings)} figures", f"{out}")
        typer.echo(save_as(drawings[0], out))
        return
    alone = len(runs) == 1 and Path(runs[0]).is_dir()
    folder = out or (Path(runs[0]) / "figures" if alone else Path("figures"))
    animations = [name for name, wanted in (("gif", gif), ("mp4", mp4)) if wanted]
    for drawing in drawings:
        for path in save(drawing, folder, animations):
            typer.echo(path)
