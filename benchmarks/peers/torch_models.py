"""The models in plain PyTorch, and the clients' data as tensors.

The first three are layer for layer those of `atoll.local.models`; the others are of other libraries' benchmarks.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise

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
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


def alexnet() -> nn.Module:
    return nn.Sequential(
        Standardize(28),
        *(nn.Conv2d(3, 64, 5, padding=2), nn.MaxPool2d(3, 2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 5, padding=2), nn.MaxPool2d(3, 2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)),
    )


def two_convolutions(channels: int, units: int, classes: int, dropout: bool = False) -> nn.Module:
    """The network of pfl's CIFAR-10 and FLUTE's FEMNIST benchmarks (Reddi et al. 2021); dropout if asked."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *([nn.Dropout(0.25)] if dropout else []),
        *(nn.Flatten(), nn.Linear(units, 128), nn.ReLU()),
        *([nn.Dropout(0.5)] if dropout else []),
        nn.Linear(128, classes),
    )


def blazefl_cnn() -> nn.Module:
    """PyTorch's CIFAR-10 tutorial network, as in BlazeFL's benchmark."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def fedavg_cnn() -> nn.Module:
    """PFLlib's `FedAvgCNN` for MNIST."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(inplace=True), nn.Linear(512, 10)),
    )


def norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


class Block(nn.Module):
    """Two convolutions and what goes around them."""

    def __init__(self, entering: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(entering, channels, 3, stride, 1, bias=False), norm(channels), nn.ReLU(inplace=True)),
            *(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), norm(channels)),
        )
        apart = [nn.Conv2d(entering, channels, 1, stride, bias=False), norm(channels)]
        self.around = nn.Sequential(*([] if stride == 1 and entering == channels else apart))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.around(x))


def resnet18() -> nn.Module:
    """torchvision's ResNet-18, normalised by groups: libraries differ in how they average batches' statistics."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), norm(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "alexnet": alexnet,
    "pfl CIFAR-10 without dropout": partial(two_convolutions, 3, 64 * 14 * 14, 10),
    "pfl CIFAR-10": partial(two_convolutions, 3, 64 * 14 * 14, 10, dropout=True),
    "BlazeFL CNN": blazefl_cnn,
    "BlazeFL ResNet-18 with group norm": resnet18,
    "FLUTE FEMNIST without dropout": partial(two_convolutions, 1, 64 * 12 * 12, 62),
    "FLUTE FEMNIST": partial(two_convolutions, 1, 64 * 12 * 12, 62, dropout=True),
    "PFLlib MNIST": fedavg_cnn,
}


def make_model(case: work.Case) -> nn.Module:
    """Return the model of a case on its device, and set its precision: what a runner begins with."""
    torch.set_float32_matmul_precision("high" if case.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
    return MODELS[case.model]().to(case.device)


def wait_for(case: work.Case) -> None:
    """Wait until the device has done its work."""
    if case.device.startswith("cuda"):
        torch.cuda.synchronize()


def pool(case: work.Case) -> tuple[Tensor, Tensor]:
    """Return all clients' inputs and targets on the device of the case."""
    images, labels = work.make_pool(case)
    return torch.from_numpy(images).to(case.device).float() / 255, torch.from_numpy(labels).to(case.device)


@cache
def datasets(case: work.Case) -> list[TensorDataset]:
    """Return each client's samples, made once for each process."""
    return [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in client_arrays(case)]


def count(module: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the norm of the difference of two lists of tensors."""
    return float(sum(float((a.cpu() - b.cpu()).square().sum()) for a, b in zip(one, other, strict=True)) ** 0.5)


def copies(module: nn.Module) -> list[Tensor]:
    """Return a copy of each parameter."""
    return [parameter.detach().clone() for parameter in module.parameters()]
