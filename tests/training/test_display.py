"""What a user sees: lines in a pipe, bars on a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import TextColumn

from neural_em.training import display
from neural_em.training.state import Outcome, Progress, Row

ROW = Row(2, 1562, 610.25, 600.5, ami_last=0.912, ari_last=0.934, best=True, seconds=75.2)
BASE = {"run": "", "epochs": 10, "steps": 781}


def _outcome(stopped: str) -> Outcome:
    progress = Progress(epoch=2, best_loss=600.5, best_epoch=2, waited=10, seconds=4000.0, rows=(ROW,))
    return Outcome("", None, stopped, progress)  # type: ignore[arg-type]


def test_an_epoch_is_one_line_with_all_that_counts() -> None:
    """Loss, validation, score, time an epoch and time left at most: 8 more epochs of 75.2 s."""
    text = (
        "epoch 2/10: loss 610.2500, validation 600.5000 (best), AMI 0.912, ARI 0.934, "
        "1 min 15 s, at most 10 min 01 s left"
    )
    assert display.line("epoch", {**BASE, "row": ROW, "waited": 0}) == text
    assert display.line("epoch", {**BASE, "run": "seed-3", "row": ROW, "waited": 0}) == f"seed-3: {text}"


@pytest.mark.parametrize(
    ("stopped", "text"),
    [
        ("patience", "stopped: no better validation loss for 10 epochs"),
        ("max-minutes", "stopped: time limit reached; run the same command to resume"),
        ("interrupted", "stopped: interrupted; run the same command to resume"),
    ],
)
def test_the_end_says_why(stopped: str, text: str) -> None:
    """And what the best epoch was, and how long it took."""
    line = str(display.line("stop", {**BASE, "outcome": _outcome(stopped)}))
    assert line.startswith(text)
    assert "best epoch 2: loss 600.5000, AMI 0.912, ARI 0.934; 1 h 06 min in all" in line


def test_without_validation_it_is_the_training_loss_that_got_no_better() -> None:
    """Nothing is said of a validation that nobody made."""
    row = Row(2, 1562, 610.25, best=True, seconds=75.2)
    progress = Progress(epoch=12, best_loss=610.25, best_epoch=2, waited=10, seconds=4000.0, rows=(row,))
    outcome = Outcome("", None, "patience", progress)  # type: ignore[arg-type]
    line = str(display.line("stop", {**BASE, "outcome": outcome}))
    assert line.startswith("stopped: no better training loss for 10 epochs; best epoch 2: loss 610.2500; ")


def test_a_pipe_is_not_flooded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are shown every half minute, each epoch once."""
    lines: list[str] = []
    plain = display.Plain(lines.append)
    clock = 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    for step in range(1, 101):
        clock += 1.0
        plain("steps", {**BASE, "epoch": 1, "step": step, "loss": 1.0, "seconds": clock})
    plain("epoch", {**BASE, "row": ROW, "waited": 0})
    assert [line.split(":")[0] for line in lines] == [
        "epoch 1/10, step 31/781", "epoch 1/10, step 61/781", "epoch 1/10, step 91/781", "epoch 2/10"
    ]  # fmt: skip


def test_a_line_within_an_epoch_says_how_fast_and_how_long_still() -> None:
    """100 of 781 steps in 40 s are 2.5 a second, and 681 more take 272 s."""
    event = {**BASE, "epoch": 1, "step": 100, "loss": 1.0, "seconds": 40.0}
    text = "epoch 1/10, step 100/781: loss 1.0000, 2.5 steps a second, 4 min 32 s left in this epoch"
    assert display.line("steps", event) == text


def test_bars_show_loss_score_and_times() -> None:
    """On a terminal, in the bar of the run."""
    text = io.StringIO()
    columns = [
        TextColumn(f"{{task.{name}}}")
        for name in ("description", "fields[loss]", "fields[within]", "fields[score]", "fields[pace]")
    ]
    console = Console(file=text, force_terminal=True, width=200)
    progress = RichProgress(*columns, console=console, auto_refresh=False)  # shown at the end, not ten times a second
    bars = display.Bars(progress)
    with progress:
        bars("start", {**BASE, "epoch": 0, "step": 0})
        bars("steps", {**BASE, "epoch": 1, "step": 32, "loss": 612.125, "seconds": 64.0})
        bars("epoch", {**BASE, "row": ROW, "waited": 0})
        bars("stop", {**BASE, "outcome": _outcome("epochs")})
    shown = text.getvalue()
    for part in (
        "epoch 1/10",
        "loss 612.12",
        "2.0 s a step, 24 min 58 s left in this epoch",
        "AMI 0.912",
        "1 min 15 s/epoch, at most 10 min 01 s left",
    ):
        assert part in shown


def test_standard_output_decides(capsys: Any) -> None:
    """Captured output is no terminal: plain lines."""
    with display.shown() as (show, say):
        assert isinstance(show, display.Plain)
        say("one line")
    assert capsys.readouterr().out == "one line\n"
