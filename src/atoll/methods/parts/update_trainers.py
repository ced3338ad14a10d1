"""Trainers that expose individual client results to the server, for learning clusters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer
from atoll.local.weights import trained_of
from atoll.methods.parts.corrected_trainers import hooked
from atoll.methods.parts.learned import common_of


class ModelTrainer(Trainer):
    """Keeps each client's most recently sent model."""

    keeps_state = True
    keeps_model = True  # the state is the model

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's model after its local steps, also as its state."""
        update = super().train(task)
        return replace(update, state={name: tensor for name, tensor in update.model.items() if "@" not in name})


class PulledTrainer(ModelTrainer):
    """Also pulls some layers toward those that all clusters share (LCFed)."""

    def __init__(self, *given: Any, embedding: tuple[str, ...], penalty: float, **named: Any) -> None:
        """Set up a `Trainer` that uses autograd, with the names of these layers' tensors and the weight of the pull."""
        super().__init__(*given, **named)
        self.dense, self.embedding, self.penalty = None, embedding, penalty

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's model after its local steps, also as its state."""
        own = {name: each for name, each in trained_of(self.module).items() if name in self.embedding}
        common = common_of(task.start)

        def pull(name: str) -> Callable[[Tensor], Tensor]:
            return lambda gradient: gradient.add(own[name].detach() - common[name], alpha=self.penalty)

        with hooked(own, {name: pull(name) for name in own if self.penalty}):
            return super().train(task)


class UpdateTrainer(Trainer):
    """Keeps the change in each client's communicated parameters from its latest training."""

    keeps_state = True
    trains_parts = True

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's model after its local steps, with its update as state."""
        update = super().train(task)
        names = [name for name, _ in self.module.named_parameters() if name in task.start]
        return replace(update, state={name: update.model[name] - task.start[name] for name in names})
