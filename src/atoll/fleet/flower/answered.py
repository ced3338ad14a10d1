"""A node's latest answers: a question that comes again, since its answer was lost on the way, gets the same one.

So nothing is trained, charged to a privacy budget or counted twice when a superlink dies, and a secure sum goes on.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable


class Answered:
    """Answers questions, and keeps the latest answers; for one thread."""

    def __init__(self, answer: Callable[[str, bytes], bytes], kept: int = 8, most_bytes: int = 2**26) -> None:
        """Let `answer` map a task's name and payload to a reply; keep the latest, within these limits."""
        self._answer, self._kept, self._most_bytes = answer, kept, most_bytes
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    def __call__(self, task: str, payload: bytes) -> bytes:
        """Return the answer to a task; calls differ in their nonces, so that equal payloads are one call."""
        key = hashlib.sha256(task.encode() + b"\0" + payload).digest()
        if key not in self._answers:
            self._answers[key] = self._answer(task, payload)
            while len(self._answers) > 1 and self._is_too_much():
                self._answers.popitem(last=False)
        return self._answers[key]

    def _is_too_much(self) -> bool:
        return len(self._answers) > self._kept or sum(map(len, self._answers.values())) > self._most_bytes
