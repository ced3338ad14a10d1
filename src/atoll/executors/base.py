"""What an executor is."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from atoll.local import Outcome, Task


class Executor(Protocol):
    """Trains clients, anywhere and in any order, and hands the outcomes back in the order of the tasks."""

    def train(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Yield one outcome a task, in order."""
        ...
