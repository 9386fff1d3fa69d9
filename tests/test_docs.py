"""The examples of the README and of the documentation run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest

from neural_em.model import MODELS
from neural_em.model.distributions import DISTRIBUTIONS
from neural_em.model.m_step import M_STEPS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_EXAMPLES = [page for page in PAGES if PYTHON.search(page.read_text(encoding="utf-8"))]


def test_there_are_examples() -> None:
    assert {"README.md", "tutorial.md", "configs.md", "extending.md"} <= {page.name for page in WITH_EXAMPLES}


@mock.patch.dict(M_STEPS)  # what a page adds to them is taken out again
@mock.patch.dict(DISTRIBUTIONS)
@mock.patch.dict(MODELS)
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page in one namespace, in an empty folder, with the page's own line numbers in a traceback."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "example"}
    for block in PYTHON.finditer(text):
        padding = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(padding + block[1], str(page), "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_make_target_that_is_named_exists() -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "run"]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"(?:`|\$ |--no-print-directory )make ([a-z][a-z-]+)", text))
        assert named <= known, page.name
