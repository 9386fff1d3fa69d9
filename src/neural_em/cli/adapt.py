"""``nem adapt``: training on a clip of the user's own, in one command."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from neural_em.cli import options
from neural_em.cli.options import option


def adapt(
    clip: Annotated[Path, typer.Argument(metavar="CLIP", hidden=True)],
    weights: Annotated[
        str, option("Start from a shipped model, a run folder or a weight file.", None, "--from", "MODEL")
    ] = "flying-shapes",
    components: options.Components = None,
    masks: options.Masks = None,
    minutes: Annotated[float, option("Time that training may take, about.")] = 8,
    run: Annotated[Path | None, option("Run folder.", "runs/adapt- and the clip's name")] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
) -> None:
    """Train a model on a clip of your own, with all settings chosen.

    CLIP is a video, a GIF, an array, a folder of frames, or a folder of these. The ground is learned from the clip, its
    end is held out to tell when to stop, and a few steps tell how long it takes before it begins. Run the same command
    again to resume.
    """
    from neural_em import experiments
    from neural_em.experiments.adapt import plan
    from neural_em.storage.folders import check_reachable

    path = Path("runs") / f"adapt-{clip.absolute().stem}" if run is None else run
    check_reachable(path)
    made = plan(clip, weights, components, masks, minutes, seed, device)
    for line in made.lines:
        typer.echo(line)
    (outcome,) = experiments.train(made.experiment, path, device=device)
    typer.echo(f"{path}: use it with: nem segment {shlex.quote(str(clip))} --model {shlex.quote(str(path))} --out DIR")
    if outcome.stopped == "interrupted":
        raise typer.Exit(options.INTERRUPTED)
