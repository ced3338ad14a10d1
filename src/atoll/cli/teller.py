"""Sentences on the console of a server or a node, one per line; those about waiting replace each other."""

import threading

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from atoll.fleet.agreed.waiting import Waiting

_LONGEST_GAP = 64  # sentences about waiting between two that are logged: about five minutes


class Teller:
    """Prints sentences as they come; safe to call from several threads.

    In a terminal a `Waiting` stays in the last line until the next sentence. In a file or a journal, where it would
    remain, only the first, second, fourth and so on are printed.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._unsaid, self._gap = 0, 1

    def __call__(self, sentence: str) -> None:
        """Print a sentence, if it is time."""
        with self._lock:
            if self._console.is_terminal:
                self._replace(sentence)
                return
            is_waiting = isinstance(sentence, Waiting)
            self._unsaid += 1
            if self._unsaid >= self._gap or not is_waiting:
                self._unsaid, self._gap = 0, min(2 * self._gap, _LONGEST_GAP) if is_waiting else 1
                self._console.print(sentence)

    def _replace(self, sentence: str) -> None:
        self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
        if isinstance(sentence, Waiting):
            self._console.print(sentence, end="", no_wrap=True, overflow="ellipsis", crop=True)
        else:
            self._console.print(sentence)
