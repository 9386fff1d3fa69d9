"""Whether a record that was read from a file has the form in which it is written, so that nobody has to look again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]


def is_sound_run(run: Any) -> bool:
    """One seed's part of a record; fields that came later may be missing."""
    return _fits(run, _RUN) and isinstance(run.get("finished"), bool) and "evaluations" in run


def _is_text(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.isprintable())


def _is_number(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30 and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 62)


def _all(check: Check) -> Check:
    """Of a list."""
    return lambda value: isinstance(value, list) and all(check(item) for item in value)


def _each(check: Check) -> Check:
    """Of a mapping's values; its names are printed."""
    return lambda value: isinstance(value, dict) and all(_is_text(k) and check(item) for k, item in value.items())


def _fits(values: Any, checks: Mapping[str, Check]) -> bool:
    return isinstance(values, dict) and all(name not in values or check(values[name]) for name, check in checks.items())


def _is_curve(value: Any) -> bool:
    parts = ("mean", "lower_quartile", "upper_quartile")
    return (
        _fits(value, {name: _all(_is_number) for name in parts})
        and all(name in value for name in parts)
        and len({len(value[name]) for name in parts}) == 1
    )


def _is_evaluation(value: Any) -> bool:
    return _fits(value, _EVALUATION) and {"last_step", "mean_over_steps"} <= value.keys()


_scores = _each(lambda value: isinstance(value, dict) and "mean" in value and _is_number(value["mean"]))
_EVALUATION: dict[str, Check] = {
    **dict.fromkeys(("last_step", "mean_over_steps", "whole_sequence"), _scores),
    **dict.fromkeys(("sequences", "steps", "components"), _is_count),
    "baselines": _each(_scores),
    "curves": _each(_is_curve),
    "note": _is_text,
    "options": _is_text,
}
_RUN: dict[str, Check] = {
    **dict.fromkeys(("stopped", "problem", "device", "commit", "neural_em", "time", "precision", "torch"), _is_text),
    **dict.fromkeys(("epochs", "best_epoch"), _is_count),
    "seconds": _is_number,
    "stage_epochs": _all(_is_count),
    "warnings": _all(lambda text: isinstance(text, str) and text.isprintable()),
    "evaluations": _each(_is_evaluation),
}
