"""CFL-MGD's Theorem 1 on mixed linear regression: geometric fall to a floor that shrinks with the clients' data.

Full batches of all clients, so that what is left is the planted noise alone; the starts lie within the basin that the
theorem assumes (closer to one's own planted parameters than to any other's).
"""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch

from atoll import LocalRule, Serial, Trainer, cfl_mgd, generator, init, make_population, train
from atoll.data.datasets import make_regression
from atoll.data.dealing.partition import one_group
from atoll.evaluation.scores import parameter_error
from atoll.local.models import linear
from atoll.local.rule import sgd

GROUPS, WIDTH, DISTANCE, NOISE, CLIENTS = 3, 8, 2.0, 0.5, 12


@cache
def errors(samples: int, beta: float, seed: int = 0, rounds: int = 60, lr: float = 0.1) -> list[float]:
    """Error to the planted parameters at the start and after each round."""
    data = make_regression(generator(seed, "regression"), CLIENTS, samples, GROUPS, WIDTH, NOISE, DISTANCE)
    everyone = one_group(data.groups_of(np.arange(len(data))), CLIENTS, generator(seed, "partition"), samples)
    population = make_population(data, everyone)
    assert data.planted is not None
    near = data.planted + 0.3 * DISTANCE * _directions(seed)
    initial = [{"1.weight": torch.tensor(start[None], dtype=torch.float32)} for start in near]
    rule = LocalRule(sgd, lr, 1, "full")
    method = cfl_mgd(population, rule, rounds, GROUPS, beta, fraction=1.0, seed=seed)
    module = linear((WIDTH,), 1, bias=False)
    executor = Serial(Trainer(module, population, method.rule, seed))
    state = init(method, *initial)
    found = [parameter_error(state.starts, data.planted)]
    for step in train(method, executor, state):
        assert np.array_equal(step.clusters, population.groups())  # identity is recovered, and stays
        found.append(parameter_error(step.state.starts, data.planted))
    return found


def _directions(seed: int) -> np.ndarray:
    drawn = generator(seed, "starts").normal(size=(GROUPS, WIDTH))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.more
def test_the_error_falls_by_a_constant_factor_until_its_floor() -> None:
    for seed in range(3):
        found = errors(400, 0.0, seed, lr=0.2)
        floor = found[-1]
        above = [e for e in found if e > 3 * floor]
        assert len(above) >= 5
        assert all(after <= 0.9 * before for before, after in pairwise(above))


@pytest.mark.more
def test_the_floor_shrinks_as_one_over_the_root_of_the_clients_samples() -> None:
    sizes = [25, 100, 400, 1600]
    floors = [np.mean([errors(n, 0.0, seed, 30, 0.2)[-1] for seed in range(4)]) for n in sizes]
    slope = np.polyfit(np.log(sizes), np.log(floors), 1)[0]
    assert slope <= -0.45  # -1/2, within what four seeds scatter


@pytest.mark.more
def test_momentum_reaches_twice_the_floor_in_fewer_rounds() -> None:
    def rounds_to_twice_the_floor(beta: float, seed: int) -> int:
        plain = errors(400, 0.0, seed)
        target = 2 * plain[-1]
        return next(t for t, e in enumerate(errors(400, beta, seed)) if e <= target)

    for seed in range(3):
        assert rounds_to_twice_the_floor(0.5, seed) < rounds_to_twice_the_floor(0.0, seed)


def test_planted_parameters_are_equally_far_apart() -> None:
    data = make_regression(generator(0, "regression"), groups=4, distance=3.0)
    assert data.planted is not None
    distances = np.linalg.norm(data.planted[:, None] - data.planted[None], axis=2)
    assert distances[~np.eye(4, dtype=bool)] == pytest.approx(3.0)
    residual = data.targets - (data.inputs * data.planted[data.groups]).sum(axis=1)
    assert residual.std() == pytest.approx(0.1, rel=0.05)
