"""The three models in plain PyTorch, layer for layer as in `atoll.local.models`, and the clients' data as tensors."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from shared import client_arrays, work
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class Standardize(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        low = (images.shape[2] - self.side) // 2
        images = images[:, :, low : low + self.side, low : low + self.side]
        centred = images - images.mean(dim=(1, 2, 3), keepdim=True)
        spread = centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
        return centred / spread.clamp(min=images[0].numel() ** -0.5)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def alexnet() -> nn.Module:
    return nn.Sequential(
        Standardize(28),
        *(nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Flatten(), nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn, "alexnet": alexnet}


@cache
def datasets(case: work.Case) -> list[TensorDataset]:
    """Return each client's samples, made once for each process."""
    return [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in client_arrays(case)]


def count(module: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the norm of the difference of two lists of tensors."""
    return float(sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True)) ** 0.5)


def copies(module: nn.Module) -> list[Tensor]:
    """Return a copy of each parameter."""
    return [parameter.detach().clone() for parameter in module.parameters()]
