"""Models by name: functions that take the shape of one input and the number of outputs and return an `nn.Module`.

A user's own function has the same form and is named in the experiment file as ``name = "module:factory"``.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from atoll.data.dataset import Dataset
from atoll.local.pretrained import pretrained
from atoll.support.errors import InputError
from atoll.support.limits import Positive
from atoll.support.requiring import checked, require
from atoll.support.seeds import layers_drawing_from

if TYPE_CHECKING:  # imported only when a model is made, so that reading settings stays fast
    import torch
    from torch import Tensor, nn

_checked = checked("model.{}", shape=tuple[int, ...] | list[int], classes=Positive)

Shape = tuple[int, ...]

Model = dict[str, "Tensor"]
"""A model as it is communicated: the module's parameters and buffers by name, and, if a rule carries them, the
optimiser's moments as ``parameter@slot``."""

Form = dict[str, "tuple[torch.Size, torch.dtype]"]
"""The shape and type of each tensor of a model."""

HIDDEN: dict[str, tuple[int, ...]] = {"linear": (), "mlp": (200,), "lr": (512, 512)}
"""Widths of the hidden layers of the dense models."""


@_checked
def linear(shape: Shape, classes: int, bias: bool = True) -> "nn.Module":
    """One dense layer on the flattened input.

    Args:
        bias: whether to add a bias.
    """
    return dense(shape, HIDDEN["linear"], classes, bias)


@_checked
def mlp(shape: Shape, classes: int) -> "nn.Module":
    """Dense 200 with ReLU (784-200-10 on MNIST; CFL-MGD)."""
    return dense(shape, HIDDEN["mlp"], classes)


@_checked
def lr(shape: Shape, classes: int) -> "nn.Module":
    """Dense 512-512 with ReLU (784-512-512-10 on MNIST, 2.56 MiB; one reading of FedUC's "LR")."""
    return dense(shape, HIDDEN["lr"], classes)


@_checked
def lr_linear(shape: Shape, classes: int) -> "nn.Module":
    """Dense 512-512 without activations, a linear model in three factors (the other reading of FedUC's "LR").

    The paper calls it logistic regression, and names three dense layers but no activation.
    """
    return dense(shape, HIDDEN["lr"], classes, relu=False)


def dense(
    shape: Shape, hidden: Sequence[int], classes: int, bias: bool = True, layer_norm: bool = False, relu: bool = True
) -> "nn.Sequential":
    """Return dense layers of the given widths, by default with ReLU between them; `bias` applies to the last one.

    >>> import torch
    >>> dense((1, 2, 2), (3,), 2)(torch.zeros(5, 1, 2, 2)).shape
    torch.Size([5, 2])
    """
    from torch import nn

    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for units in hidden:
        layers += [
            nn.Linear(width, units),
            *([nn.LayerNorm(units)] if layer_norm else []),
            *([nn.ReLU()] if relu else []),
        ]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, classes, bias=bias))


@_checked
def cnn(shape: Shape, classes: int) -> "nn.Module":
    """Two 5x5 convolutions, each with ReLU and 2x2 max pooling, then two dense layers (FedUC, Sec. VI).

    Here and in `alexnet`, ReLU follows pooling: the same values and gradients for a quarter of the work.
    One input channel (MNIST): 20 and 50 channels, dense 500, 1.64 MiB. Otherwise (CIFAR-10): 32 and 64 channels,
    dense 512, 3.35 MiB.
    """
    from torch import nn

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
        *dense((second, rows // 2, columns // 2), (units,), classes),
    )


@_checked
def alexnet(
    shape: Shape, classes: int, channels: int = 64, response_norm: bool = False, crop: int = 28, edges: bool = False
) -> "nn.Module":
    """The small AlexNet of Zhang et al. 2017, FedCluster's model (1,068,298 parameters on CIFAR-10).

    Centre crop, per-image standardisation, two blocks of 5x5 convolution, ReLU and 3x3 max pooling with stride 2, then
    dense 384, dense 192 and the outputs. The papers do not state the width; here it is 64 `channels` with padding 2,
    without local response normalisation unless `response_norm` is set. IFCA's code has that, `crop` 24 and `edges`.

    Args:
        channels: of both convolutions.
        response_norm: whether each block ends with local response normalisation.
        crop: side of the centre crop.
        edges: whether pooling goes over the edge where a row or column would be left, as TensorFlow's does.
    """
    from torch import nn

    from atoll.local.layers import Standardize

    inputs, _, _ = _image(shape, "alexnet", least=crop)

    def block(width: int) -> "list[nn.Module]":
        norm: list[nn.Module] = [nn.LocalResponseNorm(9, alpha=0.001, beta=0.75)] if response_norm else []
        return [nn.Conv2d(width, channels, 5, padding=2), nn.MaxPool2d(3, 2, ceil_mode=edges), nn.ReLU(), *norm]

    blocks, side = [*block(inputs), *block(channels)], (crop if edges else crop - 3) // 4
    return nn.Sequential(Standardize(crop), *blocks, *dense((channels, side, side), (384, 192), classes))


@_checked
def tabular(shape: Shape, classes: int, hidden: list[Positive] | None = None) -> "nn.Module":
    """Dense layers with layer normalisation and ReLU, for rows of a table.

    Args:
        hidden: widths of the hidden layers; an empty list makes a linear model; unset: 128 and 64.
    """
    return dense(shape, (128, 64) if hidden is None else hidden, classes, layer_norm=True)


@_checked
def lstm(
    shape: Shape,
    classes: int,
    symbols: Positive = 256,
    embedding: Positive = 8,
    hidden: Positive = 256,
    layers: Positive = 2,
) -> "nn.Module":
    """Two LSTM layers on characters, as for Shakespeare (McMahan et al. 2017), or on windows of a table's rows.

    Args:
        symbols: size of the alphabet; inputs are the symbols' numbers.
        embedding: width of a symbol's vector.
        hidden: width of each layer.
        layers: number of LSTM layers.
    """
    from atoll.local.layers import Embedded, Recurrent

    _, numbers = _sequence(shape, "lstm")
    return Recurrent(Embedded(numbers, symbols, embedding), embedding, hidden, layers, classes)


@_checked
def transformer(
    shape: Shape, classes: int, symbols: Positive = 256, width: Positive = 64, heads: Positive = 4, layers: Positive = 2
) -> "nn.Module":
    """A small encoder with learned positions and no dropout, on characters or on windows of a table's rows.

    Args:
        symbols: size of the alphabet; inputs are the symbols' numbers.
        width: width of a symbol's vector.
        heads: attention heads; must divide `width`.
        layers: number of attention layers.
    """
    from atoll.local.layers import Attentive, Embedded

    length, numbers = _sequence(shape, "transformer")
    if width % heads:
        raise InputError(f"model.heads = {heads}: must divide model.width = {width}")
    return Attentive(Embedded(numbers, symbols, width), length, width, heads, layers, classes)


@_checked
def resnet(
    shape: Shape, classes: int, width: Positive = 64, blocks: list[Positive] | None = None, groups: Positive = 2
) -> "nn.Module":
    """ResNet-18 for small images, with group instead of batch normalisation (Hsieh et al. 2020).

    Args:
        width: channels of the first stage; each later stage doubles them.
        blocks: number of blocks in each stage; unset: 2, 2, 2, 2.
        groups: channel groups for normalisation; must divide `width`.
    """
    from atoll.local.layers import residual

    channels, _, _ = _image(shape, "resnet", least=4)
    if width % groups:
        raise InputError(f"model.groups = {groups}: must divide model.width = {width}")
    if blocks == []:
        raise InputError("model.blocks = []: must have a number for each stage, such as [2, 2, 2, 2]")
    return residual(channels, classes, width, tuple(blocks or (2, 2, 2, 2)), groups)


def draw_model(make: "Callable[..., nn.Module]", data: Dataset, seed: int, cluster: int = 0) -> "nn.Module":
    """Return a model for a data set with initial weights drawn from the seed, reproducibly.

    A run with this seed starts from these weights. Clusters that start from different models have their own.

    Args:
        make: a factory, such as `mlp`, called with the shape of an input and the number of outputs.
        data: the data set.
        seed: seed of the weights; PyTorch's global generator is not affected.
        cluster: counted from 0.
    """
    from torch import nn

    if isinstance(make, nn.Module) or not callable(make):
        raise InputError(f"make: must be a function that returns a PyTorch module, not {type(make).__name__!r}")
    require("data", data, Dataset)
    key = (cluster, 0) if cluster else ()
    with layers_drawing_from(seed, "model", *key):
        module = make(data.shape, data.outputs)
    if not isinstance(module, nn.Module):
        raise InputError(f"make: must return a PyTorch module, it returned {type(module).__name__!r}")
    return module


MODELS: dict[str, Callable[..., "nn.Module"]] = {
    "linear": linear,
    "mlp": mlp,
    "lr": lr,
    "lr-linear": lr_linear,
    "cnn": cnn,
    "alexnet": alexnet,
    "tabular": tabular,
    "lstm": lstm,
    "transformer": transformer,
    "resnet": resnet,
    "pretrained": pretrained,
}


def form_of(model: Model) -> Form:
    """Return the shape and type of each tensor."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in model.items()}


def without(model: Model, names: Collection[str]) -> Model:
    """Return the model without these tensors, or itself if there are none to remove.

    >>> without({"body": 1, "head": 2}, ["head"])
    {'body': 1}
    """
    return {name: tensor for name, tensor in model.items() if name not in names} if names else model


def without_moments(form: Form) -> Form:
    """Return a model's form without the optimiser's moments communicated with it (named parameter@slot)."""
    return {name: each for name, each in form.items() if "@" not in name}


def _sequence(shape: Shape, name: str) -> tuple[int, int | None]:
    """Return a sequence's length, and how many numbers each position has; None for symbols."""
    if len(shape) not in (1, 2):
        raise InputError(
            f"model.name = {name!r}: needs symbols [length], or rows of numbers [length, numbers]; the data set has "
            f"shape {list(shape)}"
        )
    return shape[0], shape[1] if len(shape) == 2 else None


def _image(shape: Shape, name: str, least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InputError(
            f"model.name = {name!r}: needs images of at least {least}x{least} pixels; "
            f"the data set has shape {list(shape)}"
        )
    return shape[0], shape[1], shape[2]
