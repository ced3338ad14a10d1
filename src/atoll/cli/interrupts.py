"""Ctrl-C and SIGTERM: finish what is under way, and stop."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, the first signal asks to stop once the event is over, and a second one stops at once.

    To stop at once is a `KeyboardInterrupt`, whichever signal it was. The first one does so too while there is nothing
    to wait for.

    Attributes:
        number: the signal that has come, None as long as there is none.
        is_patient: whether the first signal waits for the event's end.
    """

    def __init__(self) -> None:
        """Note whose signals they are; nothing changes before it is entered."""
        self.number: int | None = None
        self.is_patient = False
        self._process = os.getpid()

    def __enter__(self) -> Self:
        """Take the signals over; only the main thread can."""
        is_main = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS if is_main}
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """What a process that was stopped by the signal exits with: 130 or 143."""
        return 128 + (self.number or signal.SIGINT)

    def _note(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._process:  # a worker, whose work belongs to the event that is to be finished
            return
        at_once = self.number is not None or not self.is_patient
        self.number = number
        if at_once:
            raise KeyboardInterrupt
        if sys.stderr.isatty():  # not through the console, which may be writing right now
            os.write(sys.stderr.fileno(), b"\nstopping after this event; once more stops at once\n")
