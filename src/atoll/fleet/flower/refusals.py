"""Log lines about calls that the guard rejects: reason, number and origin."""

import time
from collections import Counter
from collections.abc import Callable

from atoll.support.wording import counted

MARK = "refused: "
"""Prefix of such lines in the superlink's log, which the server passes on to its operator."""
_EVERY_SECONDS = 10.0
_MOST_PLACES, _SHOWN = 1000, 3
TOO_MANY = 429
"""The reason for which connections are cut, not a status with which calls are answered."""
_MEANING = {401: "no known key", 403: "not its own", 404: "no such call", 408: "too slow", 413: "too long"}
_MEANING[TOO_MANY] = "too many connections"
_USUAL = frozenset({409, 503})  # honest nodes get these too: the superlink was restarted, or is not open yet


class Refusals:
    """Counts rejected calls and writes a line about them at most every ten seconds."""

    def __init__(
        self,
        write: Callable[[str], None] = lambda line: print(line, flush=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._clock = write, clock
        self._counts = Counter[tuple[int, str]]()
        self._next = clock()

    def add(self, status: int, address: str) -> None:
        """Count a call by its status and origin."""
        if status in _USUAL:
            return
        self._counts[status, address if len(self._counts) < _MOST_PLACES else "others"] += 1
        if self._clock() >= self._next:
            self._write(f"{MARK}{', '.join(map(self._tell, sorted({status for status, _ in self._counts})))}")
            self._counts.clear()
            self._next = self._clock() + _EVERY_SECONDS

    def _tell(self, status: int) -> str:
        places = Counter({address: count for (own, address), count in self._counts.items() if own == status})
        shown = [address for address, _ in places.most_common(_SHOWN)]
        shown += [f"{len(places) - _SHOWN} more"] if len(places) > _SHOWN else []
        meaning = f" {_MEANING[status]}" if status in _MEANING else ""
        return f"{counted(places.total(), 'call')} ({status}{meaning}) from {' and '.join(shown)}"
