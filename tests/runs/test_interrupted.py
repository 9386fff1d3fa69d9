"""Killed at every write and stopped after any step: a run goes on to the same end, bit for bit."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neural_em.training import fit


def _left(path: Path) -> tuple[bytes, bytes, list[dict[str, str]]]:
    """All that two equal runs must agree on: both weight files to the byte, and the metrics but for the time."""
    rows = list(csv.DictReader((path / "metrics.csv").open()))
    for row in rows:
        del row["seconds"]
    return (path / "best.safetensors").read_bytes(), (path / "last.safetensors").read_bytes(), rows


class _Killed(BaseException):
    """Stands for SIGKILL: nothing in the project catches it."""


def test_killed_at_every_write(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after each renaming and each removing, until one run gets through without being killed."""
    config = tiny.with_(epochs=2, batch_size=17, checkpoint_seconds=1e-9)  # 2 steps an epoch, a checkpoint after each

    def run(path: Path) -> None:
        fit(tiny.build(), tiny.training, config, tiny.validation, path)

    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the machine itself goes on here, and it takes long
    run(tmp_path / "whole")
    calls = 0

    def deadly(function: Callable[..., Any], at: int) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise _Killed
            result = function(*args, **named)
            calls += 1
            if calls == at:
                raise _Killed
            return result

        return wrapped

    killed, path = 0, tmp_path / "killed"
    while True:
        calls = 0
        with monkeypatch.context() as patch:
            for module, name in ((os, "replace"), (os, "rename"), (shutil, "rmtree")):
                patch.setattr(module, name, deadly(getattr(module, name), killed + 1))
            try:
                run(path)
                break
            except _Killed:
                killed += 1
        run(path)
        assert _left(path) == _left(tmp_path / "whole"), f"killed at write {killed}"
        shutil.rmtree(path)
    assert killed > 30


def test_stopped_after_any_step_it_goes_on_to_the_same_end(tiny: Any, tmp_path: Path) -> None:
    """Out of time again and again: one step a start, and the same bits as without a stop."""
    fit(tiny.build(), tiny.training, tiny.config, tiny.validation, tmp_path / "whole")
    stops = 0
    while True:
        outcome = fit(tiny.build(), tiny.training, tiny.config, tiny.validation, tmp_path / "parts", max_minutes=1e-9)
        if outcome.finished:
            break
        assert outcome.stopped == "max-minutes"
        stops += 1
    assert stops >= 12
    assert _left(tmp_path / "parts") == _left(tmp_path / "whole")


def test_more_epochs_go_on_with_a_finished_run(tiny: Any, tmp_path: Path) -> None:
    """Three epochs and then two more are the same as five."""
    for epochs in (3, 5):
        fit(tiny.build(), tiny.training, tiny.with_(epochs=epochs), tiny.validation, tmp_path / "longer")
    fit(tiny.build(), tiny.training, tiny.with_(epochs=5), tiny.validation, tmp_path / "whole")
    assert _left(tmp_path / "longer") == _left(tmp_path / "whole")
