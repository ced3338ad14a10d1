"""Ctrl-C and SIGTERM: finish the current event, then stop."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from atoll.runs.run import RunProgress

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, the first signal asks to stop after the current event, and a second one stops at once.

    Either signal stops at once by a `KeyboardInterrupt`. So does the first one unless `is_patient`.

    Attributes:
        number: the signal received; None if none has been.
        is_patient: whether the first signal waits for the end of the event.
    """

    def __init__(self) -> None:
        """Remember the process; signals are handled once entered."""
        self.number: int | None = None
        self.is_patient = False
        self._process = os.getpid()

    def __enter__(self) -> Self:
        """Take over the signals, if in the main thread."""
        is_main = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS if is_main}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """The exit code of a process stopped by the signal: 130 or 143."""
        return 128 + (self.number or signal.SIGINT)

    def ends(self, progress: "RunProgress") -> bool:
        """Return whether a run must stop here: after a signal, once its last event is saved, unless it is over."""
        return self.number is not None and progress.is_settled and progress.events_done < progress.events

    def _note(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._process:  # a worker, whose event is to be finished
            return
        at_once = self.number is not None or not self.is_patient
        self.number = number
        if at_once:
            raise KeyboardInterrupt
        if sys.stderr.isatty():  # not through the console, which may be writing right now
            os.write(sys.stderr.fileno(), b"\nstopping after this event; press again to stop at once\n")
