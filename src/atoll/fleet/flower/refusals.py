"""Calls that the guard refuses, a line now and then: what for, how often, and from where."""

import time
from collections import Counter
from collections.abc import Callable

MARK = "refused: "
"""How a line begins; the server passes such lines of its superlink's on to its operator."""
_EVERY_SECONDS = 10.0
_MOST_PLACES, _SHOWN = 1000, 3
_MEANING = {401: "no known key", 403: "not its own", 404: "no such call", 408: "too slow", 413: "too long"}
_USUAL = frozenset({409, 503})  # of honest nodes too: a superlink that was started again, or is not open yet


class Refusals:
    """Counts refused calls and writes a line of them, at most one in ten seconds."""

    def __init__(
        self,
        write: Callable[[str], None] = lambda line: print(line, flush=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write by this."""
        self._write, self._clock = write, clock
        self._counts = Counter[tuple[int, str]]()
        self._next = clock()

    def add(self, status: int, address: str) -> None:
        """Count a call, by the status that it was answered with and where it came from."""
        if status in _USUAL:
            return
        key = status, address if len(self._counts) < _MOST_PLACES else "others"
        self._counts[key] += 1
        if self._clock() >= self._next:
            self._write(f"{MARK}{', '.join(map(self._tell, sorted({status for status, _ in self._counts})))}")
            self._counts.clear()
            self._next = self._clock() + _EVERY_SECONDS

    def _tell(self, status: int) -> str:
        places = Counter({address: count for (own, address), count in self._counts.items() if own == status})
        shown = [address for address, _ in places.most_common(_SHOWN)]
        others = [f"{len(places) - _SHOWN} more"] if len(places) > _SHOWN else []
        meaning = f" {_MEANING[status]}" if status in _MEANING else ""
        return f"{places.total()} calls ({status}{meaning}) from {' and '.join(shown + others)}"
