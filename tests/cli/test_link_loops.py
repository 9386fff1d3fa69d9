"""A link that leads to itself, in the place of every path that a command takes: one line, and the link stays."""

from __future__ import annotations

import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neural_em.cli.app import app
from tests.known import BARS

CASES = {
    "data --out": ["data", "static-shapes", "--out", "LOOP"],
    "data --preview": ["data", "static-shapes", "--preview", "LOOP"],
    "data --mnist": ["data", "flying-mnist", "--out", "new.h5", "--mnist", "LOOP"],
    "train --data": ["train", "flying-shapes", "--run", "new", "--data", "LOOP"],
    "train --masks": ["train", "flying-shapes", "--run", "new", "--data", "clip.npy", "--masks", "LOOP"],
    "train --from": ["train", "flying-shapes", "--run", "new", "--from", "LOOP"],
    "train --run": ["train", "flying-shapes", "--run", "LOOP"],
    "train --resume": ["train", "--resume", "--run", "LOOP"],
    "evaluate RUN": ["evaluate", "LOOP"],
    "evaluate --data": ["evaluate", "known", "--data", "LOOP"],
    "evaluate --masks": ["evaluate", "known", "--data", "clip.npy", "--masks", "LOOP"],
    "evaluate --out": ["evaluate", "known", "--out", "LOOP"],
    "figure RUN": ["figure", "LOOP"],
    "figure --data": ["figure", "known", "--data", "LOOP"],
    "figure --masks": ["figure", "known", "--data", "clip.npy", "--masks", "LOOP"],
    "figure --out": ["figure", "known", "--out", "LOOP"],
    "report RUN": ["report", "LOOP"],
    "report --data": ["report", "known", "--data", "LOOP"],
    "report --masks": ["report", "known", "--data", "clip.npy", "--masks", "LOOP"],
    "report --out": ["report", "known", "--out", "LOOP"],
    "reproduce --out": ["reproduce", "--quick", "--report", "--out", "LOOP"],
    "reproduce --runs": ["reproduce", "--quick", "--report", "--runs", "LOOP"],
    "adapt CLIP": ["adapt", "LOOP"],
    "adapt --from": ["adapt", "clip.npy", "--from", "LOOP"],
    "adapt --masks": ["adapt", "clip.npy", "--masks", "LOOP"],
    "adapt --run": ["adapt", "clip.npy", "--run", "LOOP"],
    "segment INPUT": ["segment", "LOOP", "--model", "known", "--out", "new"],
    "segment --model": ["segment", "clip.npy", "--model", "LOOP", "--out", "new"],
    "segment --masks": ["segment", "clip.npy", "--model", "known", "--masks", "LOOP", "--out", "new"],
    "segment --out": ["segment", "clip.npy", "--model", "known", "--out", "LOOP"],
    "export MODEL": ["export", "LOOP", "--out", "new"],
    "export --out": ["export", "known", "--out", "LOOP"],
    "demo --out": ["demo", "--out", "LOOP"],
}


FILES = ("data --out", "report --out")  # a file that is written takes the place of any link
PLACES = [(case, below) for below in ("", "x") for case in CASES if below or case not in FILES]


@pytest.mark.parametrize(("case", "below"), PLACES)
def test_a_loop_of_links_is_refused_in_one_line(
    case: str, below: str, refused: Callable[..., str], hand_made: Callable[..., Any], tmp_path: Path
) -> None:
    hand_made()
    np.save(tmp_path / "clip.npy", np.stack([BARS] * 4))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert str(loop) in refused(*(loop / below if word == "LOOP" else word for word in CASES[case]))
    assert os.readlink(loop) == str(loop)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_no_path_of_a_command_is_forgotten() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        for parameter, kind in typing.get_type_hints(command.callback).items():
            name = {"source": "INPUT", "clip": "CLIP"}.get(parameter, f"--{parameter}")
            assert Path not in (kind, *typing.get_args(kind)) or f"{command.name} {name}" in CASES
