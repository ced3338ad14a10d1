"""One client after the other in this process: the reference."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from atoll.errors import AtollError, RunError
from atoll.executors.base import Trains
from atoll.local import Outcome, Task
from atoll.models import Model
from atoll.threads import one_thread


class Serial:
    """Trains the tasks one by one."""

    def __init__(self, trainer: Trains) -> None:
        """Use this trainer for every task."""
        self.trainer = trainer

    def train(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Yield one outcome a task, in order."""
        for task in tasks:
            yield self._train(task)

    @one_thread()
    def _train(self, task: Task) -> Outcome:
        try:
            return self.trainer.train(task)
        except AtollError:
            raise
        except Exception as error:  # whatever a user's model, loss or optimiser may raise
            where = f"event {task.event}, cluster {task.cluster}, client {task.client}"
            raise RunError(f"{where}: training failed ({type(error).__name__}: {error})") from error

    @one_thread()
    def losses(self, models: Sequence[Model], clients: npt.NDArray[np.int64], round_: int) -> npt.NDArray[np.float64]:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        return self.trainer.losses(models, clients, round_)
