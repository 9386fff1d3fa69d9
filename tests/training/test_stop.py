"""Requests to stop."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from neural_em.errors import NeuralEMError
from neural_em.training.stop import Stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request(number: int) -> None:
    """The first one is noted, told and nothing more; afterwards the old handlers are back."""
    before, lines = signal.getsignal(number), []
    stop = Stop(notice=lines.append)
    with stop.listening():
        assert stop.reason is None
        os.kill(os.getpid(), number)
        assert stop.reason == "interrupted"
    assert lines == ["stopping after this step; press Ctrl-C again to stop at once"]
    assert signal.getsignal(number) == before


def test_the_second_ctrl_c_is_obeyed_at_once() -> None:
    """A user who insists does not have to wait."""
    with Stop().listening():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the minutes that were given, and not before."""
    clock = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    stop, forever = Stop(max_minutes=10), Stop()
    clock = 1599.0
    assert stop.reason is None
    clock = 1600.0
    assert stop.reason == "max-minutes"
    assert forever.reason is None


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_no_time_is_refused(minutes: float) -> None:
    """A number above 0 is wanted."""
    with pytest.raises(NeuralEMError, match="max-minutes: expected a number above 0"):
        Stop(minutes)


def test_other_threads_train_without_signals() -> None:
    """Only the main thread may listen; training elsewhere works all the same."""
    problems: list[BaseException] = []

    def work() -> None:
        try:
            with Stop().listening():
                pass
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not problems
