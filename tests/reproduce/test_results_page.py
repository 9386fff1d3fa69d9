"""The page that sets ours beside the paper's numbers, and the commands on it."""

from __future__ import annotations

import re
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest
import typer

from neural_em.cli.app import app
from neural_em.experiments import build
from neural_em.experiments.evaluation import Evaluation
from neural_em.report.plots import bce_figure
from neural_em.reproduce import NUMBERS, TRAININGS, Reproduction, work
from neural_em.reproduce.results_page import cells, render
from tests.reproduce.made import evaluated, record, row, trained


def test_the_commands_on_the_page_are_the_work_that_is_done() -> None:
    """Parsed as the command line would, they give the same experiments and evaluations."""
    group: Any = typer.main.get_command(app)
    for name, training in TRAININGS.items():
        program, command, *words = shlex.split(training.command(Path("runs") / name, 5))
        assert (program, command) == ("nem", "train")
        given = group.commands["train"].make_context("train", words).params
        assert (given["seeds"], given["run"]) == (5, Path("runs") / name)
        overrides = [f"data.objects={given['objects']}"] if given["objects"] else []
        overrides += [f"training.components={given['components']}"] if given["components"] else []
        assert build(given["preset"], [*overrides, *(given["settings"] or ())]) == training.experiment()
        for evaluation in training.evaluations.values():
            given = (
                group.commands["evaluate"].make_context("evaluate", ["RUN", *shlex.split(evaluation.options())]).params
            )
            names = ("objects", "components", "steps", "split", "static", "data", "masks", "starts", "size", "seed")
            changes = tuple(given["changes"] or ())
            found = Evaluation(*(given[name] for name in names), given["batch_size"], changes, clean=given["clean"])
            assert found == evaluation


@pytest.mark.parametrize(
    ("name", "epochs", "said"),
    [
        ("static-shapes-plus", [100], ()),
        ("static-shapes-plus", [7], ("--epochs", "7")),
        ("flying-mnist-plus", [25, 12, 24, 18], ()),
        ("flying-mnist-plus", [6, 6, 6, 6], ("--epochs", "6")),
        ("flying-mnist-plus", [25, 12, 24, 3], None),
        ("flying-mnist-plus", [25], None),
        ("flying-mnist-plus", [10, 10], None),
        ("flying-mnist-staged", [25, 10, 10], None),
    ],
)
def test_a_command_names_the_epochs_of_every_stage_where_they_are_not_as_usual(name, epochs, said) -> None:  # type: ignore[no-untyped-def]
    words = shlex.split(TRAININGS[name].command(Path("runs"), 3, epochs))
    rest = words[3 : words.index("--seeds")]
    overrides = [f"training.epochs={rest[1]}"] if rest[:1] == ["--epochs"] else rest[1:]
    stages = build(name, overrides).parts()
    assert [stage.training.epochs for stage in stages] == epochs
    usual = build(name).parts()[: len(epochs)]
    assert [stage.training.schedule for stage in stages] == [stage.training.schedule for stage in usual]
    assert said is None or tuple(rest) == said


@pytest.mark.parametrize("stopped", ["epochs", "interrupted", "max-minutes"])
def test_the_command_of_a_staged_run_has_each_stages_epochs(stopped: str) -> None:
    """Read as the command line would, it trains as long as the run did: 25, 25 and 15 epochs."""
    run = {"finished": stopped == "epochs", "stopped": stopped, "stage_epochs": [25, 25, 15], "evaluations": {}}
    page = render(cells({}), {"flying-mnist-staged": record("flying-mnist-staged", run)}, Path("runs"))
    (line,) = re.findall(r"^nem train flying-mnist-staged .*$", page, re.MULTILINE)
    group: Any = typer.main.get_command(app)
    given = group.commands["train"].make_context("train", shlex.split(line)[2:]).params
    made, usual = build(given["preset"], given["settings"]), build("flying-mnist-staged")
    assert [made.stage(n).training.epochs for n in range(3)] == [25, 25, 15]
    for n in range(3):
        assert made.stage(n).data == usual.stage(n).data
        assert made.stage(n).training.learning_rate == usual.stage(n).training.learning_rate


def test_a_cell_is_mean_and_deviation_over_its_runs() -> None:
    scores = [0.97, 0.95, 0.99]
    runs = [trained(evaluations={"test": evaluated(score, mean=score - 0.1)}) for score in scores]
    found = cells({"flying-shapes-3-3": record("flying-shapes-3-3", *runs, trained())})  # the fourth is not evaluated
    (cell,) = (cell for cell in found if not cell.missing)
    assert (cell.paper.training, cell.paper.evaluation) == ("flying-shapes-3-3", "test")
    assert cell.seeds == ("0", "1", "2")
    assert cell.last_step.mean == pytest.approx(statistics.mean(scores))
    assert cell.last_step.deviation == pytest.approx(statistics.stdev(scores))
    assert cell.mean_over_steps.mean == pytest.approx(statistics.mean(scores) - 0.1)
    page = render(found, {"flying-shapes-3-3": record("flying-shapes-3-3", *runs)}, Path("runs"))
    assert row(page, "Table 1, test  ", " 3 objects, K = 3  ") == [
        "Table 1, test", "3 objects, K = 3", "0.970 ± 0.005", "0.970 ± 0.020", "+0.000", "0.870 ± 0.020", "3",
        "83, 83, 83 (patience)", "k-means 0.250",
    ]  # fmt: skip
    assert row(page, "flying-shapes-3-3", "  2 |") == [
        "flying-shapes-3-3", "2", "83", "73", "patience", "90 min", "bf16", "abacus", "0123456789", "2.13"
    ]  # fmt: skip
    assert "nem train flying-shapes --objects 3 --components 3 --precision bf16 --seeds 3" in page


def test_the_page_says_by_how_much_ours_is_below_and_how_often() -> None:
    """With the paper's three decimals: 0.96951 is its 0.970, 0.9694 is not; bars have no number to be below."""
    for score, difference, below in ((0.96951, "+0.000", 0), (0.9694, "-0.001", 1), (0.9852, "+0.015", 0)):
        runs = {
            name: record(name, trained(evaluations={"test": evaluated(score, measure)}))
            for name, measure in (("flying-shapes-3-3", "ami_max"), ("flying-shapes-3-1", "upper_bound"))
        }
        page = render(cells(runs), runs, Path("runs"))
        assert row(page, "Table 1, test  ", " 3 objects, K = 3  ")[4] == difference
        assert f"{below} of ours are below the paper's." in page


def test_no_run_no_number() -> None:
    found = cells({})
    assert all(cell.missing for cell in found)
    page = render(found, {}, Path("runs"))
    for number in NUMBERS:
        (line,) = (
            line for line in page.splitlines()
            if line.startswith("|") and [number.where, number.about] == [c.strip() for c in line.split("|")[1:3]]
        )  # fmt: skip
        ours = [cell.strip() for cell in line.strip("|").split("|")][3:]
        assert ours == ["*missing*", "–", "–", "0", "–", "–"]
    assert "0 of the paper's 20 numbers have been run here" in page
    assert page.count("figure only") == 7
    assert "- `nem reproduce flying-mnist`: test, three digits, static digits, 50 steps\n" in page
    assert "## Runs" not in page
    nothing = {"flying-mnist": record("flying-mnist", trained(evaluations={"test": evaluated(None)}))}  # type: ignore[arg-type]
    assert all(cell.missing for cell in cells(nothing))  # evaluated, but nothing to score


def test_failed_and_unfinished_runs_are_named() -> None:
    runs = [
        trained(evaluations={"test": evaluated(0.8)}),
        trained(finished=False, stopped="max-minutes", evaluations={"test": evaluated(0.6)}),
        trained(finished=False, stopped="not-a-number", problem="training loss: expected a finite number, got nan"),
        trained(finished=False, stopped=None),
    ]
    records = {"static-shapes": record("static-shapes", *runs)}
    page = render(cells(records), records, Path("runs"))
    assert row(page, "Section 4.1", "| RNN-EM |")[3:8] == [
        "0.700 ± 0.141", "-0.126", "0.500 ± 0.000", "2, of which 1 not finished", "83 (patience); 83 (max-minutes)"
    ]  # fmt: skip
    assert "- static-shapes, seed 1: stopped early: max-minutes" in page
    assert "- static-shapes, seed 2: training loss: expected a finite number, got nan" in page
    assert "- static-shapes, seed 3: stopped early: killed" in page
    assert "seed 0:" not in page


def test_errors_have_other_digits_and_no_baseline() -> None:
    runs = [trained(evaluations={"test": evaluated(value, "upper_bound")}) for value in (40.0, 42.0)]
    records = {"flying-shapes-4-1": record("flying-shapes-4-1", *runs)}
    page = render(cells(records), records, Path("runs"))
    assert row(page, "Figure 5", "recurrent autoencoder, K = 1, 4 objects")[2:5] == ["figure only", "41.00 ± 1.41", "–"]


def test_the_bars_of_errors_are_of_the_papers_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a preset of our own have as many objects and components, and are no bars of Figure 5."""
    drawn: list[dict[tuple[str, int], list[float]]] = []
    monkeypatch.setattr(work, "bce_figure", lambda found: drawn.append(found) or bce_figure(found))
    errors = {"flying-shapes-3-5": 16.0, "flying-shapes-plus-3-5": 9.0, "flying-shapes-3-1": 75.0}
    records = {
        name: record(name, trained(evaluations={"test": evaluated(error, "upper_bound")}))
        for name, error in errors.items()
    }
    Reproduction(tmp_path / "runs", tmp_path, device="cpu").pictures(records)
    assert drawn == [{("RNN-EM (K = 5)", 3): [16.0], ("recurrent autoencoder (K = 1)", 3): [75.0]}]
    assert (tmp_path / "figures" / "bce.png").is_file()
