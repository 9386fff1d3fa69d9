"""``python -m tests.run_gpu --out FILE``: runs the tests marked ``gpu`` and records where and how they went."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import write
from benchmarks.environment import environment


class Outcomes:
    """A pytest plugin that counts the tests by how they ended."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test counts once: in its call, or where its set-up or tear-down did not pass."""
        if report.when == "call" or not report.passed:
            self.counts[report.outcome] += 1
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A test file that cannot be imported is a failure, not an absence."""
        if report.failed:
            self.counts["failed"] += 1
            self.failed.append(report.nodeid)


def main() -> int:
    """Exit status 0 only if tests ran on a CUDA device and none failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    options, rest = parser.parse_known_args()
    if not torch.cuda.is_available():
        sys.stderr.write("test-gpu: expected a CUDA device, got none; nothing is written\n")
        return 1
    outcomes = Outcomes()
    arguments = ["-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors", *rest]
    status = int(pytest.main(arguments, plugins=[outcomes]))
    counts = {name: outcomes.counts[name] for name in ("passed", "failed", "skipped")}
    write(options.out, {**environment(), **counts, "failures": outcomes.failed})
    return status


if __name__ == "__main__":
    raise SystemExit(main())
