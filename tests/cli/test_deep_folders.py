"""A folder with very much below it, such as ``/``: the answer comes without looking through all of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neural_em.data import DataConfig
from neural_em.experiments import own_data
from tests.known import BARS

Run = Callable[..., Any]
DEPTH = 40
CASES = {
    "report --data": ["report", "known", "--data", "DEEP"],
    "evaluate --data": ["evaluate", "known", "--data", "DEEP"],
    "evaluate --masks": ["evaluate", "known", "--data", "clip.npy", "--masks", "DEEP"],
    "figure --data": ["figure", "known", "--data", "DEEP"],
    "train --data": ["train", "flying-shapes", "--run", "new", "--data", "DEEP"],
    "train --masks": ["train", "flying-shapes", "--run", "new", "--data", "clip.npy", "--masks", "DEEP"],
    "train --run": ["train", "flying-shapes", "--run", "DEEP", "--device", "cpu"],
    "train --from --run": ["train", "flying-shapes", "--from", "flying-shapes", "--run", "DEEP", "--device", "cpu"],
    "train --from": ["train", "flying-shapes", "--from", "DEEP", "--run", "new", "--device", "cpu"],
    "train --resume": ["train", "--resume", "--run", "DEEP"],
    "segment INPUT": ["segment", "DEEP", "--model", "known", "--out", "new"],
    "segment --masks": ["segment", "clip.npy", "--model", "known", "--masks", "DEEP", "--out", "new"],
    "segment --model": ["segment", "clip.npy", "--model", "DEEP", "--out", "new"],
    "segment --out": ["segment", "clip.npy", "--model", "known", "--out", "DEEP"],
    "export": ["export", "known", "--out", "DEEP"],
    "evaluate RUN": ["evaluate", "DEEP"],
    "reproduce --out": ["reproduce", "--quick", "--report", "--out", "DEEP"],
}


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were looked into."""
    folders: list[str] = []

    def watch(real: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any = ".") -> Any:
            folders.append(os.fspath(path))
            return real(path)

        return look

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, watch(getattr(os, name)))
    return folders


@pytest.mark.parametrize("case", CASES)
def test_little_of_it_is_looked_at(case: str, refused: Run, hand_made: Run, tmp_path: Path, listed: list[str]) -> None:
    hand_made()
    np.save(tmp_path / "clip.npy", np.stack([BARS] * 4))
    deep = tmp_path / "deep"
    deep.joinpath(*["below"] * DEPTH).mkdir(parents=True)
    listed.clear()
    assert str(deep) in refused(*(deep if word == "DEEP" else word for word in CASES[case]))
    below = {path for path in listed if path.startswith(str(deep))}
    assert len(below) <= 4
    assert deep.joinpath("below").is_dir()


def test_a_folder_of_too_many_files_is_named(
    refused: Run, hand_made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = hand_made()
    monkeypatch.setattr(own_data, "_MOST", 5)
    for number in range(6):
        (tmp_path / "deep" / f"{number}").mkdir(parents=True)
    line = refused("evaluate", run.folder, "--data", "deep", "--device", "cpu")
    assert line == f"nem: {tmp_path / 'deep'}: expected at most 5 images, clips and folders, got more\n"


def test_files_two_levels_below_still_tell_two_states_apart(tmp_path: Path) -> None:
    """Parts, their clips and the clips' frames: a new frame in any of them is another state of the data."""
    for part in ("training", "validation", "test"):
        (tmp_path / "divided" / part / "clip").mkdir(parents=True)
    (tmp_path / "whole" / "clip").mkdir(parents=True)
    for folder, frame in (("divided", "test/clip/0.png"), ("whole", "clip/0.png"), ("whole", "1.png")):
        data = DataConfig("file", path=str(tmp_path / folder))
        before = own_data.fingerprint(data)
        (tmp_path / folder / frame).write_bytes(b"x")
        assert own_data.fingerprint(data) != before
