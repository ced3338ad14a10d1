"""Steps made by hand against autograd and `torch.optim.SGD`."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atoll import LocalRule, Population, Trainer, read_model
from atoll.local.batches import binary_cross_entropy, cross_entropy, half_squared, next_token
from atoll.local.dense import Dense
from atoll.local.models import dense, linear
from atoll.local.rule import adam, momentum, sgd
from atoll.local.task import ClientTask
from tests.problems import as_vector, classification, network, quadratics

Losses = Callable[[Tensor, Tensor], Tensor]

TARGETS: dict[Losses, Tensor] = {
    cross_entropy: torch.tensor([0, 2, 1, 1, 0]),
    half_squared: torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    binary_cross_entropy: torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.float64),
}


def some_network(hidden: tuple[int, ...], bias: bool = True, relu: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return dense((2, 3), hidden, 3, bias, relu=relu).double()


@pytest.mark.parametrize("losses", TARGETS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("hidden", "relu"), [((), True), ((7,), True), ((5, 4, 6), True), ((5, 4), False)])
def test_steps_are_those_of_autograd(hidden: tuple[int, ...], relu: bool, bias: bool, losses: Losses) -> None:
    ours, theirs = some_network(hidden, bias, relu), some_network(hidden, bias, relu)
    before = as_vector(read_model(ours))
    inputs = torch.randn(5, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weights = torch.tensor([0.1, 0.3, 0.2, 0.15, 0.25], dtype=torch.float64)
    network = Dense.of(ours, losses)
    assert network is not None
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.3)
    for _ in range(4):
        each = losses(theirs(inputs), TARGETS[losses])
        optimizer.zero_grad()
        (each @ weights).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        own = network.step(inputs, TARGETS[losses], 0.3, weights)
        np.testing.assert_allclose(losses(own, TARGETS[losses]), each.detach(), rtol=0, atol=1e-14)
    np.testing.assert_allclose(as_vector(read_model(ours)), as_vector(read_model(theirs)), rtol=0, atol=1e-14)
    assert not np.allclose(as_vector(read_model(ours)), before)


def test_an_empty_layer_does_not_pass_a_slope_on() -> None:
    """ReLU's slope at zero is zero, as autograd has it."""
    networks = [some_network((4,)) for _ in range(2)]
    for each in networks:
        nn.init.zeros_(each[1].weight)  # type: ignore[index]
        nn.init.zeros_(each[1].bias)  # type: ignore[index]
    inputs, targets = torch.ones(2, 2, 3, dtype=torch.float64), torch.tensor([1, 2])
    cross_entropy(networks[0](inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(networks[0].parameters(), lr=1.0).step()
    ours = Dense.of(networks[1], cross_entropy)
    assert ours is not None
    ours.step(inputs, targets, lr=1.0)
    np.testing.assert_allclose(as_vector(read_model(networks[1])), as_vector(read_model(networks[0])), atol=1e-15)


@pytest.mark.parametrize("batch_size", [4, "full"])
@pytest.mark.parametrize("population", [classification(), quadratics()], ids=["classes", "regression"])
def test_a_client_trains_by_hand_as_by_autograd(population: Population, batch_size: int) -> None:
    data = population.data
    rule = LocalRule(sgd, lr=0.2, steps=5, batch_size=batch_size, lr_decay=0.7)
    torch.manual_seed(0)
    module = dense(data.shape, (6,), data.classes or 1).double()
    by_hand, plain = (Trainer(module, population, rule, 3, by_hand=by_hand) for by_hand in (True, False))
    assert by_hand.dense
    task = ClientTask(event=2, round=3, repeat=1, cluster=0, client=4, start=read_model(module))
    ours, theirs = by_hand.train(task), plain.train(task)
    np.testing.assert_allclose(as_vector(ours.model), as_vector(theirs.model), rtol=0, atol=1e-14)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)


def test_targets_may_be_more_precise_than_the_model() -> None:
    population = quadratics()
    assert population.data.targets.dtype == np.float64
    module = dense(population.data.shape, (), 1)
    task = ClientTask(event=0, round=0, repeat=0, cluster=0, client=1, start=read_model(module))
    rule = LocalRule(sgd, lr=0.1, steps=3, batch_size="full")
    ours, theirs = (Trainer(module, population, rule, 0, by_hand=by_hand).train(task) for by_hand in (True, False))
    assert ours.model["1.weight"].dtype == torch.float32
    np.testing.assert_allclose(as_vector(ours.model), as_vector(theirs.model), rtol=1e-5, atol=1e-6)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def weight_decay(parameters: object, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, weight_decay=0.1)  # type: ignore[arg-type]


def another_rate(parameters: object, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=2 * lr)  # type: ignore[arg-type]


PLAIN = LocalRule(sgd, lr=0.1)


@pytest.mark.parametrize(
    "rule",
    [replace(PLAIN, optimizer=other) for other in (momentum, adam, weight_decay, another_rate)]
    + [replace(PLAIN, proximal=0.1)],
)
def test_another_rule_is_left_to_autograd(rule: LocalRule) -> None:
    module = dense((4,), (3,), 3).double()
    assert Trainer(module, classification(), PLAIN, seed=0).dense
    assert not Trainer(module, classification(), rule, seed=0).dense


def with_a_floor(parameters: object, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=max(lr, 0.05))  # type: ignore[arg-type]


@pytest.mark.parametrize("proximal", [0.0, 1e-9], ids=["by hand", "by autograd"])
def test_a_rate_that_an_optimizer_keeps_from_falling_does_not_fall(proximal: float) -> None:
    module = dense((4,), (3,), 3).double()
    task = ClientTask(event=9, round=9, repeat=0, cluster=0, client=1, start=read_model(module))
    falling = LocalRule(with_a_floor, lr=0.1, lr_decay=0.5, proximal=proximal)
    kept = replace(falling, lr=0.05, lr_decay=1.0)
    ours, theirs = (Trainer(module, classification(), rule, 0).train(task) for rule in (falling, kept))
    assert all(ours.model[name].equal(each) for name, each in theirs.model.items())


@pytest.mark.parametrize("optimizer", [sgd, torch.optim.SGD])
def test_steps_by_hand_without_an_optimizer_are_the_optimizers_to_the_bit(optimizer: type[torch.optim.SGD]) -> None:
    module = network()
    rule = LocalRule(optimizer, lr=0.1, steps=3, lr_decay=0.5)
    task = ClientTask(event=1, round=1, repeat=0, cluster=0, client=1, start=read_model(module))
    trainers = [Trainer(module, classification(), rule, 0, by_hand=by_hand) for by_hand in (True, False)]
    assert [each.by_hand for each in trainers] == [True, False]
    ours, theirs = (each.train(task) for each in trainers)
    assert ours.loss == theirs.loss
    assert all(ours.model[name].equal(each) for name, each in theirs.model.items())


class Renamed(nn.Sequential):
    """A user's subclass may do anything in its forward pass."""


def frozen() -> nn.Module:
    module = dense((4,), (3,), 2)
    next(module.parameters()).requires_grad_(False)
    return module


def hooked() -> nn.Module:
    module = dense((4,), (3,), 2)
    module[1].register_forward_hook(lambda *_: None)
    return module


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer)


OTHERS = [
    Renamed(nn.Flatten(), nn.Linear(4, 2)),
    nn.Sequential(nn.Linear(4, 2)),
    nn.Sequential(nn.Flatten()),
    nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
    nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU()),
    nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 2)),
    nn.Sequential(nn.Flatten(2), nn.Linear(4, 2)),
    frozen(),
    hooked(),
    shared(),
]


@pytest.mark.parametrize("module", OTHERS, ids=range(len(OTHERS)))
def test_another_module_is_left_to_autograd(module: nn.Module) -> None:
    assert Dense.of(module, cross_entropy) is None


def test_another_loss_is_left_to_autograd() -> None:
    assert Dense.of(linear((4,), 2), nn.functional.cross_entropy) is None
    assert Dense.of(linear((4,), 4), next_token) is None


def test_tied_layers_are_left_to_autograd() -> None:
    """By hand the matrix would have changed before the earlier of the two is backpropagated."""
    layers = [
        nn.Flatten(),
        nn.Linear(4, 5),
        nn.ReLU(),
        nn.Linear(5, 5),
        nn.ReLU(),
        nn.Linear(5, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ]
    assert Dense.of(nn.Sequential(*layers), cross_entropy) is not None
    layers[5].weight = layers[3].weight
    assert Dense.of(nn.Sequential(*layers), cross_entropy) is None
