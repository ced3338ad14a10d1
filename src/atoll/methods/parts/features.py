"""The features of samples, which are what a model's last layer is given; and MOON's trainer, which compares them."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from atoll.data.population import Population
from atoll.local.batches import Batches, cut_rows
from atoll.local.precision import products_in
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend
from atoll.local.travel import layers_of
from atoll.local.weights import load_model
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, blaming


@contextmanager
def watching(*modules: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """Note what each module gives to the layer with parameters that it calls last, for `features`."""
    seen: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.update((module, each) for each in (*given, *named.values())[:1])

    layers = [(each, each.get_submodule(name)) for each in modules for name in layers_of(each)]
    handles = [layer.register_forward_pre_hook(partial(note, each), with_kwargs=True) for each, layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def features(seen: dict[nn.Module, Tensor], module: nn.Module) -> Tensor:
    """Return the samples' features in the module's last pass, [samples, features]."""
    if module not in seen:
        raise InputError("model.name: calls no layer that has parameters, so that samples have no features to compare")
    return seen[module].flatten(1)


@torch.no_grad()
def prototypes(population: Population, module: nn.Module, encoder: nn.Module | None) -> Floats:
    """Return the mean embedding of each client's samples of each class, [clients, classes, numbers], 0 without samples.

    Inputs are the module's. The encoder is a frozen model; None: the module up to its last layer. Regression counts as
    one class. Raises InputError if the encoder does not fit the inputs, or does not give each a row of finite numbers.
    """
    data, batches, found = population.data, Batches(population.data, module), list[Tensor]()
    embed = module.eval() if encoder is None else encoder.eval()
    told = f"method.encoder: for samples of shape {list(data.shape)}"
    with watching(module) as seen, products_in("float32"):
        for client in range(len(population)):
            rows, embedded = population.samples(client), []
            with blaming(f"{told} the model fails", InputError):
                for part in cut_rows([rows], batches.inputs.device.type):
                    out = embed(batches.gather(part)[0])
                    embedded.append((features(seen, module) if encoder is None else out.flatten(1)).double().cpu())
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
        for copy, model in ((self.received, task.start), (self.last, task.state or task.start)):
            load_model(copy, model)
            self.renew_buffers(copy)
        with self.at_work(task, task.start), watching(self.module, self.received, self.last) as seen:
            losses = (self._loss(x, y, seen) for x, y in self.draw_batches(task))
            loss, _ = descend(self.rule, dict(self.module.named_parameters()), task, losses, self.by_hand)
        update = self.update_of(task, loss)
        return replace(update, state=update.model)

    def _loss(self, x: Tensor, y: Tensor, seen: dict[nn.Module, Tensor]) -> Tensor:
        plain = self.batches.losses(self.module(x), y).mean()
        with torch.no_grad():
            self.received(x), self.last(x)
        z = features(seen, self.module)
        if self.mu and not z.requires_grad:
            raise InputError("method.name = 'moon': the model trains nothing before its last layer, so features stay")
        near, far = (cosine_similarity(z, features(seen, each)) for each in (self.received, self.last))
        scores = torch.stack([near, far], dim=1) / self.temperature
        return plain + self.mu * cross_entropy(scores, torch.zeros(len(y), dtype=torch.long, device=scores.device))
