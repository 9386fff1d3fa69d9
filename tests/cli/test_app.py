"""What the machine itself refuses is told in one line too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from neural_em import cli
from neural_em.cli import app


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "neural_em", "presets"], stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("nem: standard output: cannot be written: ")


def _too_much() -> None:
    torch.empty(2**60)


def _array() -> None:
    raise MemoryError


def _mistake() -> None:
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


def test_a_mistake_in_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "app", _mistake)
    with pytest.raises(RuntimeError, match="shapes"):
        cli.main()
