"""FedNova against a loop by hand, with the paper's vectors a_i, and FedAvg where all take equally many steps."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from atoll import InputError, LocalRule, Method, fedavg, fednova, read_model
from atoll.local.rule import adam, momentum, sgd
from atoll.methods.papers.fednova import length_of
from atoll.support.arrays import Floats
from tests.methods.twins import LR, POPULATION, RULE, START, gradients, run, server, sizes
from tests.tiers import thinned

EPOCHS = 1.5
NOVA = replace(RULE, epochs=EPOCHS)


def by_hand(method: Method, x: Floats, rho: float) -> Iterator[Floats]:
    """Yield x after each round, of clients with a heavy ball of factor rho."""
    for event in method.schedule.events:
        shares = sizes(event) / sizes(event).sum()
        directions, lengths = [], []
        for k in event.cohort.tolist():
            steps = math.ceil(EPOCHS * POPULATION.sizes[k] / 2)
            y, u, lr = x, np.zeros(3), LR * 0.9**event.round
            for gradient in gradients(event, k, steps):
                u = rho * u + gradient(y)
                y = y - lr * u
            weights = [sum(rho**i for i in range(steps - j)) for j in range(steps)]  # a_i
            directions.append((x - y) / (lr * sum(weights)))
            lengths.append(sum(weights))
        x = x - (shares @ lengths) * lr * (shares @ directions)
        yield x


@pytest.mark.parametrize("rho", thinned([0.0, 0.5], 2))
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_it_is_the_loop_by_hand(fraction: float, rho: float) -> None:
    method = fednova(POPULATION, replace(NOVA, optimizer=momentum if rho else sgd), 10, fraction)
    assert len({NOVA.steps_of(size) for size in POPULATION.sizes.tolist()}) > 1
    for state, x in zip(run(method), by_hand(method, START, rho), strict=True):
        np.testing.assert_allclose(server(state), x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("optimizer", [sgd, momentum])
def test_with_equally_many_steps_it_is_fedavg_to_the_bit(optimizer: object) -> None:
    rule = replace(RULE, optimizer=optimizer, batch_size="full", steps=3)  # type: ignore[arg-type]
    ours, theirs = run(fednova(POPULATION, replace(rule, epochs=3.0), 8, 0.5)), run(fedavg(POPULATION, rule, 8, 0.5))
    assert all(np.array_equal(server(a), server(b)) for a, b in zip(ours, theirs, strict=True))


def test_running_statistics_stay_between_those_of_the_clients() -> None:
    """Beyond their mean a variance could be negative."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1)).double()
    method = fednova(POPULATION, NOVA, 1, 1.0, module=module)
    start = read_model(module)
    client = {name: torch.full_like(tensor, 0.0 if "running" in name else 2.0) for name, tensor in start.items()}
    sizes = sorted(POPULATION.sizes.tolist())
    pairs = [(float(sizes[0]), start), (float(sizes[-1]), client)]
    made = method.combine(iter(pairs), start, float(sizes[0] + sizes[-1]))
    weights = np.array(sizes)[[0, -1]] / [NOVA.steps_of(size) for size in (sizes[0], sizes[-1])]
    assert made["1.running_var"].item() == pytest.approx(weights[0] / weights.sum())
    without = fednova(POPULATION, NOVA, 1, 1.0).combine(iter(pairs), start, float(sizes[0] + sizes[-1]))
    assert without["1.running_var"].item() != pytest.approx(made["1.running_var"].item())
    assert without["0.weight"].equal(made["0.weight"])


def test_lengths_are_the_papers() -> None:
    assert length_of(RULE, 7) == 7
    rho = 0.5
    expected = (7 - rho * (1 - rho**7) / (1 - rho)) / (1 - rho)  # Wang et al., below equation (8)
    assert length_of(replace(RULE, optimizer=momentum), 7) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (replace(NOVA, optimizer=adam), r"local\.optimizer = Adam: must be 'sgd' or 'momentum' with .*'fednova'"),
        (replace(NOVA, proximal=0.1), r"local\.proximal = 0\.1: cannot be used with method\.name = 'fednova'"),
        (RULE, r"local\.epochs is not set, but method\.name = 'fednova' needs it"),
    ],
)
def test_what_does_not_go_with_it_is_refused(rule: LocalRule, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fednova(POPULATION, rule, 2)


def test_weight_decay_is_no_sum_of_gradients() -> None:
    rule = replace(RULE, epochs=1.0, optimizer=partial(torch.optim.SGD, weight_decay=0.1))
    with pytest.raises(InputError, match="must add up to a weighted sum of gradients"):
        fednova(POPULATION, rule, 2)
