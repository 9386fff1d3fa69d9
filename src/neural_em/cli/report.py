"""``nem report``: one self-contained page about trained runs."""

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


def register(app: typer.Typer) -> None:
    """Adds the subcommands of this file."""
    app.command("report")(report)


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    objects: Objects = None,
    components: Components = None,
    steps: Annotated[int | None, typer.Option(help="EM steps.", show_default="as trained")] = None,
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
    """Write one HTML page about runs: scores, curves, and their best, typical and worst sequences to step through."""
    from neural_em.experiments.evaluation import Evaluation, Evaluator
    from neural_em.experiments.runs import find_runs
    from neural_em.report.page import write_page
    from neural_em.report.runs import run_reports

    evaluation = Evaluation(
        objects, components, steps, split, static, None if data is None else str(data),
        None if masks is None else str(masks), size=size, seed=seed,
    )  # fmt: skip
    found = find_runs(runs, weights, preset)
    with progress_bar() as progress:
        reports = run_reports(Evaluator(device, progress), found.runs, evaluation)
    typer.echo(write_page(out, reports))
    for problem in found.problems:
        typer.echo(f"left out: {problem}", err=True)
