"""The three models in plain PyTorch, layer for layer as in `atoll.local.models`, and the clients' data as tensors."""

from functools import cache

import torch
from shared import client_arrays
from torch import nn
from torch.utils.data import TensorDataset


class Standardize(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.side = side

    def forward(self, images):
        low = (images.shape[2] - self.side) // 2
        images = images[:, :, low : low + self.side, low : low + self.side]
        centred = images - images.mean(dim=(1, 2, 3), keepdim=True)
        spread = centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
        return centred / spread.clamp(min=images[0].numel() ** -0.5)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def alexnet():
    return nn.Sequential(
        Standardize(28),
        *(nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Flatten(), nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)),
    )


MODELS = {"mlp": mlp, "cnn": cnn, "alexnet": alexnet}


@cache
def datasets(case):
    """Return each client's samples, made once for each process."""
    return [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in client_arrays(case)]


def count(module):
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def distance(one, other):
    """Return the norm of the difference of two lists of tensors."""
    return float(sum((a - b).square().sum() for a, b in zip(one, other, strict=True)).sqrt())


def copies(module):
    """Return a copy of each parameter."""
    return [parameter.detach().clone() for parameter in module.parameters()]
