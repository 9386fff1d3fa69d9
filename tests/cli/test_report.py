"""``nem report``: one page about one run or several, with what their evaluations found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def test_a_page_about_two_seeds(run_nem: Run, trained: Path) -> None:
    ended = run_nem("report", trained, "--out", "pages/two.html", "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert ended.out == "pages/two.html\n"
    page = Path("pages/two.html").read_text(encoding="utf-8")
    assert len(re.findall(r'<article class="player', page)) == 6  # best, typical and worst of each
    for name in ("tiny/seed-0", "tiny/seed-1", "training.seed"):
        assert name in page
    for seed in ("seed-0", "seed-1"):
        result = json.loads((trained / seed / "evaluations" / "test.json").read_text())
        assert f"{result['last_step']['upper_bound']['mean']:.4g}" in page
    assert not re.search(r"(src|href)=[\"']https?:", page)  # nothing is loaded


def test_runs_on_the_same_data_show_the_same_sequences(run_nem: Run, trained: Path) -> None:
    """Best and worst are so on average over the runs: the inputs under one heading are equal."""
    assert run_nem("report", trained, "--device", "cpu").status == 0
    page = Path("report.html").read_text(encoding="utf-8")
    inputs = re.findall(r'aria-label="input"[^>]*data-sprite="([^"]+)"', page)
    assert len(inputs) == 6
    assert inputs[0::2] == inputs[1::2]


def test_a_page_with_a_rollout(run_nem: Run, trained: Path) -> None:
    ended = run_nem("report", trained / "seed-0", "--rollout", 3, "--device", "cpu")
    assert ended.status == 0, ended.errors
    page = Path("report.html").read_text(encoding="utf-8")
    assert re.findall(r'data-steps="(\d+)" data-rollout="(\d+)"', page) == [("7", "3")] * 3
    result = json.loads((trained / "seed-0" / "evaluations" / "test-rollout3.json").read_text())
    assert f"{result['rollout']['upper_bound']['mean'][-1]:.4g}" in page
    assert '<section id="rollout">' in page


def test_a_run_without_masks(run_nem: Run, hand_made: Run) -> None:
    run = hand_made(groups="none")
    ended = run_nem("report", run.folder, "--device", "cpu")
    assert ended.status == 0, ended.errors
    page = Path("report.html").read_text(encoding="utf-8")
    assert "true groups" not in page
    assert page.count('<article class="player') == 3


def test_what_is_no_run_is_refused(refused: Run) -> None:
    assert "'nowhere'" in refused("report", "nowhere")
    assert not Path("report.html").exists()
