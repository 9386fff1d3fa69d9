"""The tutorial, line by line as a reader follows it, at toy sizes."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from neural_em import cli
from neural_em import demo as demo_module

ROOT = Path(__file__).parent.parent
BLOCKS = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# what makes a command small; the rest of it is the page's
SMALLER = {
    "train": "--train-size 64 --epochs 1 --set data.validation_size=16 --set model.theta_size=32",
    "evaluate": "--size 4",
    "figure": "",
    "report": "--size 4",
    "segment": "--starts 1 --movie gif",
    "models": "",
}
SHELL = ["make demo", ". .venv/bin/activate"]  # which this test does not run: the environment is there already


def commands(text: str) -> list[str]:
    """The lines of a console block that a reader types."""
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def nem(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, name, *rest = shlex.split(line)
    smaller = [] if name == "demo" else shlex.split(SMALLER[name])
    rest = [word for number, word in enumerate(rest) if "--size" not in (word, rest[number - 1])]
    monkeypatch.setattr(sys, "argv", ["nem", name, *rest, *smaller])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code, line


def test_every_line_of_the_tutorial_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module, "SEQUENCES", 5)
    namespace: dict[str, object] = {"__name__": "tutorial"}
    typed: list[str] = []
    for kind, text in BLOCKS.findall((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")):
        if kind == "python":
            exec(compile(text, "tutorial.md", "exec", dont_inherit=True), namespace)
            continue
        for line in commands(text):
            typed.append(line)
            if line not in SHELL:
                nem(line, monkeypatch)
    assert typed[:2] == SHELL
    assert "nem train static-shapes-quick --run runs/first" in typed
    written = {"first.png", "first.html", "found/labels", "found-by-mine/overlay.png", "runs/first/best.safetensors"}
    assert [name for name in sorted(written) if not (tmp_path / name).exists()] == []
