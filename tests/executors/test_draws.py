"""Batches drawn where clients are trained are, to the bit, those that each client's own generator draws."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import LocalRule, Stacked, Trainer, read_model
from atoll.aggregation.mean import average_models
from atoll.data.dealing.ranges import DrawnIndices
from atoll.data.population import Population, make_population
from atoll.engine.cohorts import Cohort
from atoll.executors.stacked import draws as drawing
from atoll.executors.stacked.draws import Draws, draw, starts_of
from atoll.local.models import Model
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.support.seeds import generator
from tests.executors.test_launches import Launches
from tests.executors.test_stack_memory import Alive
from tests.problems import classification, network

RULE = LocalRule(sgd, lr=0.1, steps=5, batch_size=7)
POOL = classification(clients=6, samples=20).data
UNEQUAL = make_population(POOL, np.split(np.random.default_rng(0).permutation(120), np.array([1, 3, 10, 42, 74])))


def numbers(seed: int, keys: np.ndarray, sizes: list[int], number: int) -> torch.Tensor:
    """Return the numbers below the sizes, [generators, number]."""
    starts = torch.from_numpy(starts_of(seed, "batches", keys))
    column = torch.tensor(sizes)[:, None]
    return draw(starts, column, 2**32 % column, drawing._jumps(number), number)


def by_numpy(seed: int, keys: np.ndarray, sizes: list[int], number: int) -> list[list[int]]:
    pairs = zip(keys.tolist(), sizes, strict=True)
    return [generator(seed, "batches", *key).integers(size, size=number).tolist() for key, size in pairs]


@given(st.integers(0, 2**70), st.lists(st.integers(1, 10**6), min_size=1, max_size=5), st.integers(1, 99), st.data())
def test_numbers_are_those_of_numpy(seed: int, sizes: list[int], number: int, data: st.DataObject) -> None:
    keys = np.array([[data.draw(st.integers(0, 2**32 - 1)), 0, own] for own in range(len(sizes))])
    assert numbers(seed, keys, sizes, number).tolist() == by_numpy(seed, keys, sizes, number)


def test_numbers_that_numpy_rejects_are_rejected() -> None:
    """Below 3 * 2^26, one of 64 is."""
    keys, sizes = np.arange(60).reshape(20, 3), [3 << 26] * 20
    assert numbers(0, keys, sizes, 100).tolist() == by_numpy(0, keys, sizes, 100)
    first = generator(0, "batches", *range(3)).bit_generator
    assert any((int(first.random_raw()) & 0xFFFFFFFF) * sizes[0] % 2**32 < 2**32 % sizes[0] for _ in range(100))


@pytest.mark.parametrize(
    "people", [UNEQUAL, make_population(replace(POOL, turns=(0, 0)), [np.arange(240), np.array([119, 239])])]
)
def test_rows_are_those_that_each_client_draws(people: Population) -> None:
    trainer = Trainer(network(), people, RULE, seed=5)
    ours = Draws.of(trainer, 1 << 20)
    assert ours is not None
    for event, drawn_as in ((0, None), (3, 17)):
        tasks = [ClientTask(event, 0, 2, 0, client, {}, drawn_as) for client in (1, 0, len(people) - 1)]
        theirs = np.concatenate([trainer.draw_rows(task) for task in tasks], axis=1)
        assert ours.rows(ours.begin(tasks)).tolist() == theirs.tolist()


def trained(executor: Stacked, clients: list[int]) -> Model:
    model = read_model(network(seed=1))
    for event in range(2):
        cohort = Cohort(event, event, 0, 0, np.array(clients), np.ones(len(clients)), float(len(clients)), model)
        model = executor.train([cohort], average_models)[0].model
    return model


def test_stacks_are_trained_on_them() -> None:
    models = []
    for given_draws in (True, False):
        executor = Stacked(Trainer(network(seed=1), UNEQUAL, RULE, seed=5))
        if given_draws:
            executor.draws = {own: Draws.of(own, 1 << 20) for own in executor.trainers}
        models.append(trained(executor, [0, 2, 5]))
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[1])


def changed(trainer: Trainer, **change: Any) -> Trainer:
    return Trainer(network(), replace(trainer.population, **change), trainer.rule, seed=5)


def test_own_generators_draw_where_batches_are_no_plain_draws_or_it_takes_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Trainer(network(), UNEQUAL, RULE, seed=5)
    room = 35 * drawing._BYTES
    assert Draws.of(plain, room)
    assert not Draws.of(plain, room - 1)
    whole, parts = (replace(RULE, **change) for change in ({"batch_size": "full"}, {"resample_parts": 4}))
    assert not any(Draws.of(Trainer(network(), UNEQUAL, rule, seed=5), room) for rule in (whole, parts))
    assert not Draws.of(changed(plain, later=((1, UNEQUAL.indices),)), room)
    lazy = DrawnIndices(POOL.targets, np.array([[1, 1, 1]]), 6, 0)
    assert not Draws.of(changed(plain, indices=lazy, offsets=np.arange(7) * 3), room)
    monkeypatch.setattr(drawing, "_TABLE", 0)
    assert UNEQUAL.indices.nbytes < plain.batches.inputs.nbytes
    assert Draws.of(plain, room)
    many = make_population(POOL, [np.resize(np.arange(120), POOL.inputs.nbytes // 4 + 1)])
    assert not Draws.of(Trainer(network(), many, RULE, seed=5), room)
    monkeypatch.setattr(drawing, "_RARE", 35 * 46)
    assert not Draws.of(plain, room)


def launches(clients: int, steps: int) -> Counter[str]:
    trainer = Trainer(network(), classification(clients=9, samples=12), replace(RULE, steps=steps), seed=5)
    ours = Draws.of(trainer, 1 << 20)
    assert ours is not None
    begun = ours.begin([ClientTask(0, 0, 0, 0, client, {}) for client in range(clients)])
    with Launches() as counted:
        ours.rows(begun)
    return counted.told


def test_they_are_few_operations_however_many_clients_and_steps() -> None:
    assert launches(2, 3) == launches(9, 20)
    assert sum(launches(2, 3).values()) <= 45


def test_they_take_no_more_memory_than_is_estimated() -> None:
    trainer = Trainer(network(), UNEQUAL, replace(RULE, steps=300), seed=5)
    ours = Draws.of(trainer, 1 << 20)
    assert ours is not None
    begun = ours.begin([ClientTask(0, 0, 0, 0, client, {}) for client in range(6)])
    with Alive() as alive:
        ours.rows(begun)
    assert drawing._BYTES / 2 < alive.most / (6 * 300 * 7) < drawing._BYTES
