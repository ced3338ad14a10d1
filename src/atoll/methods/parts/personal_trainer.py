"""Trainers for clients that keep a personal model besides the server's, such as Ditto's, or a head of their own."""

from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from typing import Any

from torch import nn

from atoll.aggregation.mean import add_updates
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend
from atoll.local.weights import read_model, trained_of
from atoll.methods.parts.learned import COMMON, common_of
from atoll.support.errors import RunError


class PersonalTrainer(Trainer):
    """Trains each client's personal model; the rule's proximal term pulls it toward the server's.

    A personal model starts from the trainer's module, which must be the run's initial model. Clients send the server's
    model plus the change in their own.
    """

    keeps_state = True
    keeps_model = True  # the state is the model

    def __init__(self, module: nn.Module, *given: Any, **named: Any) -> None:
        super().__init__(module, *given, **named)
        self.initial = read_model(self.module)

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the server's model plus the change in the personal model, which is the client's state."""
        before = task.state or self._first(task)
        after, loss = self.train_own(task, before, self.rule)
        return ClientUpdate(add_updates(task.start, [(1.0, after, before)]), loss, after)

    def train_own(self, task: ClientTask, before: Model, rule: LocalRule) -> tuple[Model, float]:
        """Return a client's personal model after the rule's steps from `before`, and the mean loss."""
        with self.at_work(task, before):
            losses = (self.batches.losses(self.outputs(x), y).mean() for x, y in self.draw_batches(task))
            loss, _ = descend(rule, dict(self.module.named_parameters()), task, losses, self.by_hand)
        after = read_model(self.module)
        self.require_finite(task, after, loss)
        return after, loss

    def _first(self, task: ClientTask) -> Model:
        """Return the initial personal model, which in the first event is also the server's."""
        if task.event == 0 and any(not tensor.equal(task.start[name]) for name, tensor in self.initial.items()):
            raise RunError("PersonalTrainer: the run must start from the model of the trainer's module")
        return self.initial

    def first_update(self, task: ClientTask) -> ClientUpdate:
        """Return the received model, with the change in the initial model's parameters by local training as state."""
        update = Trainer.train(self, replace(task, start=self._first(task)))
        names = [name for name, _ in self.module.named_parameters(remove_duplicate=False)]
        return ClientUpdate(task.start, update.loss, {name: update.model[name] - self.initial[name] for name in names})


class PretrainTrainer(PersonalTrainer):
    """Keeps each client's first update, which it computes before it trains for the first time."""

    keeps_model = False
    asks_first = True  # a client's first task returns what it received

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the model after local training or, the first time, the received model with the update as state."""
        if task.state is None:
            return self.first_update(task)
        return replace(Trainer.train(self, task), state=task.state)


class LoneTrainer(PersonalTrainer):
    """Trains each client's personal model and sends nothing of it: a fleet node returns the model it received."""

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the server's model unchanged, with the personal model as the client's state."""
        return replace(super().train(task), model=task.start)


class DittoTrainer(PersonalTrainer):
    """Trains the received model like `Trainer`, then the client's personal model, pulled toward the received one."""

    def __init__(self, module: nn.Module, *given: Any, penalty: float, **named: Any) -> None:
        super().__init__(module, *given, **named)
        self.penalty = penalty

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the server's model after local training, with the personal model as the client's state."""
        update = Trainer.train(self, task)
        own, _ = self.train_own(task, task.state or self._first(task), replace(self.rule, proximal=self.penalty))
        return replace(update, state=own)


class BiLevelTrainer(DittoTrainer):
    """StoCFL's client: trains the common model by the rule and its cluster's, pulled toward the common one.

    The first time it returns what it received, and keeps its update of the initial model.
    """

    keeps_model = False
    asks_first = True

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the cluster's model and the common one, with the client's first update as its state."""
        own, common = {name: task.start[name] for name in self.initial}, common_of(task.start)
        if task.state is None:
            return replace(self.first_update(task), model=own | _as_common(common))
        update = super().train(replace(task, start=common, state=own))
        return ClientUpdate((update.state or {}) | _as_common(update.model), update.loss, task.state)


def _as_common(model: Model) -> Model:
    return {f"{name}{COMMON}": tensor for name, tensor in model.items()}


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
