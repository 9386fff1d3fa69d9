"""The paper's numbers, and what is run for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neural_em.errors import NeuralEMError
from neural_em.experiments.evaluation import Evaluation
from neural_em.reproduce import COMPARISONS, GROUPS, NUMBERS, TRAININGS, Reproduction
from neural_em.reproduce.paper import COMPARED
from neural_em.reproduce.results_page import cells, render
from tests.reproduce.made import evaluated, record, row, trained

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
    for name, _, ending in COMPARED:  # the table of Tagger has its own
        pair = ("standing", "standing, clean") if name.startswith("flying") else ("test", "clean")
        used |= {(f"{name}{ending}", evaluation) for evaluation in (*pair, "test")}
    used |= {(name, each) for name in GROUPS["motion"] for each in ("test", "standing", "standing, clean")}
    planned = {(name, evaluation) for name, training in TRAININGS.items() for evaluation in training.evaluations}
    assert used == planned


def test_what_goes_beyond_the_paper_is_set_beside_its_number_but_not_counted_as_one_of_it() -> None:
    known = {(number.mean, number.deviation) for number in NUMBERS}
    for number in COMPARISONS:
        assert (number.mean, number.deviation) in known
        done = trained(evaluations={number.evaluation: evaluated(0.9)})
        found = cells({number.training: record(number.training, done)})
        page = render(found, {}, Path("runs"))
        assert "0 of the paper's 20 numbers have been run here" in page
        assert "## Beyond the paper" not in render(cells({}), {}, Path("runs"))
        after = page[page.index("## Beyond the paper") :]
        paper = f"{number.mean:.3f} ± {number.deviation:.3f}"
        assert row(after, f" {number.where} ", f" {number.about} ", " 0.900 ")[2] == paper


def test_the_trainings_are_the_papers() -> None:
    beyond = {number.training for number in COMPARISONS}
    beyond |= {name for name in TRAININGS if name.startswith("tagger") or name.endswith(("-20", "-28"))}
    beyond |= {*GROUPS["motion"]} - {"flying-shapes-3-5"}
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


def test_choosing_experiments() -> None:
    assert [training.name for training in Reproduction.chosen(())] == list(TRAININGS)
    assert {training.name for training in Reproduction.chosen(["bce"])} == {
        f"flying-shapes-{n}-{k}" for n in (3, 4, 5) for k in (1, 5)
    }
    assert len(Reproduction.chosen(["table-1", "bce", "flying-shapes-3-3"])) == 8  # each once
    assert set(GROUPS) == {"table-1", "table-1-plus", "bce", "tagger", "motion"}
    with pytest.raises(NeuralEMError, match="did you mean 'flying-mnist'"):
        Reproduction.chosen(["flying-mnis"])
