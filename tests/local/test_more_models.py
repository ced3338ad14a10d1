"""The models for tables, characters, series and images without batch statistics."""

from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll.local.models import lstm, resnet, tabular, transformer
from atoll.support.errors import InputError
from tests.tiers import thinned


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_sizes_are_those_of_the_papers() -> None:
    # Reddi et al. 2021: 820,522 for 90 symbols; PyTorch keeps two biases of a gate, Keras one.
    assert count(lstm((80,), 90, symbols=90)) - 2 * 4 * 256 == 820_522
    assert count(resnet((3, 32, 32), 10)) == 11_173_962  # ResNet-18 for CIFAR-10
    assert count(tabular((20,), 3, [8])) == 20 * 8 + 8 + 2 * 8 + 8 * 3 + 3


@pytest.mark.parametrize("name", thinned(["lstm", "transformer"], 1))
@pytest.mark.parametrize("shape", [(6,), pytest.param((6, 3), marks=pytest.mark.more)])
def test_sequences_are_learned(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    inputs: Any = rng.integers(5, size=(200, *shape)).astype(np.uint8 if len(shape) == 1 else np.float32)
    first = inputs[:, 0] if len(shape) == 1 else inputs[:, 0, 0]
    targets = (first > 2).astype(int)
    data = atoll.Dataset("s", inputs, targets, inputs[:50], targets[:50], 2)
    small = {"lstm": {"hidden": 16, "layers": 1}, "transformer": {"width": 8, "heads": 2, "layers": 1}}[name]
    settings = {"data": {"dataset": data, "clients": 2}, "model": {"name": name, **small}, "rounds": 3}
    local = {"optimizer": "adam", "lr": 0.02, "steps": 40}
    result = atoll.run({**settings, "local": local, "method": {"name": "fedavg", "fraction": 1.0}})
    assert result.history["test_accuracy"][-1] > 0.9


def test_group_normalisation_keeps_no_statistics() -> None:
    module = resnet((1, 8, 8), 4, width=4, blocks=[1, 1])
    assert module(torch.zeros(2, 1, 8, 8)).shape == (2, 4)
    assert dict(module.named_buffers()) == {}


def test_other_shapes_are_refused() -> None:
    with pytest.raises(InputError, match=r"model.name = 'lstm': needs symbols \[length\], or rows"):
        lstm((1, 28, 28), 10)
    with pytest.raises(InputError, match=r"model.heads = 3: must divide model.width = 64"):
        transformer((8,), 10, heads=3)
    with pytest.raises(InputError, match=r"model.groups = 3: must divide model.width = 64"):
        resnet((1, 28, 28), 10, groups=3)
