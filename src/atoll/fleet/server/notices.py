"""Notices to the server's operator about rejected replies: one line per node and event."""

from collections import Counter, defaultdict
from collections.abc import Callable
from threading import Lock

_SILENT = frozenset({"late", "gone", "aside"})  # no reply: reported when it starts, not in every event
_SHOWN = 20  # most nodes that are listed per event


class Notices:
    """Collects rejections until an event is over; thread-safe.

    Attributes:
        say: reports a sentence immediately.
    """

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Report through `say`."""
        self.say = tell
        self._refused: dict[str, Counter[str]] = defaultdict(Counter)
        self._silent: dict[str, frozenset[str]] = {}
        self._lock = Lock()

    def add(self, node: str, reason: str, count: int = 1) -> None:
        """Record that a node's results do not count."""
        with self._lock:
            self._refused[node][reason] += count

    def tell(self, event: int) -> None:
        """Report what was rejected since the last event."""
        with self._lock:
            refused, self._refused = self._refused, defaultdict(Counter)
            silent = {node: frozenset(_SILENT & reasons.keys()) for node, reasons in refused.items()}
            news = [node for node, reasons in refused.items() if self._is_news(node, reasons, silent[node])]
            self._silent = self._silent | silent
        for node in sorted(news)[:_SHOWN]:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(refused[node].items()))
            self.say(f"event {event}: node {node!r}: refused {refused[node].total()} ({reasons})")
        if others := sorted(news)[_SHOWN:]:
            total = sum(refused[node].total() for node in others)
            self.say(f"event {event}: refused {total} of {len(others)} more nodes")

    def forget(self, node: str) -> None:
        """Record a good result of a node, so that its next silence is reported."""
        with self._lock:
            self._silent.pop(node, None)

    def _is_news(self, node: str, reasons: Counter[str], silent: frozenset[str]) -> bool:
        return bool(reasons.keys() - _SILENT) or silent != self._silent.get(node, frozenset())
