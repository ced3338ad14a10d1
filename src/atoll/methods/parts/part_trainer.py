"""Trainers of clients that keep a part of the model to themselves (FedBN, FedPer, FedRep)."""

from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from typing import Any

from torch import nn

from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend, require_finite
from atoll.local.travel import frozen
from atoll.local.weights import load_model, read_model
from atoll.support.seeds import layers_drawing_from


class PartTrainer(Trainer):
    """Trains the model that a client is sent, completed by the tensors that stay with it; these it keeps.

    They begin as those of the module that the trainer is made with, as frozen ones remain.
    """

    keeps_state = True
    keeps_model = True

    def __init__(self, module: nn.Module, *given: Any, stays: Collection[str], **named: Any) -> None:
        """Do what `Trainer` does, for a model of which tensors of these names stay."""
        super().__init__(module, *given, **named)
        self.initial = read_model(self.module, set(stays).difference(frozen(self.module)))

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the travelling tensors after the client's local steps, and those that stay as what it keeps.

        Raises:
            RunError: the loss or the model is not finite, unless `tolerant`; names event, cluster and client.
        """
        own = task.state or self.initial
        update = self.train_whole(replace(task, start=task.start | own))
        sent = {name: tensor for name, tensor in update.model.items() if name not in own}
        return replace(update, model=sent, state={name: update.model[name] for name in own})

    def train_whole(self, task: ClientTask) -> ClientUpdate:
        """Return the whole model after the client's local steps from `task.start`, which is whole too."""
        return super().train(task)


class HeadFirstTrainer(PartTrainer):
    """Takes the first local steps with what stays alone, the last `body_steps` with what travels alone (FedRep)."""

    def __init__(self, module: nn.Module, *given: Any, body_steps: int, **named: Any) -> None:
        """Do what `PartTrainer` does; no step is made by hand."""
        super().__init__(module, *given, **named)
        self.body_steps = body_steps

    def train_whole(self, task: ClientTask) -> ClientUpdate:
        """Return the whole model after the client's local steps from `task.start`."""
        load_model(self.module, task.start)
        self.module.train()
        trained = {name: each for name, each in self.module.named_parameters() if each.requires_grad}
        head = {name: each for name, each in trained.items() if name in self.initial}
        body = {name: each for name, each in trained.items() if name not in self.initial}
        total = self.steps_of(task.client)
        body_steps = min(self.body_steps, total)
        summed = 0.0
        with layers_drawing_from(self.seed, "layers", *task.key):
            losses = (self.batches.losses(self.outputs(x), y).mean() for x, y in self.draw_batches(task))
            for part, steps in ((head, total - body_steps), (body, body_steps)):
                if part and steps:
                    summed += steps * descend(self.rule, part, task, islice(losses, steps), self.by_hand)[0]
        model, loss = read_model(self.module, task.start), summed / total
        if not self.tolerant:
            require_finite(task, model, loss, self.rule)
        return ClientUpdate(model, loss)
