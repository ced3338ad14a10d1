"""Layers that share parameters: measured, and trained afterwards, like any others."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from atoll import LocalRule, Trainer, read_model
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.serial import Serial
from atoll.local.rule import momentum
from atoll.local.task import ClientTask
from atoll.local.weights import load_model
from tests.problems import as_vector, classification

POPULATION = classification(clients=5)
RULE = LocalRule(momentum, lr=0.1, steps=3, batch_size=4)


def one_matrix_in_two_layers(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(4, 3)).double()


def one_layer_in_two_places(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3)).double()


@pytest.mark.parametrize("make", [one_matrix_in_two_layers, one_layer_in_two_places])
def test_models_are_measured_and_the_module_trains_as_before(make: Callable[[int], nn.Module]) -> None:
    module, models, clients = make(0), [read_model(make(seed)) for seed in (1, 2, 3)], np.array([4, 0, 2])
    trainer, task = Trainer(module, POPULATION, RULE, 0), ClientTask(0, 0, 0, 0, 2, models[0])
    expected = np.empty((3, 3))
    for row, client in enumerate(clients):
        inputs, targets = trainer.batches.gather(POPULATION.samples(int(client)))
        for column, model in enumerate(models):
            load_model(module, model)
            expected[row, column] = trainer.batches.losses(module(inputs), targets).mean().item()
    before, names = trainer.train(task), [name for name, _ in module.named_parameters()]
    np.testing.assert_allclose(Serial(trainer).losses(models, clients, 0), expected, rtol=1e-12)
    with Cores(trainer, 2, 10_000) as cores:
        np.testing.assert_array_equal(cores.losses(models, clients, 0), Serial(trainer).losses(models, clients, 0))
    after = trainer.train(task)
    assert [name for name, _ in module.named_parameters()] == names
    assert as_vector(after.model).tobytes() == as_vector(before.model).tobytes()
