"""Trainers whose clients keep a gradient correction, or what they sent last, from which a server learns clusters."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer
from atoll.local.weights import trained_of
from atoll.methods.parts.learned import common_of


class CorrectedTrainer(Trainer):
    """Takes the rule's steps with a constant added to each gradient. Client state starts at zero."""

    keeps_state = True

    def __init__(self, *given: Any, **named: Any) -> None:
        """Set up a `Trainer` that uses autograd, whose gradients can be added to."""
        super().__init__(*given, **named)
        self.use_autograd()

    def state_of(self, task: ClientTask) -> Model:
        """Return the client's state: one tensor per trained parameter."""
        return task.state or {name: torch.zeros_like(own) for name, own in trained_of(self.module).items()}

    def train_corrected(self, task: ClientTask, terms: Model) -> ClientUpdate:
        """Return the result of `Trainer.train` with these terms added to the parameters' gradients."""
        with hooked(dict(self.module.named_parameters()), {name: term.add for name, term in terms.items()}):
            return super().train(task)


class ControlVariates(CorrectedTrainer):
    """SCAFFOLD's client, option II: K steps ``y <- y - eta (g(y) - c_i + c)`` from y = x.

    Then ``c_i <- c_i - c + (x - y) / (K eta)``. It receives c with the model as ``parameter@c``, initially zero, and
    sends back c plus the change in c_i.
    """

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return y, with c_i as the client's state."""
        own, start = self.state_of(task), task.start
        c = {name: start.get(f"{name}@c", torch.zeros_like(tensor)) for name, tensor in own.items()}
        update = self.train_corrected(task, {name: c[name] - own[name] for name in own})
        length = self.steps_of(task.client) * self.rule.lr_at(task.round)
        moved = {name: start[name] - update.model[name] for name in own}  # nowhere in a round at rate 0
        new = {name: own[name] - c[name] + moved[name] / length for name in own} if length else own
        sent = {f"{name}@c": c[name] + (new[name] - own[name]) for name in own}
        return ClientUpdate(update.model | sent, update.loss, new)


class DynamicRegulariser(CorrectedTrainer):
    """FedDyn's client: descends ``L_k(w) - alpha <lambda_k, w> + alpha / 2 ||w - W||^2``, then updates lambda_k.

    ``lambda_k <- lambda_k - (w - W)`` is the paper's gradient of L_k divided by alpha. The quadratic term is the
    rule's proximal term, so alpha is `rule.proximal`.
    """

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return w, with lambda_k as the client's state."""
        own = self.state_of(task)
        update = self.train_corrected(task, {name: tensor * -self.rule.proximal for name, tensor in own.items()})
        new = {name: own[name] - (update.model[name] - task.start[name]) for name in own}
        return ClientUpdate(update.model, update.loss, new)


@contextmanager
def hooked(parameters: dict[str, nn.Parameter], changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Change the gradient of each parameter that the loss depends on."""
    hooks = [parameters[name].register_hook(change) for name, change in changes.items()]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


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
        self.use_autograd()
        self.embedding, self.penalty = embedding, penalty

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
