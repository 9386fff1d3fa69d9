"""``nem figure`` and ``nem report``: what trained runs look like, as the paper's figures and as one page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from neural_em.cli import options
from neural_em.cli.options import flag, option
from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.files import from_home


def figure(
    runs: options.Runs,
    kind: Annotated[
        list[str] | None,
        option(
            "sequence (over time), rollout (steps without input), attention (which components look at which, in "
            "R-NEM), static (images step by step), curve (AMI per step), bce (prediction error by objects), learning "
            "(curves); may be repeated.",
            "sequence, or static for images",
            name="--kind",  # typer 0.27 makes --KIND of the metavar
            metavar="KIND",
        ),
    ] = None,
    out: Annotated[Path | None, option("Folder, or a file: .png, .pdf, .gif, .mp4.", "RUN/figures")] = None,
    pick: Annotated[
        list[str] | None,
        option("best, typical, worst or an index; may be repeated.", "typical; the first images", "--pick", "WHICH"),
    ] = None,
    gif: Annotated[bool, flag("--gif", "Write sequences as animated GIF too.")] = False,
    mp4: Annotated[bool, flag("--mp4", "Write sequences as MP4 video too.")] = False,
    objects: options.Objects = None,
    components: options.Components = None,
    steps: Annotated[int | None, option("EM steps.", f"{options.STEPS}; curve 50")] = None,
    rollout: Annotated[int, option("Extra steps without input.", "0; rollout 10")] = 0,
    split: options.Split = None,
    static: options.Static = False,
    data: options.Data = None,
    masks: options.Masks = None,
    size: options.Size = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    weights: options.Weights = "best",
    preset: options.Preset = None,
    changes: options.Changes = None,
) -> None:
    """Draw the paper's figures from trained runs, as PNG and PDF.

    RUN is a run folder (also one of several seeds), a weight file or a shipped model; several may be given.
    """
    from neural_em.experiments.evaluation import Evaluation, Evaluator
    from neural_em.report.run_figures import KINDS, Subject, draw_usual, save, save_as

    animations = [name for name, wanted in (("gif", gif), ("mp4", mp4)) if wanted]
    if animations and out is not None and out.suffix:
        raise NeuralEMError(f"--{animations[0]} writes more files; give --out a folder, not the file {out}")
    evaluation = Evaluation(
        objects, components, steps, split, static, options.text(data), options.text(masks), size=size, seed=seed,
        changes=tuple(changes or ()), rollout=rollout,
    )  # fmt: skip
    found = _found(runs, weights, preset)
    for each in kind or ():  # all, before any is drawn
        if each not in KINDS:
            unknown("kind", each, KINDS)
    with options.progress_bar() as progress:
        subject = Subject(Evaluator(device, progress), found, evaluation, pick or ())
        if kind:
            drawings = [drawing for each in kind for drawing in KINDS[each](subject)]
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
    runs: options.Runs,
    out: Annotated[Path, option("The page to write.")] = Path("report.html"),
    objects: options.Objects = None,
    components: options.Components = None,
    steps: Annotated[int | None, option("EM steps.", options.STEPS)] = None,
    rollout: options.Rollout = 0,
    split: options.Split = None,
    static: options.Static = False,
    data: options.Data = None,
    masks: options.Masks = None,
    size: options.Size = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    weights: options.Weights = "best",
    preset: options.Preset = None,
    changes: options.Changes = None,
) -> None:
    """Write one HTML page about runs, with sequences to step through.

    RUN is a run folder (also one of several seeds), a weight file or a shipped model; several stand side by side.
    The page shows scores, curves, settings, and the best, a typical and the worst sequence.
    """
    from neural_em.experiments.evaluation import Evaluation, Evaluator
    from neural_em.report.page import write_page
    from neural_em.report.run_reports import run_reports

    evaluation = Evaluation(
        objects, components, steps, split, static, options.text(data), options.text(masks), size=size, seed=seed,
        changes=tuple(changes or ()), rollout=rollout,
    )  # fmt: skip
    found = _found(runs, weights, preset)
    with options.progress_bar() as progress:
        reports = run_reports(Evaluator(device, progress), found, evaluation)
    typer.echo(write_page(out, reports))


def _found(runs: list[str], weights: str, preset: str | None) -> list[Any]:
    """The runs that can be used; of the others it is said at once why not."""
    from neural_em.runs.find import find_runs

    found = find_runs(runs, weights, preset)
    for problem in found.problems:
        typer.echo(f"left out: {problem}", err=True)
    return list(found.runs)
