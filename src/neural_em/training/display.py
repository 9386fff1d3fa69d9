"""What a user sees of training: bars on a terminal, plain lines elsewhere."""

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from neural_em.training.loop import Callback
from neural_em.training.state import EPOCHS, PATIENCE, Row
from neural_em.training.stop import INTERRUPTED, OUT_OF_TIME

_QUIET_SECONDS = 30.0  # inside a long epoch, a plain line is shown this often
_REASONS = {
    PATIENCE: "no better {kind} loss for {patience} epochs",
    EPOCHS: "all epochs done",
    OUT_OF_TIME: "time limit reached; run the same command to resume",
    INTERRUPTED: "interrupted; run the same command to resume",
}


def line(event: str, info: dict[str, Any]) -> str | None:
    """One line about an event; None for those that need none."""
    text = _LINES[event](info) if event in _LINES else None
    if text is None:
        return None
    return f"{info['run']}: {text}" if info.get("run") else text


class Plain:
    """Lines for a pipe or a file: one an epoch, and now and then one inside a long epoch."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write
        self._shown: dict[str, float] = {}

    def __call__(self, event: str, info: dict[str, Any]) -> None:
        now = time.monotonic()
        run = info.get("run", "")
        if event == "steps" and now - self._shown.setdefault(run, now) < _QUIET_SECONDS:
            return
        text = line(event, info)
        if text is not None:
            self._shown[run] = now
            self.write(text)


class Bars:
    """A bar for each run, which shows the epoch, loss, score, time an epoch and the time left at most."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self._tasks: dict[str, Any] = {}

    def __call__(self, event: str, info: dict[str, Any]) -> None:
        run = info.get("run", "")
        if event == "start":
            self._tasks[run] = self.progress.add_task(run or "epoch", total=info["steps"], completed=info["step"],
                                                      loss="", score="", within="", pace="")  # fmt: skip
        if event == "steps":
            loss = f"loss {info['loss']:.2f}"
            self.progress.update(self._tasks[run], completed=info["step"], loss=loss, within=_pace(info),
                                 description=f"{run or 'epoch'} {info['epoch']}/{info['epochs']}")  # fmt: skip
        if event == "epoch":
            row: Row = info["row"]
            left = row.seconds * (info["epochs"] - row.epoch)
            self.progress.update(self._tasks[run], score=_score(row),
                                 pace=f"{_time(row.seconds)}/epoch, at most {_time(left)} left")  # fmt: skip
        text = line(event, info) if event != "steps" else None
        if text is not None:
            self.progress.console.print(text, highlight=False, markup=False)


@contextmanager
def shown(quiet: bool = False) -> Iterator[tuple[Callback, Callable[[str], None]]]:
    """The display that suits standard output: a callback for events, and a function for single lines."""
    if quiet:
        yield (lambda event, info: None), (lambda text: None)
        return
    if not sys.stdout.isatty():
        write = functools.partial(print, flush=True)
        yield Plain(write), write
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    shown_fields = (TextColumn(f"{{task.fields[{name}]}}") for name in ("loss", "within", "score", "pace"))
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), *shown_fields)
    with Progress(*columns, refresh_per_second=4) as progress:
        yield Bars(progress), lambda text: progress.console.print(text, highlight=False, markup=False)


def _start(info: dict[str, Any]) -> str | None:
    if info["step"]:
        return f"resumes in epoch {info['epoch'] + 1} after step {info['step']} of {info['steps']}"
    if info["epoch"]:
        return f"resumes after epoch {info['epoch']}"
    return None


def _steps(info: dict[str, Any]) -> str:
    where = f"epoch {info['epoch']}/{info['epochs']}, step {info['step']}/{info['steps']}"
    return f"{where}: loss {info['loss']:.4f}, {_pace(info)}"


def _pace(info: dict[str, Any]) -> str:
    """The rate and the time left within an epoch."""
    seconds = info["seconds"] / info["step"]  # a step
    rate = f"{1 / seconds:.3g} steps a second" if 0 < seconds < 1 else f"{seconds:.1f} s a step"
    return f"{rate}, {_time(seconds * (info['steps'] - info['step']))} left in this epoch"


def _epoch(info: dict[str, Any]) -> str:
    row: Row = info["row"]
    parts = [f"loss {row.loss:.4f}"]
    if row.validation_loss is not None:
        parts.append(f"validation {row.validation_loss:.4f}{' (best)' if row.best else ''}")
    parts += [score] if (score := _score(row)) else []
    left = row.seconds * (info["epochs"] - row.epoch)
    parts.append(f"{_time(row.seconds)}, at most {_time(left)} left")
    return f"epoch {row.epoch}/{info['epochs']}: " + ", ".join(parts)


def _score(row: Row) -> str:
    if row.ami_last is None or row.ari_last is None:
        return ""
    return f"AMI {row.ami_last:.3f}, ARI {row.ari_last:.3f}"


def _stop(info: dict[str, Any]) -> str:
    outcome = info["outcome"]
    best = outcome.progress.best_row
    kind = "training" if best is None or best.validation_loss is None else "validation"
    reason = _REASONS.get(outcome.stopped, outcome.stopped).format(kind=kind, patience=outcome.progress.waited)
    parts = [f"stopped: {reason}"]
    if best is not None:
        loss = best.loss if best.validation_loss is None else best.validation_loss
        score = f", {_score(best)}" if _score(best) else ""
        parts.append(f"best epoch {best.epoch}: loss {loss:.4f}{score}")
    parts.append(f"{_time(outcome.progress.seconds)} in all")
    parts += outcome.warnings
    return "; ".join(parts)


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


_LINES: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "start": _start,
    "steps": _steps,
    "epoch": _epoch,
    "warning": lambda info: f"warning: {info['text']}",
    "note": lambda info: str(info["text"]),
    "stop": _stop,
}
