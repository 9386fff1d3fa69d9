"""Tables: numbers against the standard library, and cells that cannot break out of the table."""

import math
import statistics

import numpy as np
import pytest

from neural_em.errors import NeuralEMError
from neural_em.report.tables import markdown_table, mean_deviation, number


def test_mean_and_sample_deviation():
    values = [0.96, 0.97, 0.98, 0.975]
    expected = f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f} (n = 4)"
    assert mean_deviation(values) == expected
    assert mean_deviation(values, digits=1, count=False) == "1.0 ± 0.0"


def test_one_run_has_no_deviation_and_no_run_is_a_dash():
    assert mean_deviation([0.5]) == "0.500 (n = 1)"
    assert mean_deviation([]) == "–"
    with pytest.raises(NeuralEMError, match="values: expected finite numbers"):
        mean_deviation([0.5, math.nan])


def test_single_values():
    cells = [None, math.nan, 3, True, 0.12345, 1e-7, 2.5e9, "text", np.float32(0.5), np.int64(7)]
    assert [number(cell) for cell in cells] == [
        "–", "–", "3", "True", "0.123", "1e-07", "2.5e+09", "text", "0.500", "7"
    ]  # fmt: skip


def test_a_table_reads_as_one():
    assert markdown_table(["run", "AMI"], [["a", 0.5], ["longer", None]]) == (
        "| run    |   AMI |\n"
        "| ------ | ----: |\n"
        "| a      | 0.500 |\n"
        "| longer |     – |\n"
    )  # fmt: skip


def test_cells_cannot_break_out():
    table = markdown_table(["a|b"], [["x\ny | <script>"]])
    header, _, row = table.splitlines()
    assert header.replace("\\|", "").count("|") == 2
    assert row.replace("\\|", "").count("|") == 2
    assert "<script" not in table


def test_an_empty_table_is_only_its_header():
    assert markdown_table(["a"], []) == "| a   |\n| --- |\n"


def test_rows_of_the_wrong_length_are_refused():
    with pytest.raises(NeuralEMError, match="row of a table: expected 2 cells, got 1"):
        markdown_table(["a", "b"], [["only"]])
