"""Trainers of clients that keep a model of their own beside the server's (`bcd`, `local`, `ditto`)."""

from dataclasses import replace
from typing import Any

from torch import nn

from atoll.aggregation.mean import add_updates
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend, require_finite
from atoll.local.weights import load_model, read_model
from atoll.support.errors import RunError
from atoll.support.seeds import layers_drawing_from


class PersonalTrainer(Trainer):
    """Trains each client's own model, which it keeps; the rule's proximal term pulls it toward the server's.

    A client's model begins as the module that the trainer is made with, which must be the run's initial model. What a
    client sends is the server's model plus the change of its own.
    """

    keeps_state = True
    keeps_model = True  # and that is what the state is

    def __init__(self, module: nn.Module, *given: Any, **named: Any) -> None:
        """Keep the initial model, and do what `Trainer` does."""
        super().__init__(module, *given, **named)
        self.initial = read_model(self.module)

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the server's model, moved by what the client's own changed by, and the latter to keep.

        Raises:
            RunError: the loss or the model is not finite, unless `tolerant`; names event, cluster and client. Or the
                run did not begin from the trainer's module.
        """
        before = task.state or self._first(task)
        after, loss = self.train_own(task, before, self.rule)
        return ClientUpdate(add_updates(task.start, [(1.0, after, before)]), loss, after)

    def train_own(self, task: ClientTask, before: Model, rule: LocalRule) -> tuple[Model, float]:
        """Return a client's own model after the rule's steps from `before`, and the mean loss."""
        load_model(self.module, before)
        self.module.train()
        with layers_drawing_from(self.seed, "layers", *task.key):
            losses = (self.batches.losses(self.outputs(x), y).mean() for x, y in self.draw_batches(task))
            loss, _ = descend(rule, dict(self.module.named_parameters()), task, losses, self.by_hand)
        after = read_model(self.module)
        if not self.tolerant:
            require_finite(task, after, loss, rule)
        return after, loss

    def _first(self, task: ClientTask) -> Model:
        """Return the model that clients have before they train, which in the first event is also the server's."""
        if task.event == 0 and any(not tensor.equal(task.start[name]) for name, tensor in self.initial.items()):
            raise RunError("PersonalTrainer: the run must begin from the model of the module that the trainer is given")
        return self.initial


class LoneTrainer(PersonalTrainer):
    """Trains each client's own model, of which nothing is sent: its node on a fleet returns what it was given."""

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the server's model as it was sent, and the client's own to keep.

        Raises:
            RunError: as `PersonalTrainer.train`.
        """
        return replace(super().train(task), model=task.start)


class DittoTrainer(PersonalTrainer):
    """Trains the model that a client is sent as `Trainer` does, then its own, pulled toward that one."""

    def __init__(self, module: nn.Module, *given: Any, penalty: float, **named: Any) -> None:
        """Do what `PersonalTrainer` does, with lambda."""
        super().__init__(module, *given, **named)
        self.penalty = penalty

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the server's model after the client's local steps, and the client's own to keep.

        Raises:
            RunError: as `PersonalTrainer.train`.
        """
        update = Trainer.train(self, task)
        own, _ = self.train_own(task, task.state or self._first(task), replace(self.rule, proximal=self.penalty))
        return replace(update, state=own)
