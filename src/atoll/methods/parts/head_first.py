"""The trainer for clients that first train their own head, then the body below it (FedRep)."""

from collections.abc import Collection
from itertools import islice
from typing import Any

from torch import nn

from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend
from atoll.local.weights import trained_of


class HeadFirstTrainer(Trainer):
    """Trains only the head in the first local steps, only the body in the last `body_steps`."""

    def __init__(self, module: nn.Module, *given: Any, head: Collection[str], body_steps: int, **named: Any) -> None:
        """Set up a `Trainer` with the names of the head's parameters; all steps use autograd."""
        super().__init__(module, *given, **named)
        self.head = frozenset(head)
        self.body_steps = body_steps

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the whole model after the client's local steps."""
        trained = trained_of(self.module)
        head = {name: each for name, each in trained.items() if name in self.head}
        body = {name: each for name, each in trained.items() if name not in self.head}
        total = self.steps_of(task.client)
        body_steps = min(self.body_steps, total)
        summed = 0.0
        with self.at_work(task, task.start):
            losses = (self.batches.losses(self.outputs(x), y).mean() for x, y in self.draw_batches(task))
            for part, steps in ((head, total - body_steps), (body, body_steps)):
                if part and steps:
                    summed += steps * descend(self.rule, part, task, islice(losses, steps), self.by_hand)[0]
        return self.update_of(task, summed / total)
