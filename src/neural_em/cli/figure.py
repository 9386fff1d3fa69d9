"""``nem figure`` and ``nem report``: what trained runs look like, as the paper's figures and as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from neural_em.cli.evaluate import (
    Components,
    Data,
    Device,
    Masks,
    Objects,
    Preset,
    Rollout,
    Runs,
    Seed,
    Split,
    Static,
    Weights,
    progress_bar,
)
from neural_em.errors import refuse, unknown
from neural_em.files import from_home

Size = Annotated[int | None, typer.Option(help="Sequences to score.", show_default="an earlier evaluation's, or 500")]


def register(app: typer.Typer) -> None:
    """Adds the subcommands of this file."""
    app.command("figure")(figure)
    app.command("report")(report)


def figure(
    runs: Runs,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",  # typer 0.27 makes --KIND of the metavar
            metavar="KIND",
            help="sequence (over time), rollout (steps without input), attention (who heeds whom in R-NEM), static "
            "(images step by step), curve (AMI per step), bce (prediction error by objects), learning (curves); repeat "
            "it for several.",
            show_default="sequence, or static for images",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder, or a file: .png, .pdf, .gif, .mp4.", show_default="RUN/figures")
    ] = None,
    pick: Annotated[
        list[str] | None,
        typer.Option(
            "--pick",
            metavar="WHICH",
            help="best, typical, worst or an index; repeat it.",
            show_default="typical; the first images",
        ),
    ] = None,
    gif: Annotated[bool, typer.Option("--gif", help="Sequences as animated GIF too.")] = False,
    mp4: Annotated[bool, typer.Option("--mp4", help="Sequences as MP4 video too.")] = False,
    objects: Objects = None,
    components: Components = None,
    steps: Annotated[int | None, typer.Option(help="EM steps.", show_default="as trained; curve 50")] = None,
    rollout: Annotated[int, typer.Option(help="Further steps without input.", show_default="0; rollout 10")] = 0,
    split: Split = None,
    static: Static = False,
    data: Data = None,
    masks: Masks = None,
    size: Size = None,
    seed: Seed = 0,
    device: Device = "auto",
    weights: Weights = "best",
    preset: Preset = None,
) -> None:
    """Draw the paper's figures from trained runs, as PNG and PDF.

    RUN is a run folder (also one of several seeds), a weight file or a shipped model; several may be given.
    """
    from neural_em.experiments.evaluation import Evaluator
    from neural_em.report.run_figures import KINDS, Subject, draw, draw_usual, save, save_as

    animations = [name for name, wanted in (("gif", gif), ("mp4", mp4)) if wanted]
    if animations and out is not None and out.suffix:
        refuse(f"--{animations[0]}", "a folder to write into as well (--out)", f"the file {out}")
    evaluation = _evaluation(objects, components, steps, split, static, data, masks, size, seed, rollout)
    found = _found(runs, weights, preset)
    for each in kind or ():
        if each not in KINDS:
            unknown("kind", each, KINDS)
    with progress_bar() as progress:
        subject = Subject(Evaluator(device, progress), found, evaluation, pick or ())
        if kind:
            drawings = [drawing for each in kind for drawing in draw(each, subject)]
        else:
            drawings = draw_usual(subject, animated=bool(animations))
    if out is not None and out.suffix:
        if len(drawings) > 1:
            refuse("out", f"a folder for {len(drawings)} figures", f"{out}")
        typer.echo(save_as(drawings[0], out))
        return
    alone = len(runs) == 1 and from_home(runs[0]).is_dir()
    folder = out or (from_home(runs[0]) / "figures" if alone else Path("figures"))
    for drawing in drawings:
        for path in save(drawing, folder, animations):
            typer.echo(path)


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    objects: Objects = None,
    components: Components = None,
    steps: Annotated[int | None, typer.Option(help="EM steps.", show_default="as trained")] = None,
    rollout: Rollout = 0,
    split: Split = None,
    static: Static = False,
    data: Data = None,
    masks: Masks = None,
    size: Size = None,
    seed: Seed = 0,
    device: Device = "auto",
    weights: Weights = "best",
    preset: Preset = None,
) -> None:
    """Write one HTML page about runs, with sequences to step through.

    RUN is a run folder (also one of several seeds), a weight file or a shipped model; several stand side by side.
    The page shows scores, curves, settings, and the best, a typical and the worst sequence.
    """
    from neural_em.experiments.evaluation import Evaluator
    from neural_em.report.page import write_page
    from neural_em.report.run_reports import run_reports

    evaluation = _evaluation(objects, components, steps, split, static, data, masks, size, seed, rollout)
    found = _found(runs, weights, preset)
    with progress_bar() as progress:
        reports = run_reports(Evaluator(device, progress), found, evaluation)
    typer.echo(write_page(out, reports))


def _evaluation(
    objects: int | None,
    components: int | None,
    steps: int | None,
    split: str | None,
    static: bool,
    data: Path | None,
    masks: Path | None,
    size: int | None,
    seed: int,
    rollout: int,
) -> Any:
    from neural_em.experiments.evaluation import Evaluation

    own, groups = (None if path is None else str(path) for path in (data, masks))
    return Evaluation(objects, components, steps, split, static, own, groups, size=size, seed=seed, rollout=rollout)


def _found(runs: list[str], weights: str, preset: str | None) -> list[Any]:
    """The runs that can be used; of the others it is said at once why not."""
    from neural_em.runs.find import find_runs

    found = find_runs(runs, weights, preset)
    for problem in found.problems:
        typer.echo(f"left out: {problem}", err=True)
    return list(found.runs)
