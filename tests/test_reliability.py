"""The page of promises names tests that exist, and says of each whether it is a long one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`( \*)?", PAGE)
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "`tests/" in line]


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """The tests of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {node.name: node for node in found}


def is_slow(path: Path, test: ast.FunctionDef) -> bool:
    """Whether it is marked so, itself, in one of its parameters or with its whole file."""
    whole = re.findall(r"^pytestmark = (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return "mark.slow" in "".join([*whole, *(ast.unparse(decorator) for decorator in test.decorator_list)])


def test_there_are_promises() -> None:
    assert len(ROWS) > 30
    assert len(set(NAMED)) > 50


@pytest.mark.parametrize(("file", "name", "star"), sorted(set(NAMED)))
def test_a_named_test_exists(file: str, name: str, star: str) -> None:
    path = ROOT / file
    assert path.is_file()
    if name:
        assert name in functions(path)
        assert is_slow(path, functions(path)[name]) == bool(star), "marked with a star on the page, and only there"


@pytest.mark.parametrize("file", ["tests/test_fuzz.py", "tests/cli/test_fuzz.py", "tests/data/test_fuzz.py"])
def test_the_numbers_of_cases_are_those_that_run(file: str) -> None:
    for name, test in functions(ROOT / file).items():
        cases = re.search(r"max_examples=(\d+)", " ".join(map(ast.unparse, test.decorator_list)))
        if cases:
            assert re.search(rf"\| {cases[1]} \| `{re.escape(file)}::{name}`", PAGE), (name, cases[1])
