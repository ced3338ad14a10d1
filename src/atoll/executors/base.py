"""What an executor is."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from atoll.local import Outcome, Task
from atoll.models import Model


class Trains(Protocol):
    """Does one client's work in this process; what an executor hands tasks to."""

    def train(self, task: Task) -> Outcome:
        """Return what the client sends back."""
        ...

    def losses(self, models: Sequence[Model], clients: npt.NDArray[np.int64], round_: int) -> npt.NDArray[np.float64]:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        ...


class Executor(Protocol):
    """Trains clients, anywhere and in any order, and hands the outcomes back in the order of the tasks."""

    def train(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Yield one outcome a task, in order."""
        ...

    def losses(self, models: Sequence[Model], clients: npt.NDArray[np.int64], round_: int) -> npt.NDArray[np.float64]:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        ...
