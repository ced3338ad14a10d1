"""One client after the other in this process: the reference."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from atoll.local import Outcome, Task, Trainer


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


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: a client's steps are too small to share, and bits must not depend on the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
