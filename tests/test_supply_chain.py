"""What is installed beside the package: its licences are listed, and known vulnerabilities end an audit."""

from __future__ import annotations

import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tools import audit, licences

TABLE = re.findall(r"^\| ([\w.-]+) \| (\S+) \| (.+) \|$", licences.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
ROWS = TABLE[2:]  # below the header
FREE = re.compile(r"\b(MIT|BSD|Apache|PSF|MPL|ISC|Zlib|CC0|BSL|0BSD|Public Domain)")


def test_every_pinned_package_is_listed() -> None:
    listed = {name: version for name, version, _ in ROWS}
    assert listed == licences.pins()
    assert len(listed) > 50


@pytest.mark.parametrize(("name", "version", "told"), ROWS)
def test_the_licence_is_what_the_installed_package_says(name: str, version: str, told: str) -> None:
    """And it is one that asks for nothing of whoever uses it beside this package."""
    assert FREE.search(told), told
    try:
        installed = metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        pytest.skip("not installed here")
    if installed != version:
        pytest.skip(f"version {installed} is installed here")
    assert licences.licence(name) == told


def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None, installs: bool = True) -> int:
    """The audit's exit status where pip-audit writes this."""
    monkeypatch.setattr(audit, "FOLDER", tmp_path)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").touch()

    def done(*command: Any) -> bool:
        if "pip_audit" in command and content is not None:
            Path(command[-1]).write_text(content)
        return installs

    monkeypatch.setattr(audit, "_done", done)
    status = audit.main()
    shutil.rmtree(tmp_path / "venv")
    return status


CLEAN = '{"dependencies": [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "unknown"}]}'
VULNERABLE = CLEAN.replace("[]", '[{"id": "CVE-1", "fix_versions": ["2"]}]')


@pytest.mark.parametrize(
    ("content", "installs", "status", "words"),
    [
        (CLEAN, True, 0, "audit: 1 packages, 0 known vulnerabilities; nothing is known of b"),
        (VULNERABLE, True, 1, "a 1: CVE-1, mended in 2"),
        (None, True, 0, "audit: not done: the database of vulnerabilities cannot be reached from here"),
        ("{", True, 0, "audit: not done"),
        ('{"dependencies": [{"name": "b", "skip_reason": "unknown"}]}', True, 0, "audit: not done"),
        (None, False, 0, "audit: not done: pip-audit cannot be installed here"),
    ],
)
def test_an_audit_fails_for_what_is_known_and_never_for_want_of_a_network(
    content: str | None, installs: bool, status: int, words: str,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert answers(monkeypatch, tmp_path, content, installs) == status
    out = capsys.readouterr().out
    assert words in out
    if "not done" in words:
        assert out.count("\n") == 1
    asked = tmp_path / "requirements.txt"
    if installs:
        assert asked.read_text().splitlines() == [f"{name}=={version}" for name, version in licences.pins().items()]
