"""The trainer of clients that go through their own data so many times, and so take different numbers of steps."""

import math
from copy import copy
from dataclasses import replace
from operator import mul
from typing import Any

from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer
from atoll.methods.fednova import count_steps
from atoll.support.arrays import Ids


class EpochTrainer(Trainer):
    """Takes as many steps at each client as `epochs` times its samples need; the rule's number of steps does not count.

    Batches are drawn with replacement, as all are: an epoch is a number of samples.
    """

    def __init__(self, *given: Any, epochs: float, **named: Any) -> None:
        """Do what `Trainer` does."""
        super().__init__(*given, **named)
        self.epochs = epochs

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's model after its own number of steps."""
        own, samples = copy(self), int(self.population.sizes[task.client])
        own.rule = replace(self.rule, steps=count_steps(self.rule, samples, self.epochs))
        return super(EpochTrainer, own).train(task)

    def samples_a_step(self, clients: Ids) -> int:
        """Return how many samples these clients take at most, for each of the rule's steps: their own are others."""
        sizes = self.population.sizes[clients].tolist()
        batches = sizes if self.rule.batch_size == "full" else [self.rule.batch_size] * len(sizes)
        steps = (count_steps(self.rule, size, self.epochs) for size in sizes)
        total: int = sum(map(mul, batches, steps))
        return math.ceil(total / self.rule.steps)
