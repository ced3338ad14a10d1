"""Layers that share parameters: measured, and trained afterwards, like any others."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from atoll import InputError, LocalRule, Method, Trainer, apfl, fedgroup, ifca, perfedavg, pfedme, read_model, scaffold
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.serial import Serial
from atoll.local.rule import momentum, sgd
from atoll.local.task import ClientTask
from atoll.local.weights import load_model
from tests.methods.running import states_of, trainer_of
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


class Again(nn.Module):
    """Multiplies by another layer's matrix, which has no second name for it."""

    def __init__(self, layer: nn.Linear, bias: nn.Parameter) -> None:
        super().__init__()
        self.of, self.bias = (layer,), bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, self.of[0].weight, self.bias)


PLAIN = LocalRule(sgd, lr=0.1, steps=2, batch_size=4)


@pytest.mark.parametrize(
    "make",
    [
        lambda module: pfedme(POPULATION, PLAIN, 3, fraction=0.5, server_lr=0.7, module=module),
        lambda module: apfl(POPULATION, PLAIN, 3, fraction=0.5),
        lambda module: perfedavg(POPULATION, PLAIN, 3, fraction=0.5),
        lambda module: scaffold(POPULATION, PLAIN, 3, 0.7, 0.5, module=module),
        lambda module: fedgroup(POPULATION, PLAIN, 3, 1, fraction=0.5),
    ],
    ids=["pfedme", "apfl", "perfedavg", "scaffold", "fedgroup"],
)
def test_methods_train_a_matrix_of_two_names_as_one_of_one(make: Callable[[nn.Module], Method]) -> None:
    tied, twin = one_matrix_in_two_layers(0), one_matrix_in_two_layers(0)
    assert isinstance(twin, nn.Sequential)
    assert isinstance(twin[0], nn.Linear)
    assert isinstance(twin[2], nn.Linear)
    twin[2] = Again(twin[0], twin[2].bias)
    ours, theirs = (
        states_of(make(each), Serial(trainer_of(make(each), each, POPULATION)), each) for each in (tied, twin)
    )
    for one, other in zip(ours, theirs, strict=True):
        for model in (*one.starts, *one.clients.values()):
            assert torch.equal(model["0.weight"], model.get("2.weight", model["0.weight"]))
        for mine, its in zip(
            (*one.starts, *one.clients.values()), (*other.starts, *other.clients.values()), strict=True
        ):
            assert all(torch.equal(tensor, mine[name]) for name, tensor in its.items())
    assert not torch.equal(ours[0].starts[0]["2.weight"], ours[-1].starts[0]["2.weight"])


def test_ifcas_clusters_do_not_share_one_name_of_a_matrix_alone() -> None:
    with pytest.raises(InputError, match=r"'0\.weight' and '2\.weight' are one tensor"):
        ifca(POPULATION, RULE, 2, 2, shared_layers=1, module=one_matrix_in_two_layers(0))
