"""``python -m benchmarks [NAME ...]``: runs the benchmarks, prints one table and writes it as JSON.

A benchmark is a module ``bench_NAME.py`` with ``main() -> dict``: measurements by name, numbers or text. A dictionary
as a value is a group of measurements; a list of dictionaries is a table of its own, one row each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.environment import environment

HERE = Path(__file__).parent


def main() -> int:
    """Runs the chosen benchmarks; the exit status says how many failed."""
    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Times the parts of the package.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(known) or '(none yet)'}; default all"
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="where to write the JSON")
    options = parser.parse_args()
    wrong = set(options.names) - set(known)
    if wrong:
        parser.error(f"expected names among {', '.join(known)}, got {', '.join(sorted(wrong))}")
    results = {name: run(name) for name in options.names or known}
    failed = [name for name, result in results.items() if "error" in result]
    print(table(results))
    write(options.out, {"environment": environment(), "results": results})
    print(f"written to {options.out}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return len(failed)


def run(name: str) -> dict[str, Any]:
    """One benchmark's measurements; its failure is recorded, so that the others are not lost."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    start = time.perf_counter()
    try:
        result = dict(importlib.import_module(f"benchmarks.bench_{name}").main())
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    return {**result, "seconds of the benchmark": time.perf_counter() - start}


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """All single measurements as one table, then each list of rows as its own."""
    pairs = [(name, key, value) for name, result in results.items() for key, value in _flat(result)]
    single = [row for row in pairs if not isinstance(row[2], list)]
    blocks = [_align([("benchmark", "measurement", "value"), *single])]
    for name, key, rows in (row for row in pairs if isinstance(row[2], list)):
        columns = list(dict.fromkeys(column for row in rows for column in row))
        body = [tuple(row.get(column, "") for column in columns) for row in rows]
        blocks.append(f"{name}: {key}\n" + _align([tuple(columns), *body]))
    return "\n\n".join(blocks)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _flat(result: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _align(rows: list[tuple[Any, ...]]) -> str:
    cells = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]])


if __name__ == "__main__":
    raise SystemExit(main())
