"""The papers' models. A factory takes the shape of one input and the number of outputs and returns an `nn.Module`.

A user's own factory has the same form and is named in the experiment file as ``name = "module:factory"``.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from atoll.support.errors import InputError

Shape = tuple[int, ...]

Model = dict[str, Tensor]
Form = dict[str, tuple[torch.Size, torch.dtype]]
"""A model as it is sent: the module's parameters and buffers by name, and, where a rule carries them, the
optimiser's moments as ``parameter@slot``."""

HIDDEN: dict[str, tuple[int, ...]] = {"linear": (), "mlp": (200,), "lr": (512, 512)}
"""Widths of the hidden layers of the dense models."""


def linear(shape: Shape, classes: int, bias: bool = True) -> nn.Module:
    """One dense layer on the flattened input.

    Args:
        bias: whether outputs have a constant.
    """
    return dense(shape, HIDDEN["linear"], classes, bias)


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Dense 200 with ReLU (784-200-10 on MNIST; CFL-MGD)."""
    return dense(shape, HIDDEN["mlp"], classes)


def lr(shape: Shape, classes: int) -> nn.Module:
    """Dense 512-512 with ReLU (784-512-512-10 on MNIST, 2.56 MiB; FedUC's "LR")."""
    return dense(shape, HIDDEN["lr"], classes)


def dense(shape: Shape, hidden: tuple[int, ...], classes: int, bias: bool = True) -> nn.Module:
    """Return dense layers of the given widths with ReLU between them; `bias` is that of the outputs.

    >>> dense((1, 2, 2), (3,), 2)(torch.zeros(5, 1, 2, 2)).shape
    torch.Size([5, 2])
    """
    layers: list[nn.Module] = [nn.Flatten()]
    width = int(torch.Size(shape).numel())
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, classes, bias=bias))


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two 5x5 convolutions, each with ReLU and 2x2 max pooling, then two dense layers (FedUC, Sec. VI).

    ReLU comes after pooling here and in `alexnet`: the same numbers and gradients for a quarter of the work.
    One input channel (MNIST): 20 and 50 channels, dense 500, 1.64 MiB. Otherwise (CIFAR-10): 32 and 64 channels,
    dense 512, 3.35 MiB.
    """
    channels, height, width = _image(shape, "cnn", least=16)
    first, second, units = (20, 50, 500) if channels == 1 else (32, 64, 512)
    rows, columns = ((side - 4) // 2 - 4 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, first, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(second * (rows // 2) * (columns // 2), units),
        nn.ReLU(),
        nn.Linear(units, classes),
    )


def alexnet(shape: Shape, classes: int, channels: int = 64, response_norm: bool = False) -> nn.Module:
    """The small AlexNet of Zhang et al. 2017, FedCluster's model (1,068,298 parameters on CIFAR-10).

    Centre crop to 28x28, per-image standardisation, two blocks of 5x5 convolution, ReLU and 3x3 max pooling with
    stride 2, then dense 384, dense 192 and the outputs. The papers leave the width open: here 64 `channels` with
    padding 2, and local response normalisation after each pooling only with `response_norm`.

    Args:
        channels: of both convolutions.
        response_norm: local response normalisation after each block.
    """
    inputs, _, _ = _image(shape, "alexnet", least=28)

    def block(width: int) -> list[nn.Module]:
        norm: list[nn.Module] = [nn.LocalResponseNorm(9, alpha=0.001, beta=0.75)] if response_norm else []
        return [nn.Conv2d(width, channels, 5, padding=2), nn.MaxPool2d(3, 2), nn.ReLU(), *norm]

    return nn.Sequential(
        Standardize(28),
        *block(inputs),
        *block(channels),
        nn.Flatten(),
        nn.Linear(channels * 6 * 6, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, classes),
    )


class Standardize(nn.Module):
    """Crops images to the centre ``side x side`` and gives each mean 0 and standard deviation 1.

    The deviation is at least ``1 / sqrt(pixels)``, so that a blank image stays finite.
    """

    def __init__(self, side: int) -> None:
        """Crop to this side."""
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        """Map [n, channels, height, width] to [n, channels, side, side]."""
        top, left = ((size - self.side) // 2 for size in images.shape[2:])
        images = images[:, :, top : top + self.side, left : left + self.side]
        pixels = images[0].numel()
        centred = images - images.mean(dim=(1, 2, 3), keepdim=True)
        spread = centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()  # six times faster than torch.std_mean
        return centred / spread.clamp(min=pixels**-0.5)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "lr": lr,
    "cnn": cnn,
    "alexnet": alexnet,
}


def check_outputs(module: nn.Module, shape: Shape, outputs: int, name: str) -> None:
    """Refuse a module that does not map [n, *shape] to [n, outputs].

    Raises:
        InputError: names the model, what it returned and what is needed.
    """
    sample = torch.zeros(2, *shape, dtype=next(module.parameters(), torch.empty(0)).dtype)
    if not any(True for _ in module.parameters()):
        raise InputError(f"model.name = {name!r}: the model has no parameters to train")
    training = module.training
    try:
        with torch.no_grad():
            found = module.eval()(sample)
    except Exception as error:
        raise InputError(f"model.name = {name!r}: cannot take inputs of shape {[2, *shape]} ({error})") from error
    finally:
        module.train(training)
    if not isinstance(found, Tensor) or list(found.shape) != [2, outputs]:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"model.name = {name!r}: for two inputs the model must return shape {[2, outputs]} "
            f"(the data set has {outputs} classes), it returned {got}"
        )


def place(module: nn.Module, device: str = "cpu") -> nn.Module:
    """Move a module to the device, its convolutions laid out channels last, which most hardware computes faster.

    Only the module is laid out so; models are contiguous, so that sums over them do not depend on where they were.
    """
    return module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def read_model(module: nn.Module) -> Model:
    """Return a copy of the module's parameters and buffers."""
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in module.state_dict().items()
    }


def form_of(model: Model) -> Form:
    """Return the shape and type of each tensor."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in model.items()}


def without_moments(form: Form) -> Form:
    """Return the form of a model alone, without an optimiser's moments that travel with it (named parameter@slot)."""
    return {name: each for name, each in form.items() if "@" not in name}


def count_bytes(model: Model) -> int:
    """Return the bytes of a model's tensors.

    >>> count_bytes({"w": torch.zeros(3, 2)})
    24
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in model.values())


def is_finite(model: Model, loss: float) -> bool:
    """Return whether the loss and all numbers of the model are finite."""
    numbers = [tensor for tensor in model.values() if tensor.is_floating_point()] or [torch.zeros(1)]
    # So they are where their sums are, which is many times faster to find, and asks a GPU once.
    summed = bool(torch.stack([tensor.sum().double() for tensor in numbers]).isfinite().all())
    return math.isfinite(loss) and (summed or all(bool(tensor.isfinite().all()) for tensor in numbers))


@torch.no_grad()
def load_model(module: nn.Module, model: Model) -> None:
    """Copy a model into the module."""
    for name, tensor in module.state_dict().items():
        tensor.copy_(model[name])


def _image(shape: Shape, name: str, least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InputError(
            f"model.name = {name!r}: needs images of at least {least}x{least} pixels, "
            f"the data set has shape {list(shape)}"
        )
    return shape[0], shape[1], shape[2]


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
