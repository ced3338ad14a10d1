"""MOON's trainer: features are pulled toward the received model's, away from those of the client's last one."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend
from atoll.local.weights import load_model
from atoll.methods.parts.features import watching


class ContrastiveTrainer(Trainer):
    """Takes the rule's steps on the loss plus mu times a contrastive one of the features before the last layer."""

    keeps_state = True

    def __init__(self, *given: Any, mu: float, temperature: float, **named: Any) -> None:
        """Set up a `Trainer` with mu and tau, and two copies of the module for the received and the last model."""
        super().__init__(*given, **named)
        self.mu, self.temperature = mu, temperature
        self.received, self.last = deepcopy(self.module).eval(), deepcopy(self.module).eval()

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's model after its local steps, also as its state."""
        load_model(self.received, task.start)
        load_model(self.last, task.state or task.start)
        with self.at_work(task, task.start), watching(self.module, self.received, self.last) as seen:
            losses = (self._loss(x, y, seen) for x, y in self.draw_batches(task))
            loss, _ = descend(self.rule, dict(self.module.named_parameters()), task, losses, self.by_hand)
        update = self.update_of(task, loss)
        return replace(update, state=update.model)

    def _loss(self, x: Tensor, y: Tensor, seen: dict[nn.Module, Tensor]) -> Tensor:
        plain = self.batches.losses(self.module(x), y).mean()
        with torch.no_grad():
            self.received(x), self.last(x)
        near, far = (cosine_similarity(seen[self.module], seen[each]) for each in (self.received, self.last))
        scores = torch.stack([near, far], dim=1) / self.temperature
        return plain + self.mu * cross_entropy(scores, torch.zeros(len(y), dtype=torch.long, device=scores.device))
