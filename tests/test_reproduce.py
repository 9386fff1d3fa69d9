"""The paper's numbers, what is run for them, and the page that sets ours beside them."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest
import typer

from neural_em.cli.app import app
from neural_em.errors import NeuralEMError
from neural_em.experiments import build
from neural_em.experiments.evaluation import Evaluation, Evaluator
from neural_em.report.run_figures import bce_bars
from neural_em.reproduce import COMPARISONS, GROUPS, NUMBERS, TRAININGS, Reproduction, chosen, pictures
from neural_em.reproduce.cells import cells
from neural_em.reproduce.page import render
from neural_em.reproduce.records import collect, finished, laid_out, read_record, write_record

# the rows of the paper's Table 1, as they are printed: train, test, test generalization
TABLE_1 = """
3 & 3 & 0.969 $\\pm$ 0.006 & & 3 & 3 & 0.970 $\\pm$ 0.005 & & 3 & 5 & 0.972 $\\pm$ 0.007
3 & 5 & 0.997 $\\pm$ 0.001 & & 3 & 5 & 0.997 $\\pm$ 0.002 & & 3 & 3 & 0.914 $\\pm$ 0.015
5 & 3 & 0.614 $\\pm$ 0.003 & & 5 & 3 & 0.614 $\\pm$ 0.003 & & 3 & 3 & 0.886 $\\pm$ 0.010
5 & 5 & 0.878 $\\pm$ 0.003 & & 5 & 5 & 0.878 $\\pm$ 0.003 & & 3 & 5 & 0.981 $\\pm$ 0.003
"""
IN_THE_TEXT = {
    ("static-shapes", "test"): (0.826, 0.005),
    ("static-shapes-nem", "test"): (0.475, 0.043),
    ("flying-mnist", "test"): (0.819, 0.022),
    ("flying-mnist-staged", "test"): (0.917, 0.005),
    ("flying-mnist", "three digits"): (0.729, 0.019),
    ("flying-mnist-staged", "three digits"): (0.838, 0.008),
    ("flying-mnist", "static digits"): (0.619, 0.023),
    ("flying-mnist-staged", "static digits"): (0.772, 0.008),
}


def evaluated(last: float, score: str = "ami_max", mean: float = 0.5) -> dict[str, Any]:
    """What a record holds of one evaluation."""
    return {
        "last_step": {score: {"mean": last, "quartiles": [0, 0, 0]}},
        "mean_over_steps": {score: {"mean": mean, "quartiles": [0, 0, 0]}},
        "baselines": {"k-means": {score: {"mean": 0.25, "quartiles": [0, 0, 0]}}},
        "sequences": 10_000,
        "steps": 20,
        "curves": {},
    }


def trained(**changes: Any) -> dict[str, Any]:
    """What a record holds of one run."""
    run = {
        "finished": True, "stopped": "patience", "problem": None, "epochs": 83, "best_epoch": 73, "seconds": 5400.0,
        "warnings": [], "precision": "bf16", "device": "abacus", "commit": "0123456789abcdef", "torch": "2.13",
        "evaluations": {},
    }  # fmt: skip
    return {**run, **changes}


def record(name: str, *runs: dict[str, Any]) -> dict[str, Any]:
    return {"format": 1, "training": name, "quick": False, "runs": {str(seed): run for seed, run in enumerate(runs)}}


def row(page: str, *words: str) -> list[str]:
    """The cells of the one table row with these words."""
    (line,) = (line for line in page.splitlines() if line.startswith("|") and all(word in line for word in words))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_number_of_the_paper_is_there() -> None:
    known = {(number.training, number.evaluation): (number.mean, number.deviation) for number in NUMBERS
             if number.mean is not None}  # fmt: skip
    expected = dict(IN_THE_TEXT)
    for line in TABLE_1.strip().splitlines():
        trained_on, tested, other = (re.findall(r"[\d.]+", part) for part in line.split(" & & "))
        assert trained_on[:2] == tested[:2]
        name = f"flying-shapes-{'-'.join(trained_on[:2])}"
        for evaluation, (_, _, mean, deviation) in (("train", trained_on), ("test", tested), ("generalisation", other)):
            expected[name, evaluation] = (float(mean), float(deviation))
        objects, components = map(int, other[:2])
        assert TRAININGS[name].evaluations["generalisation"] == Evaluation(objects=objects, components=components)
    assert known == expected
    assert len(known) == 20
    figures = [number for number in NUMBERS if number.mean is None]
    assert sorted(number.where for number in figures) == ["Figure 5"] * 6 + ["Figure 6"]


def test_every_number_has_its_training_and_evaluation() -> None:
    numbers = (*NUMBERS, *COMPARISONS)
    for number in numbers:
        assert number.evaluation in TRAININGS[number.training].evaluations, number
    used = {(number.training, number.evaluation) for number in numbers}
    planned = {(name, evaluation) for name, training in TRAININGS.items() for evaluation in training.evaluations}
    assert used == planned


def test_what_goes_beyond_the_paper_is_set_beside_its_number_but_not_counted_as_one_of_it() -> None:
    known = {(number.mean, number.deviation) for number in NUMBERS}
    for number in COMPARISONS:
        assert (number.mean, number.deviation) in known
        done = trained(evaluations={number.evaluation: evaluated(0.9)})
        found = cells({number.training: record(number.training, done)})
        page = render(found, {}, Path("runs"))
        assert "Of the paper's 20 numbers 0 have been run here" in page
        assert "## Beyond the paper" not in render(cells({}), {}, Path("runs"))
        after = page[page.index("## Beyond the paper") :]
        paper = f"{number.mean:.3f} ± {number.deviation:.3f}"
        assert row(after, f" {number.where} ", f" {number.about} ", " 0.900 ")[2] == paper


def test_the_trainings_are_the_papers() -> None:
    beyond = {number.training for number in COMPARISONS}
    papers = {name: training for name, training in TRAININGS.items() if name not in beyond}
    sizes = {name: (t.experiment().data.objects, t.experiment().training.components) for name, t in papers.items()}
    for objects, components in ((3, 3), (3, 5), (5, 3), (5, 5), (4, 5), (3, 1), (4, 1), (5, 1)):
        assert sizes.pop(f"flying-shapes-{objects}-{components}") == (objects, components)
    assert sizes == {"static-shapes": (3, 4), "static-shapes-nem": (3, 4), "flying-mnist": (2, 2),
                     "flying-mnist-staged": (2, 2)}  # fmt: skip
    for name, training in papers.items():
        experiment = training.experiment()
        assert (experiment.data.train_size, experiment.data.test_size) == (50_000, 10_000)
        assert (experiment.training.batch_size, experiment.training.epochs, experiment.training.patience) == (
            64,
            500,
            10,
        )
        assert (experiment.model.m_step == "gradient") is (name == "static-shapes-nem")
    assert len(TRAININGS["flying-mnist-staged"].experiment().stages) == 3


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
        assert build(given["preset"], overrides) == training.experiment()
        for evaluation in training.evaluations.values():
            given = (
                group.commands["evaluate"].make_context("evaluate", ["RUN", *shlex.split(evaluation.options())]).params
            )
            names = ("objects", "components", "steps", "split", "static", "data", "masks", "starts", "size", "seed")
            found = Evaluation(*(given[name] for name in names), changes=tuple(given["changes"] or ()))
            assert found == evaluation


@pytest.mark.parametrize(
    ("name", "epochs", "said"),
    [
        ("static-shapes-plus", [100], ()),
        ("static-shapes-plus", [7], ("--epochs", "7")),
        ("flying-mnist-plus", [25, 10, 10, 25], ()),
        ("flying-mnist-plus", [6, 6, 6, 6], ("--epochs", "6")),
        ("flying-mnist-plus", [25, 10, 10, 3], None),
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
    runs = {"0": {"finished": stopped == "epochs", "stopped": stopped, "stage_epochs": [25, 25, 15], "evaluations": {}}}
    page = render(cells({}), {"flying-mnist-staged": {"runs": runs}}, Path("runs"))
    (line,) = re.findall(r"^nem train flying-mnist-staged .*$", page, re.MULTILINE)
    group: Any = typer.main.get_command(app)
    given = group.commands["train"].make_context("train", shlex.split(line)[2:]).params
    made, usual = build(given["preset"], given["settings"]), build("flying-mnist-staged")
    assert [made.stage(n).training.epochs for n in range(3)] == [25, 25, 15]
    for n in range(3):
        assert made.stage(n).data == usual.stage(n).data
        assert made.stage(n).training.learning_rate == usual.stage(n).training.learning_rate


def test_choosing_experiments() -> None:
    assert [training.name for training in chosen(())] == list(TRAININGS)
    assert {training.name for training in chosen(["bce"])} == {
        f"flying-shapes-{n}-{k}" for n in (3, 4, 5) for k in (1, 5)
    }
    assert len(chosen(["table-1", "bce", "flying-shapes-3-3"])) == 8  # each once
    assert set(GROUPS) == {"table-1", "table-1-plus", "bce"}
    with pytest.raises(NeuralEMError, match="did you mean 'flying-mnist'"):
        chosen(["flying-mnis"])


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
        "Table 1, test", "3 objects, K = 3", "0.970 ± 0.005", "0.970 ± 0.020", "0.870 ± 0.020", "3",
        "83, 83, 83 (patience)", "k-means 0.250",
    ]  # fmt: skip
    assert row(page, "flying-shapes-3-3", "  2 |") == [
        "flying-shapes-3-3", "2", "83", "73", "patience", "90 min", "bf16", "abacus", "0123456789", "2.13"
    ]  # fmt: skip
    assert "nem train flying-shapes --objects 3 --components 3 --precision bf16 --seeds 3" in page


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
        assert ours == ["*missing*", "–", "0", "–", "–"]
    assert "Of the paper's 20 numbers 0 have been run here" in page
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
    assert row(page, "Section 4.1", "| RNN-EM |")[3:7] == [
        "0.700 ± 0.141", "0.500 ± 0.000", "2, of which 1 not finished", "83 (patience); 83 (max-minutes)"
    ]  # fmt: skip
    assert "- static-shapes, seed 1: stopped early: max-minutes" in page
    assert "- static-shapes, seed 2: training loss: expected a finite number, got nan" in page
    assert "- static-shapes, seed 3: stopped early: killed" in page
    assert "seed 0:" not in page


def test_errors_have_other_digits_and_no_baseline() -> None:
    runs = [trained(evaluations={"test": evaluated(value, "upper_bound")}) for value in (40.0, 42.0)]
    records = {"flying-shapes-4-1": record("flying-shapes-4-1", *runs)}
    page = render(cells(records), records, Path("runs"))
    assert row(page, "Figure 5", "recurrent autoencoder, K = 1, 4 objects")[2:4] == ["figure only", "41.00 ± 1.41"]


def test_the_bars_of_errors_are_of_the_papers_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a preset of our own have as many objects and components, and are no bars of Figure 5."""
    drawn: list[dict[tuple[str, int], list[float]]] = []
    monkeypatch.setattr(pictures, "bce_bars", lambda found: drawn.append(found) or bce_bars(found))
    errors = {"flying-shapes-3-5": 16.0, "flying-shapes-plus-3-5": 9.0, "flying-shapes-3-1": 75.0}
    records = {
        name: record(name, trained(evaluations={"test": evaluated(error, "upper_bound")}))
        for name, error in errors.items()
    }
    pictures.draw_all(records, tmp_path / "runs", tmp_path, Evaluator("cpu"))
    assert drawn == [{("RNN-EM (K = 5)", 3): [16.0], ("recurrent autoencoder (K = 1)", 3): [75.0]}]
    assert (tmp_path / "figures" / "bce.png").is_file()


def test_records_are_kept_and_only_read_by_their_own_kind(tmp_path: Path) -> None:
    training = TRAININGS["static-shapes"]
    before = record("static-shapes", trained(evaluations={"test": evaluated(0.8)}))
    path = tmp_path / "results" / "static-shapes.json"
    write_record(path, before)
    assert read_record(path, training) == before
    assert collect(training, tmp_path / "no-runs-here", before) == before  # a clone without the runs
    with pytest.raises(NeuralEMError, match="same size"):
        read_record(path, training.small())
    with pytest.raises(NeuralEMError, match="record of flying-mnist"):
        read_record(path, TRAININGS["flying-mnist"])
    path.write_text("{")
    with pytest.raises(NeuralEMError, match=r"static-shapes\.json"):
        read_record(path, training)
    assert read_record(tmp_path / "none.json", training) is None


@pytest.mark.parametrize(
    ("name", "epochs", "asked", "done"),
    [
        ("flying-mnist-plus", 25, None, True),  # as many as the last stage has
        ("flying-mnist-plus", 24, None, False),
        ("flying-mnist-plus", 25, 26, False),
        ("flying-mnist-staged", 25, None, False),
        ("flying-mnist-staged", 25, 25, True),
        ("static-shapes", 500, None, True),
    ],
)
def test_a_run_is_finished_with_the_epochs_of_its_last_stage(
    name: str, epochs: int, asked: int | None, done: bool, tmp_path: Path
) -> None:
    summary = {"stopped": "epochs", "finished": True, "epochs": epochs}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert finished(tmp_path, TRAININGS[name].experiment(asked)) is done


def test_laid_out_is_json() -> None:
    value = {"a": {"b": {"c": [1, {"d": None}]}}, "e": {}, "f": [1.5]}
    assert json.loads(laid_out(value)) == value
    assert json.loads(laid_out(value, levels=1)) == value
    assert laid_out(value, levels=1).count("\n") == 4


def test_toy_runs_never_reach_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for out in ("results", "results/deeper", "elsewhere/../results"):
        with pytest.raises(NeuralEMError, match="outside of results/"):
            Reproduction(Path("runs"), Path(out), quick=True)
    Reproduction(Path("runs"), Path("results-of-mine"), quick=True)
    assert list(tmp_path.iterdir()) == []


def test_toy_runs_reach_no_results_from_another_folder_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name, file in (("results", "first-runs.md"), ("ours", "reproduction.json")):
        folder = tmp_path / "project" / name
        folder.mkdir(parents=True)
        Reproduction(Path("runs"), folder, quick=True)  # nothing there yet
        (folder / file).write_text('{"quick": false, "cells": []}')
        with pytest.raises(NeuralEMError, match="outside of results/"):
            Reproduction(Path("runs"), folder, quick=True)
    with pytest.raises(NeuralEMError, match="outside of results/"):
        Reproduction(Path("runs"), tmp_path / "project" / "results" / "toys", quick=True)
    (tmp_path / "project" / "ours" / "reproduction.json").write_text('{"quick": true, "cells": []}')
    Reproduction(Path("runs"), tmp_path / "project" / "ours", quick=True)  # of toy size itself
