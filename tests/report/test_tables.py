"""Tables: numbers for people, and cells that cannot break out of the table."""

import math

import numpy as np

from neural_em.report.tables import markdown_table, number


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
