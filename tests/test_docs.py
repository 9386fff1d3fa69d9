"""The examples of the README and of the documentation run as they stand."""

from __future__ import annotations

import importlib
import json
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
# the tutorial has a test of its own, which runs its commands too
WITH_EXAMPLES = [
    page for page in PAGES if PYTHON.search(page.read_text(encoding="utf-8")) and page.name != "tutorial.md"
]


def test_there_are_examples() -> None:
    assert {"README.md", "configs.md", "extending.md"} <= {page.name for page in WITH_EXAMPLES}


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


def test_every_cell_of_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another in one namespace, as Jupyter does it; the notebook is kept without outputs."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    namespace: dict[str, object] = {"__name__": "notebook"}
    for number, cell in enumerate(code, start=1):
        assert cell["outputs"] == []
        exec(compile("".join(cell["source"]), f"notebook.ipynb, code cell {number}", "exec"), namespace)
    assert len(code) > 5
    assert (tmp_path / "sequence.gif").is_file()


def test_the_reference_has_public_names_only() -> None:
    """What a package says it offers; the single files that are named are public as a whole."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^\.\. auto(?:class|function|exception):: (\S+)\.(\w+)$", text, re.MULTILINE)
    assert "automodule" not in text
    whole = {
        "neural_em.segment",
        "neural_em.segment.tracks",
        "neural_em.report.segmentation",
        "neural_em.storage.export",
    }
    hidden = [
        f"{module}.{name}"
        for module, name in named
        if module not in whole and name not in importlib.import_module(module).__all__
    ]
    assert hidden == []
    assert set(importlib.import_module("neural_em").__all__) - {"__version__"} <= {name for _, name in named}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_a_page_can_be_read_where_the_code_is_hosted(page: Path) -> None:
    """Links and pictures lead to files, and nothing but the reference needs Sphinx to be shown."""
    text = page.read_text(encoding="utf-8")
    targets = re.findall(
        r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    )
    assert [target for target in targets if not (page.parent / target).exists()] == []
    assert page.name == "api.md" or not re.search(r"^(```|:::)\{|\{\w+\}`|^\$\$", text, re.MULTILINE)


def test_the_index_names_every_page() -> None:
    linked = set(
        re.findall(r"^- \[.*?\]\((.*?)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert linked == {page.name for page in PAGES[1:]} - {"index.md"}


def test_every_make_target_that_is_named_exists() -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "run"]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"(?:`|\$ |--no-print-directory )make ([a-z][a-z-]+)", text))
        assert named <= known, page.name
