"""``nem evaluate``: scores trained runs, on their own data or on others."""

from pathlib import Path
from typing import Annotated, Any

import typer

from neural_em.cli import options
from neural_em.cli.options import flag, option
from neural_em.files import from_home, short


def evaluate(
    runs: options.Runs,
    objects: options.Objects = None,
    components: options.Components = None,
    steps: Annotated[
        int | None, option("EM steps; generated sequences get as many frames as they need.", options.STEPS)
    ] = None,
    rollout: options.Rollout = 0,
    split: options.Split = None,
    static: options.Static = False,
    clean: Annotated[bool, flag("--clean", "Let the model see frames without noise.")] = False,
    data: options.Data = None,
    masks: options.Masks = None,
    probe: Annotated[
        bool, flag("--probe", "Also say what can be read from theta: position, colour, shape, size.")
    ] = False,
    starts: Annotated[int, option("Random starts for each sequence.")] = 1,
    size: Annotated[int | None, option("Sequences to score.", "the whole split")] = None,
    batch_size: Annotated[int, option("Sequences at a time; changes results of models with batch norm only.")] = 500,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    weights: options.Weights = "best",
    preset: options.Preset = None,
    changes: options.Changes = None,
    out: Annotated[Path | None, option("Folder for the results.", "evaluations/ in the run folder")] = None,
) -> None:
    """Score trained runs; several seeds give mean and deviation.

    RUN is a run folder (also one of several seeds), a weight file or a shipped model; several may be given.
    Your own data are fitted to the model. The paper's variations: three digits, --objects 3 --components 3; static
    digits, --static --steps 50; longer sequences, --steps 50.
    """
    from neural_em.evaluation import result_table
    from neural_em.experiments.evaluation import Evaluation, Evaluator, differences
    from neural_em.runs.find import find_runs

    evaluation = Evaluation(
        objects, components, steps, split, static, options.text(data), options.text(masks), starts, size, seed,
        batch_size, tuple(changes or ()), rollout, probe, clean,
    )  # fmt: skip
    found = find_runs(runs, weights, preset)
    results, paths = [], []
    with options.progress_bar() as progress:
        evaluator = Evaluator(device, progress)
        for run in found.runs:
            results.append(evaluator.result(run, evaluation))
            paths.append(_write(run, results[-1], evaluation, out, alone=len(found.runs) == 1))
    if len(results) == 1:
        trained, used = found.runs[0].experiment.training.components, results[0].settings["components"]
        typer.echo(f"{found.runs[0].name}: {result_table(results[0])}")
        if trained != used:
            typer.echo(f"trained with {trained} components, evaluated with {used}")
        typer.echo(paths[0] or "not written: only a run has a folder for it; name one with --out")
    else:
        for run, result in zip(found.runs, results, strict=True):
            _show_line(run, result)
        differing = differences(found.runs)
        if differing:
            typer.echo(f"no mean: the runs differ in {', '.join(differing)}")
        else:
            _show_all(runs, found.runs, results, evaluation, out)
    for problem in found.problems:
        typer.echo(f"left out: {problem}", err=True)


def _write(run: Any, result: Any, evaluation: Any, out: Path | None, alone: bool) -> Path | None:
    """Into the run's own folder, or the one that was named; a weight file alone has none."""
    from neural_em.runs.evaluations import EVALUATIONS, write_result

    name = evaluation.name(run)
    if out is not None:
        return write_result(result, out, name if alone else short(f"{name}-{run.name.replace('/', '-')}"))
    return None if run.folder is None else write_result(result, run.folder / EVALUATIONS, name)


def _show_line(run: Any, result: Any) -> None:
    names = {"ami_max": "AMI (max)", "ari": "ARI", "upper_bound": "next-step error"}
    scores = [
        f"{title} {result.last_step[name].mean:.3f}"
        for name, title in names.items()
        if name in result.last_step and result.last_step[name].mean is not None
    ]
    typer.echo(f"{run.name}: last step: {', '.join(scores)}" + (f" ({result.note})" if result.note else ""))


def _show_all(places: list[str], runs: list[Any], results: list[Any], evaluation: Any, out: Path | None) -> None:
    from neural_em.evaluation import aggregate, aggregate_table
    from neural_em.runs.evaluations import EVALUATIONS, write_aggregate

    total = aggregate(results)
    typer.echo(f"mean ± standard deviation: {aggregate_table(total)}")
    folder = out if out is not None else from_home(places[0]) / EVALUATIONS if len(places) == 1 else None
    if folder is not None:
        typer.echo(write_aggregate(total, [run.name for run in runs], folder, evaluation.name(runs[0])))
