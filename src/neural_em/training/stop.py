"""Reasons to stop that come from outside: Ctrl-C, a signal from the system, the time that was given."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

from neural_em.errors import refuse

INTERRUPTED, OUT_OF_TIME = "interrupted", "max-minutes"
REASONS = (None, OUT_OF_TIME, INTERRUPTED)  # among several processes, the last one counts


class Stop:
    """Asked for at any moment, obeyed after the step; ``notice`` is told once, with a line for the user."""

    def __init__(self, max_minutes: float | None = None, notice: Callable[[str], None] = lambda line: None) -> None:
        if max_minutes is not None and not 0 < max_minutes < 1e9:
            refuse("max-minutes", "a number above 0", max_minutes)
        self.deadline = None if max_minutes is None else time.monotonic() + 60.0 * max_minutes
        self.notice = notice
        self.asked = False

    @property
    def reason(self) -> str | None:
        """Why to stop; None to go on."""
        if self.asked:
            return INTERRUPTED
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return OUT_OF_TIME
        return None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM asks to stop after the present step; the second ends the process at once."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread may listen to signals
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)

        def ask(number: int, frame: FrameType | None) -> None:
            self.asked = True
            for each in signals:
                signal.signal(each, signal.SIG_DFL if each == signal.SIGTERM else signal.default_int_handler)
            with suppress(RuntimeError):  # in the middle of another line, standard output cannot take this one
                self.notice("stopping after this step; press Ctrl-C again to stop at once")

        with ExitStack() as undo:
            for number in signals:
                undo.callback(signal.signal, number, signal.signal(number, ask))
            yield
