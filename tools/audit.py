"""Looks the pinned versions up among the known vulnerabilities, where these can be reached; see ``make audit``.

Ends with status 1 where one is known, and with status 0 and one line that says so where nobody can be asked.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "audit"
PATIENCE = 300  # seconds, for each of the two steps that need a network
PIN = re.compile(r"^[A-Za-z0-9._-]+==[^\s;\\]+", re.MULTILINE)


def main() -> int:
    """The exit status."""
    pins = PIN.findall((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    python = FOLDER / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(FOLDER / "venv", with_pip=True)
    if not _done(python, "-m", "pip", "install", "--quiet", "--retries", "1", "pip-audit"):
        return _not_done("pip-audit cannot be installed here")
    wanted, found = FOLDER / "requirements.txt", FOLDER / "found.json"
    wanted.write_text("\n".join(pins) + "\n", encoding="utf-8")
    found.unlink(missing_ok=True)
    _done(python, "-m", "pip_audit", "--no-deps", "--disable-pip", "-r", str(wanted), "-f", "json", "-o", str(found))
    try:
        packages = json.loads(found.read_text(encoding="utf-8"))["dependencies"]
    except (OSError, ValueError, KeyError):
        return _not_done("the database of vulnerabilities cannot be reached from here")
    if all("skip_reason" in package for package in packages):
        return _not_done("the database of vulnerabilities that can be reached from here knows none of the packages")
    return report(packages)


def report(packages: list[dict[str, Any]]) -> int:
    """Says what was found; 1 where there is something."""
    known = [(package, each) for package in packages for each in package.get("vulns", [])]
    for package, each in known:
        fixed = ", ".join(each.get("fix_versions", [])) or "no version"
        print(f"{package['name']} {package['version']}: {each['id']}, mended in {fixed}")
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    print(f"audit: {len(packages) - len(skipped)} packages, {len(known)} known vulnerabilities"
          + (f"; nothing is known of {', '.join(skipped)}" if skipped else ""))  # fmt: skip
    return 1 if known else 0


def _done(*command: str | Path) -> bool:
    try:
        ended = subprocess.run([str(word) for word in command], capture_output=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def _not_done(why: str) -> int:
    print(f"audit: not done: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
