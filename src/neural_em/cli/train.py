"""``nem train`` and ``nem presets``: every experiment of the paper from one command."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from neural_em.cli import options
from neural_em.cli.options import assignments, flag, option
from neural_em.errors import NeuralEMError, refuse


def train(
    preset: Annotated[str | None, typer.Argument(metavar="PRESET", hidden=True)] = None,
    objects: Annotated[int | None, option("Objects in a sequence.", "3 shapes, 2 digits, 4 to 8 balls")] = None,
    components: Annotated[
        int | None, option("Number of components, K.", "shapes 3 or 4, digits 2, balls 8, curtain 5")
    ] = None,
    epochs: Annotated[
        int | None, option("Largest number of epochs; training may stop earlier.", "500, some presets fewer")
    ] = None,
    batch_size: Annotated[
        int | None, option("Sequences in a training step, over all processes.", "64, balls 16, Tagger 100")
    ] = None,
    seed: Annotated[int | None, option("Seed of the weights, the order, the noise and the starts.", "0")] = None,
    seeds: Annotated[int | None, option("Number of models to train together, with seeds from --seed on.", "1")] = None,
    train_size: Annotated[int | None, option("Training sequences.", "50000; static-shapes-quick 10000")] = None,
    data: options.Data = None,
    masks: options.Masks = None,
    weights: Annotated[
        str | None,
        option("Start from the weights of a run folder, a weight file or a shipped model.", None, "--from", "MODEL"),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", "--run-dir", help="Run folder.", show_default="runs/ and a name that tells the settings"),
    ] = None,
    resume: Annotated[bool, flag("--resume", "Resume a run; fail if there is none.")] = False,
    device: options.Device = "auto",
    precision: Annotated[str | None, option("float32, tf32, bf16 or float64.", "tf32 on a GPU, else float32")] = None,
    max_minutes: Annotated[float | None, option("Time limit in minutes; run the same command to resume.")] = None,
    settings: Annotated[list[str] | None, assignments("Any other field, such as training.learning_rate=0.0005")] = None,
) -> None:
    """Train a model; the paper's settings are the defaults.

    PRESET is an experiment that `nem presets` lists; `nem presets NAME` shows every field that --set can change.
    Run the same command again to resume.
    """
    given = {
        "data.objects": objects, "training.components": components, "training.epochs": epochs,
        "training.batch_size": batch_size, "training.seed": seed, "data.train_size": train_size,
        "training.precision": precision,
    }  # fmt: skip
    overrides = [f"{name}={value}" for name, value in given.items() if value is not None] + (settings or [])
    from neural_em import experiments

    if preset is not None:
        experiment, found = experiments.build(preset, overrides, data, masks, weights), 1
    elif resume and run is not None:
        for name, value in (("--data", data), ("--masks", masks), ("--from", weights)):
            if value is not None:
                raise NeuralEMError(f"{name} needs a preset; leave it out to resume a run as it began")
        experiment, found = experiments.reopen(run)
        experiment = experiments.override(experiment, overrides)
    else:
        refuse("nem train", f"a preset ({', '.join(experiments.PRESETS)}), or --resume and --run", "none")
    path = experiments.run_path(experiment, run, seeds or found)
    outcomes = experiments.train(experiment, path, found if seeds is None else seeds, device, max_minutes, resume)
    if outcomes[0].path is not None:  # this process is the one that writes
        done = all(outcome.finished for outcome in outcomes)
        typer.echo(f"{path}" if done else f"{path}: resume with: nem train --resume --run {shlex.quote(str(path))}")
    if any(outcome.stopped == "interrupted" for outcome in outcomes):
        raise typer.Exit(options.INTERRUPTED)


def presets(name: Annotated[str | None, typer.Argument(metavar="NAME", hidden=True)] = None) -> None:
    """List the presets, or show every setting of the one called NAME."""
    from neural_em import config, experiments

    if name is not None:
        typer.echo(config.dump(experiments.preset(name)).rstrip())
        return
    width = max(len(each) for each in experiments.PRESETS)
    for each in experiments.PRESETS:
        typer.echo(f"{each:{width}}  {experiments.ABOUT.get(each, '')}".rstrip())
