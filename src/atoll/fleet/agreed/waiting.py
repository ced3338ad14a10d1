"""Progress messages while waiting: what is waited for, and since when."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

EVERY_SECONDS = 5.0

_going: list[object] = []


class Waiting(str):
    """A sentence on what is waited for; the next one may replace it on the screen."""


@contextmanager
def waiting(
    tell: Callable[[str], None], what: Callable[[], str], every_seconds: float = EVERY_SECONDS
) -> Iterator[None]:
    """Report every few seconds what is waited for; only the innermost of nested waits reports.

    Args:
        tell: receives a `Waiting`, from another thread.
        what: returns what is waited for; an empty text is not reported.
    """
    is_over, mine = threading.Event(), object()

    def repeat() -> None:
        last = time.monotonic()
        while not is_over.wait(every_seconds / 5):  # more often than it reports, for waits that start in between
            is_due = time.monotonic() - last >= every_seconds and _going[-1:] == [mine]
            if is_due and (sentence := what()):
                last = time.monotonic()
                tell(Waiting(sentence))

    thread = threading.Thread(target=repeat, daemon=True, name="waiting")
    _going.append(mine)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=1)
        _going.remove(mine)


def passed(began: float) -> str:
    """Return the time since a `time.monotonic` value, in words."""
    return f"{time.monotonic() - began:.0f} s"


def listed(names: Collection[str], most: int = 8) -> str:
    """Return names for a sentence, shortened if there are many."""
    first, others = sorted(names)[:most], len(names) - most
    return ", ".join(first) + (f" and {others} more" if others > 0 else "")
