"""Files of a run folder, read and changed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml


def read(path: Path) -> Any:
    """What a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the values of a YAML file."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
