"""``nem reproduce``: the paper's results from one command."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from neural_em.cli import options
from neural_em.cli.options import assignments, flag, option
from neural_em.errors import NeuralEMError


def reproduce(
    experiments: Annotated[list[str] | None, typer.Argument(metavar="EXPERIMENT", hidden=True)] = None,
    seeds: Annotated[int | None, option("Runs of each experiment.", "5; relational 3; quick 2")] = None,
    quick: Annotated[bool, flag("--quick", "Everything at toy size, to see that it works.")] = False,
    report: Annotated[bool, flag("--report", "Only write the page, from the runs that are there.")] = False,
    device: options.Device = "auto",
    out: Annotated[Path | None, option("Folder of the results.", "results; quick runs/quick/results")] = None,
    runs: Annotated[Path | None, option("Folder of the runs.", "runs/reproduce; quick runs/quick")] = None,
    epochs: Annotated[int | None, option("Largest number of epochs, of each stage.", "as in the preset")] = None,
    settings: Annotated[
        list[str] | None,
        assignments(
            "Change training.epochs or training.patience of every training; of relational also data.train_size "
            "(sequences an epoch) and training.learning_rate"
        ),
    ] = None,
    precision: Annotated[
        str, option("Precision of training: auto (tf32 on a GPU), float32, or bf16, which is faster on a GPU.")
    ] = "auto",
    max_minutes: Annotated[float | None, option("Time limit in minutes; run the same command to resume.")] = None,
    unfinished: Annotated[
        bool, flag("--unfinished", "Evaluate runs that are not finished too; the page marks them.")
    ] = False,
) -> None:
    """Train and evaluate the paper's experiments; write their page.

    EXPERIMENT is static-shapes, static-shapes-nem, flying-shapes-3-3 (objects, K), -3-5, -5-3, -5-5 (or table-1 for
    the four), bce, flying-mnist, flying-mnist-staged, static-shapes-plus, static-shapes-nem-plus,
    flying-shapes-plus-3-3, -3-5, -5-3, -5-5 (or table-1-plus), flying-mnist-plus, tagger-20 (pixels), -28,
    tagger-batch-norm-20, -28 (or tagger, for these and all that they are compared with), flying-shapes-3-5-still,
    -dense, -dense-still (or motion, for these and flying-shapes-3-5). Give several, or none for all of these; the
    page is results/reproduction.md. Or give relational, or some of its four: bouncing-balls,
    bouncing-balls-rnn-em, bouncing-balls-rnn, curtain; their page is results/relational.md.
    Run the same command again to resume. Runs that are already there are not trained or evaluated again.
    """
    from neural_em.reproduce import RelationalReproduction, Reproduction
    from neural_em.reproduce.plan import QUICK_SEEDS
    from neural_em.reproduce.work import QUICK_RUNS, RESULTS, RUNS

    of_balls = (*RelationalReproduction.trainings, *RelationalReproduction.groups)
    of_page = RelationalReproduction if any(name in of_balls for name in experiments or ()) else Reproduction
    trainings = of_page.chosen(experiments or (), quick)
    runs = runs or (QUICK_RUNS if quick else RUNS)
    out = out or (runs / "results" if quick else RESULTS)
    seeds = seeds if seeds is not None else QUICK_SEEDS if quick else of_page.usual_seeds
    work = of_page(
        runs, out, seeds, quick, device, epochs, precision, max_minutes, unfinished, settings or (),
        _mnist_once(typer.echo),
    )  # fmt: skip
    typer.echo(work.report() if report else work.do(trainings))
    if work.interrupted:
        raise typer.Exit(options.INTERRUPTED)
    if work.problems:
        count = f"{len(work.problems)} of {len(trainings)} trainings"
        named: dict[str, list[str]] = {}
        for name, _, problem in (each.partition(": ") for each in work.problems):
            named.setdefault(problem, []).append(name)
        problems = "; ".join(f"{', '.join(names)}: {problem}" for problem, names in named.items())
        raise NeuralEMError(f"reproduce: problems in {count}: {problems}")


def _mnist_once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Says in full only once that MNIST is missing, whatever stands before it."""
    told: set[str] = set()

    def once(line: str) -> None:
        name, _, text = line.partition(": ")
        say(f"{name}: MNIST is missing, as above" if "MNIST" in text and text in told else line)
        told.add(text)

    return once
