"""Trainers whose clients let the server see what they send, one by one, which learned clusters are found from."""

from dataclasses import replace
from typing import Any

from torch import nn

from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer
from atoll.local.weights import read_model
from atoll.support.errors import RunError


class ModelTrainer(Trainer):
    """Keeps each client's model as it last sent it."""

    keeps_state = True
    keeps_model = True  # and that is what the state is

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's model after its local steps, which is also kept."""
        update = super().train(task)
        return replace(update, state={name: tensor for name, tensor in update.model.items() if "@" not in name})


class UpdateTrainer(Trainer):
    """Keeps what each client's parameters changed by when it last trained."""

    keeps_state = True

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's model after its local steps; its update is kept."""
        update = super().train(task)
        names = [name for name, _ in self.module.named_parameters()]
        return replace(update, state={name: update.model[name] - task.start[name] for name in names})


class PretrainTrainer(UpdateTrainer):
    """Keeps each client's first update, made from the initial model whatever model it is sent.

    A client that has none yet makes it and returns the model that it was sent; later it trains as any other.
    """

    def __init__(self, module: nn.Module, *given: Any, **named: Any) -> None:
        """Keep the initial model, which must be the run's, and do what `Trainer` does."""
        super().__init__(module, *given, **named)
        self.initial = read_model(self.module)

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the model after the client's local steps; or, the first time, the update to keep.

        Raises:
            RunError: the loss or the model is not finite, or the run did not begin from the trainer's module.
        """
        if task.state is not None:
            return replace(Trainer.train(self, task), state=task.state)
        self._require_initial(task)
        first = super().train(replace(task, start=self.initial))
        return replace(first, model=task.start)

    def _require_initial(self, task: ClientTask) -> None:
        same: Model = self.initial
        if task.event == 0 and any(not tensor.equal(task.start[name]) for name, tensor in same.items()):
            raise RunError("PretrainTrainer: the run must begin from the model of the module that the trainer is given")
