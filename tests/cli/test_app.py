"""The command as a whole: its help, and one line for a wrong command line and for what the machine refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from neural_em import cli
from neural_em.cli import app

COMMANDS: dict[str, Any] = typer.main.get_command(app.app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["evaluate"], "nem: missing argument 'RUN' (see nem evaluate --help)"),
        (["segment", "clip.gif"], "nem: missing option '--out' (see nem segment --help)"),
        (["evalute"], "nem: no such command 'evalute'"),
        (["models", "--all"], "nem: no such option: --all"),
        (["models", "a\nb"], "nem: got unexpected extra argument"),
        (["demo", "--out"], "nem: option '--out' requires an argument (see nem"),
    ],
)
def test_a_wrong_command_line_is_one_line(refused: Callable[..., str], arguments: list[str], line: str) -> None:
    assert refused(*arguments).startswith(line)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_commands_are_listed_whole(run_nem: Callable[..., Any], arguments: list[str]) -> None:
    ended = run_nem(*arguments)
    assert (ended.status, ended.errors) == (0, "")
    listed = ended.out.split("Commands:\n")[1].splitlines()
    assert len(listed) == len(COMMANDS)
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_types_in_words(run_nem: Callable[..., Any], name: str) -> None:
    ended = run_nem(name, "--help")
    assert (ended.status, ended.errors) == (0, "")
    assert "list[" not in ended.out
    assert "<bool>" not in ended.out
    for parameter in COMMANDS[name].params:  # what an argument is stands in a sentence
        if parameter.param_type_name == "argument":
            assert f"{parameter.metavar} is " in ended.out or f"called {parameter.metavar}" in ended.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "neural_em", "presets"], stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("nem: standard output: cannot be written: ")


def _too_much(**_: object) -> None:
    torch.empty(2**60)


def _array(**_: object) -> None:
    raise MemoryError


def _mistake(**_: object) -> None:
    raise RuntimeError("shapes do not match")


@pytest.mark.parametrize("command", [_too_much, _array])
def test_too_little_memory_is_one_line(
    command: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "app", command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("nem: memory: expected enough")
    assert errors.count("\n") == 1


def test_an_interruption_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(**_: object) -> None:
        raise typer.Abort

    monkeypatch.setattr(app, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


def test_a_mistake_in_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "app", _mistake)
    with pytest.raises(RuntimeError, match="shapes"):
        cli.main()
