"""The command as a whole: its help, and one line for a wrong command line and for what the machine refuses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
        (["segment"], "nem: missing argument 'INPUT' (see nem segment --help)"),
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


def _raising(error: Exception) -> Callable[..., None]:
    def command(**_: object) -> None:
        raise error

    return command


# none of these takes memory: no machine has so much
TOO_MUCH: dict[str, Callable[..., object]] = {
    "PyTorch": lambda **_: torch.empty(2**60),
    "PyTorch, beyond what can be counted": lambda **_: torch.empty(2**62),
    "NumPy": lambda **_: np.empty(2**60, np.uint8),
    "Python": lambda **_: bytearray(2**60),
}
ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: {}: you tried to allocate 4611686018427387904 bytes."
)
# what PyTorch says on machines other than this one
WORDS = {
    "x86-64 and macOS": ALLOCATOR.format("can't allocate memory") + " Error code 12 (Cannot allocate memory)",
    "a system in German": ALLOCATOR.format("can't allocate memory") + " Error code 12 (Kein Hauptspeicher mehr da)",
    "ARM64": ALLOCATOR.format("not enough memory"),
    "Windows": ALLOCATOR.format("not enough memory").replace("alloc_cpu", r"C:\c10\core\impl\alloc_cpu"),
    "other words of the same allocator": ALLOCATOR.format("nothing left"),
    "a mapped file": "unable to mmap 4096 bytes from file </torch_1>: Cannot allocate memory (12)",
    "a library in C++": "std::bad_alloc",
    "CUDA": "CUDA error: out of memory",
    "cuBLAS": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "macOS's GPU": "MPS backend out of memory (MPS allocated: 18.00 GB, max allowed: 18.13 GB).",
}
ERRORS = {
    **{name: RuntimeError(words) for name, words in WORDS.items()},
    "CUDA's class": torch.OutOfMemoryError("whatever it says"),
    "a system call": OSError(errno.ENOMEM, "in any language"),
}
COMMANDS_TOO_LARGE = {**TOO_MUCH, **{name: _raising(error) for name, error in ERRORS.items()}}


@pytest.mark.parametrize("name", COMMANDS_TOO_LARGE)
def test_too_little_memory_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "app", COMMANDS_TOO_LARGE[name])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "nem: out of memory: try a smaller batch or fewer components\n"


def test_an_interruption_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(**_: object) -> None:
        raise typer.Abort

    monkeypatch.setattr(app, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    ["shapes do not match", "memory format option is only supported by strided tensors", "no storage allocated"],
)
def test_a_mistake_in_the_program_is_not_hidden(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "app", _raising(RuntimeError(words)))
    with pytest.raises(RuntimeError, match=words):
        cli.main()
