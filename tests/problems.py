"""Small problems shared by the tests: populations of quadratics, and of a planted classification."""

import numpy as np
import torch
from torch import nn

from atoll import Dataset, Population, make_population
from atoll.local.models import Model
from atoll.support.arrays import Floats


def quadratics(clients: int = 6, samples: int = 8, width: int = 3, seed: int = 0, noise: float = 1.0) -> Population:
    """Least squares: client k's targets come from its own parameters; `noise` = 0 gives all the same ones."""
    rng = np.random.default_rng(seed)
    sizes = samples + np.arange(clients) % 3  # unequal, so that weights matter
    inputs = rng.normal(size=(sizes.sum(), width))
    planted = rng.normal(size=width) + noise * rng.normal(size=(clients, width))
    owner = np.repeat(np.arange(clients), sizes)
    targets = (inputs * planted[owner]).sum(axis=1)
    data = Dataset("quadratics", inputs, targets, inputs[:1], targets[:1], classes=0, loss="squared")
    return make_population(data, [np.flatnonzero(owner == k) for k in range(clients)])


def classification(clients: int = 6, samples: int = 8, width: int = 4, classes: int = 3, seed: int = 0) -> Population:
    rng = np.random.default_rng(seed)
    sizes = samples + np.arange(clients) % 3
    inputs = rng.normal(size=(sizes.sum(), width))
    targets = rng.integers(classes, size=sizes.sum())
    data = Dataset("planted", inputs, targets, inputs[:5], targets[:5], classes=classes)
    return make_population(data, np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1]))


def linear_module(width: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 1, bias=False)).double()


def network(width: int = 4, hidden: int = 5, classes: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, classes)).double()


def normalised() -> nn.Module:
    """A network for scikit-learn's digits with a layer that normalises."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 10))


def as_vector(model: Model) -> Floats:
    return np.concatenate([tensor.double().numpy().ravel() for name, tensor in model.items() if "@" not in name])


def pooled_least_squares(population: Population) -> Floats:
    """The minimiser of the union's squared error."""
    inputs = population.data.inputs[population.indices]
    targets = population.data.targets[population.indices]
    return np.linalg.lstsq(inputs, targets, rcond=None)[0]


class Tallying(nn.Module):
    """Multiplies by the number of batches so far, which is no part of the model, and so is the last batch."""

    seen: torch.Tensor
    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(()), persistent=False)
        self.register_buffer("last", torch.zeros(0), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += 1
            self.last = inputs.detach()
        return inputs * self.seen
