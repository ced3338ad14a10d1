"""One client after the other in this process: the reference."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from atoll.local import Model, Outcome, Task, Trainer
from atoll.threads import one_thread


class Serial:
    """Trains the tasks one by one."""

    def __init__(self, trainer: Trainer) -> None:
        """Use this trainer for every task."""
        self.trainer = trainer

    def train(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Yield one outcome a task, in order."""
        for task in tasks:
            with one_thread():
                outcome = self.trainer.train(task)
            yield outcome

    @one_thread()
    def losses(self, models: Sequence[Model], clients: npt.NDArray[np.int64], round_: int) -> npt.NDArray[np.float64]:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        return self.trainer.losses(models, clients, round_)
