"""What a run writes down about the checkout that it runs from."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from neural_em.runs import environment

AUTHOR = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one file, which stands for the package."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.delenv("GIT_OPTIONAL_LOCKS", raising=False)  # it would do what the package has to do itself
    module = tmp_path / "module.py"
    module.write_text("1\n")
    for words in (("init", "-q"), ("add", "module.py"), (*AUTHOR, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(environment, "__file__", str(module))
    return module


def test_the_commit_and_whether_files_were_changed(checkout: Path) -> None:
    name = environment.commit.__wrapped__()
    assert name is not None
    assert len(name) == 40
    checkout.write_text("2\n")
    assert environment.commit.__wrapped__() == f"{name} with changes"


def test_asking_for_the_commit_writes_nothing_into_the_repository(checkout: Path) -> None:
    """Git would write its index anew, and leave a lock where it is killed meanwhile."""
    os.utime(checkout, (1_000_000_000, 1_000_000_000))  # what the index knows of the file no longer holds
    index = checkout.parent / ".git" / "index"
    before = index.read_bytes()
    environment.commit.__wrapped__()
    assert index.read_bytes() == before
    subprocess.run(["git", "-C", str(checkout.parent), "status"], check=True, capture_output=True)
    assert index.read_bytes() != before  # plain git does


def test_a_checkout_that_does_not_answer(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if "status" in command:
            raise subprocess.TimeoutExpired(command, 10)
        return answered(command, **options)  # type: ignore[call-overload, no-any-return]

    answered = subprocess.run
    monkeypatch.setattr(environment.subprocess, "run", slow)
    assert str(environment.commit.__wrapped__()).endswith(", changes unknown")
