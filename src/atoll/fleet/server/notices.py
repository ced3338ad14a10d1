"""Notices to the server's operator about rejected replies: one line per node and event, and a file with all of them."""

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from atoll.support.errors import InputError
from atoll.support.files import append_line, line_as_bytes, whole_lines, write_atomically
from atoll.support.limits import Count, StrictRecord

_SILENT = frozenset({"late", "gone", "aside"})  # no reply: reported when it starts, not in every event
_SHOWN = 20  # most nodes that are listed per event


class RefusedIn(StrictRecord):
    """A line of ``refused.jsonl``: how many results an event refused or missed, by node and reason."""

    event: Count
    nodes: dict[str, dict[str, Count]]


class Notices:
    """Collects rejections until an event is over; thread-safe."""

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        self.say = tell
        self._refused: dict[str, Counter[str]] = defaultdict(Counter)
        self._silent: dict[str, frozenset[str]] = {}
        self._path: Path | None = None
        self._lock = Lock()

    def begin(self, path: Path, events_done: int) -> None:
        """Record what later events refuse in this file, of which the lines of this many events are kept."""
        kept = [line for line in _read(path) if line.event < events_done]
        if path.exists():
            write_atomically(path, b"".join(line_as_bytes(line.model_dump()) for line in kept))
        self._path = path

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
        if self._path is not None and refused:
            append_line(self._path, {"event": event, "nodes": {node: dict(refused[node]) for node in sorted(refused)}})
        for node in sorted(news)[:_SHOWN]:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(refused[node].items()))
            self.say(f"event {event}: node {node!r}: {refused[node].total()} refused or missing ({reasons})")
        if others := sorted(news)[_SHOWN:]:
            total = sum(refused[node].total() for node in others)
            self.say(f"event {event}: {total} refused or missing of {len(others)} more nodes")

    def forget(self, node: str) -> None:
        """Record a good result of a node, so that its next silence is reported."""
        with self._lock:
            self._silent.pop(node, None)

    def _is_news(self, node: str, reasons: Counter[str], silent: frozenset[str]) -> bool:
        return bool(reasons.keys() - _SILENT) or silent != self._silent.get(node, frozenset())


def read_refused(path: Path) -> dict[str, Counter[str]]:
    """Return how many results of each node a run has refused or missed, by reason, from its ``refused.jsonl``."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for line in _read(path):
        for node, reasons in line.nodes.items():
            totals[node].update(reasons)
    return totals


def _read(path: Path) -> list[RefusedIn]:
    try:
        return [RefusedIn.model_validate_json(line) for line in whole_lines(path, path.parent)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read, or is damaged") from error
