"""Configs from strangers: whatever comes, it is refused in one short line, in little time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neural_em import config
from tests.test_config import FIELDS, Experiment, refused

DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]
WIDE: list[Any] = ["x"]
for _ in range(60):  # two to the sixtieth items when written out
    WIDE = [WIDE, WIDE]
CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)

HOSTILE = {"deep": DEEP, "wide": WIDE, "circle": CIRCLE, "huge": 10**5000, "bytes": b"\xff", "key": {None: 1}}
HOSTILE_TEXT = {
    "a date that is none": "2000-13-45",
    "a boolean that is none": "!!bool maybe",
    "a timestamp that is none": "!!timestamp x",
    "an integer that is none": "!!int x",
    "too many digits": "9" * 5000,
    "too many hexadecimal digits": "0x" + "f" * 5000,
    "deep": "[" * 1_500,
    "circle": "&a [*a]",
    "an unhashable key": "{[1]: 2}",
    "code": "!!python/object/apply:os.system ['true']",
    "a control character": "\x00",
    "laughs": "[" + ", ".join(["&a0 [x, x]", *(f"&a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]) + "]",
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_values_are_refused_in_one_short_line(kind: str, field: str) -> None:
    if (kind, field) == ("huge", "components"):
        assert config.from_dict(Experiment, {field: HOSTILE[kind]}).components == 10**5000
    else:
        assert refused(config.from_dict, Experiment, {field: HOSTILE[kind]}).startswith(field)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_whole_is_refused(kind: str) -> None:
    refused(config.from_dict, Experiment, HOSTILE[kind])


@pytest.mark.parametrize("kind", HOSTILE_TEXT)
def test_hostile_text_is_refused_as_an_override(kind: str) -> None:
    for field in ("noise", "sizes", "optimiser"):
        refused(config.override, Experiment(), [f"{field}={HOSTILE_TEXT[kind]}"])


@pytest.mark.parametrize("kind", HOSTILE_TEXT)
def test_hostile_text_is_refused_in_a_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for text in (HOSTILE_TEXT[kind], f"noise: {HOSTILE_TEXT[kind]}", f"optimiser: {HOSTILE_TEXT[kind]}"):
        path.write_text(text, encoding="utf-8")
        refused(config.read, Experiment, path)


def test_an_override_below_a_value_just_overridden_is_refused() -> None:
    refused(config.override, Experiment(), ["optimiser=5", "optimiser.level=2"])
    refused(config.override, Experiment(), ["optimiser=null", "optimiser.level=2"])
