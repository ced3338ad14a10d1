"""A node's store in memory."""

from threading import Lock

from atoll.fleet.node.store import checked_key


class MemoryStore:
    """Keeps bytes in memory."""

    def __init__(self) -> None:
        """Start empty."""
        self._content: dict[str, bytes] = {}
        self._lock = Lock()

    def get(self, key: str) -> bytes | None:
        """Return what was last stored under a key, or None."""
        with self._lock:
            return self._content.get(checked_key(key))

    def put(self, key: str, content: bytes) -> None:
        """Store bytes under a key, replacing earlier ones."""
        with self._lock:
            self._content[checked_key(key)] = content

    def drop(self, key: str) -> None:
        """Delete what is stored under a key, if anything."""
        with self._lock:
            self._content.pop(checked_key(key), None)
