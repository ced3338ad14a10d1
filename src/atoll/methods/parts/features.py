"""The features of samples, which are what a model's last layer is given; and MOON's trainer, which compares them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from atoll.data.population import Population
from atoll.local.batches import Batches, cut_rows
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend
from atoll.local.travel import layers_of
from atoll.local.weights import load_model
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, blaming


@contextmanager
def watching(*modules: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """Note what each module's last layer with parameters is given, [samples, features]; all have the same layers."""
    seen: dict[nn.Module, Tensor] = {}
    last = layers_of(modules[0])[-1]

    def note(module: nn.Module) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda layer, inputs: seen.update({module: inputs[0].flatten(1)})

    handles = [each.get_submodule(last).register_forward_pre_hook(note(each)) for each in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def prototypes(population: Population, module: nn.Module, encoder: nn.Module | None) -> Floats:
    """Return the mean embedding of each client's samples of each class, [clients, classes, numbers], 0 without samples.

    Inputs are the module's. The encoder is a frozen model; None: the module up to its last layer. Regression counts as
    one class. Raises InputError if the encoder does not fit the inputs, or does not give each a row of finite numbers.
    """
    data, batches, found = population.data, Batches(population.data, module), list[Tensor]()
    embed = module.eval() if encoder is None else encoder.eval()
    told = f"method.encoder: for samples of shape {list(data.shape)}"
    with watching(module) as seen:
        for client in range(len(population)):
            rows, embedded = population.samples(client), []
            with blaming(f"{told} the model fails", InputError):
                for part in cut_rows([rows], batches.inputs.device.type):
                    out = embed(batches.gather(part)[0])
                    embedded.append(seen.get(embed, out).flatten(1).double().cpu())
                each = torch.cat(embedded)
            if len(each) != len(rows) or not each.isfinite().all() or (found and found[0].shape[1] != each.shape[1]):
                raise InputError(f"{told} the model must give each a row of finite numbers, as many for each")
            labels = torch.from_numpy(data.labels_of(rows)) if data.classes else torch.zeros(len(rows))
            of_class = (labels[:, None] == torch.arange(max(data.classes, 1))).double()
            found.append(of_class.T @ each / of_class.sum(dim=0)[:, None].clamp(min=1))
    return torch.stack(found).numpy()


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
