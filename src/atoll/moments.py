"""Moments of optimisers, such as momentum, that travel with a model under the names ``parameter@slot``."""

import torch
from torch import Tensor, nn

from atoll.models import Model


def load_moments(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], start: Model) -> None:
    """Give the optimiser the moments of these parameters that came with a model."""
    for key, tensor in start.items():
        name, _, slot = key.partition("@")
        if slot and name in parameters:
            own, copy = parameters[name], tensor.clone()
            optimizer.state[own][slot] = copy if copy.shape != own.shape else torch.empty_like(own).copy_(copy)


def read_moments(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> Model:
    """Return a copy of the optimiser's moments of these parameters, each named parameter@slot."""
    return {
        f"{name}@{slot}": tensor.clone(memory_format=torch.contiguous_format)
        for name, parameter in parameters.items()
        for slot, tensor in optimizer.state[parameter].items()
        if isinstance(tensor, Tensor)
    }
