"""What a model's last layer is given: the features of its samples."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from atoll.data.population import Population
from atoll.local.batches import Batches, cut_rows
from atoll.local.travel import layers_of
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
    data, batches, found = population.data, Batches(population.data, module), []
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
            if len(each) != len(rows) or not each.isfinite().all():
                raise InputError(f"{told} the model must give each a row of finite numbers")
            labels = torch.from_numpy(data.labels_of(rows)) if data.classes else torch.zeros(len(rows))
            of_class = (labels[:, None] == torch.arange(max(data.classes, 1))).double()
            found.append(of_class.T @ each / of_class.sum(dim=0)[:, None].clamp(min=1))
    return torch.stack(found).numpy()
