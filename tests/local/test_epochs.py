"""`local.epochs`: steps that go with a client's samples, against a loop by hand, and what refuses them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from atoll import Cores, Experiment, InputError, LocalRule, Method, Stacked, fedavg, fedrep, make_runs, read_model
from atoll.executors.weighted import Weighted
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.support.arrays import Floats
from tests.methods.running import same_bits
from tests.methods.twins import LR, POPULATION, RULE, START, gradients, make, run, server, sizes
from tests.problems import linear_module

EPOCHS = 1.5
OWN = replace(RULE, epochs=EPOCHS)
BASE: dict[str, Any] = {
    "rounds": 4,
    "data": {"clients": 8, "samples": 12, "partition": "dirichlet", "alpha": 1.0},
    "model": {"name": "mlp"},
    "local": {"epochs": 1.5, "batch_size": 4},
    "clustering": {"clusters": 2},
    "method": {"name": "fedavg", "fraction": 0.5},
    "run": {"executor": "serial", "evaluate_samples": 20},
}


def by_hand(method: Method, x: Floats, mu: float) -> Iterator[Floats]:
    """Yield x after each round of FedProx, whose clients take different numbers of steps."""
    for event in method.schedule.events:
        ends = []
        for k in event.cohort.tolist():
            y = x
            for gradient in gradients(event, k, math.ceil(EPOCHS * POPULATION.sizes[k] / 2)):
                y = y - LR * 0.9**event.round * (gradient(y) + mu * (y - x))
            ends.append(y)
        x = np.average(ends, axis=0, weights=sizes(event))
        yield x


@pytest.mark.parametrize("mu", [0.0, 0.3], ids=["fedavg", "fedprox"])
def test_it_is_the_loop_by_hand(mu: float) -> None:
    method = fedavg(POPULATION, replace(OWN, proximal=mu), 8, 0.5)
    assert len({OWN.steps_of(size) for size in POPULATION.sizes.tolist()}) > 1
    for state, x in zip(run(method), by_hand(method, START, mu), strict=True):
        np.testing.assert_allclose(server(state), x, rtol=0, atol=1e-10)


def test_on_full_batches_an_epoch_is_a_step_to_the_bit() -> None:
    full = replace(RULE, batch_size="full", steps=3)
    same_bits(run(fedavg(POPULATION, replace(full, epochs=3.0), 4, 0.5)), run(fedavg(POPULATION, full, 4, 0.5)))


def test_the_mean_loss_is_over_the_steps_taken() -> None:
    trainer = make(fedavg(POPULATION, replace(OWN, proximal=1e-12), 1))
    trainer.rule = replace(trainer.rule, lr=1e-12)
    task = ClientTask(0, 0, 0, 0, 2, read_model(linear_module()))
    module, measure = linear_module().requires_grad_(False), trainer.batches.losses
    losses = [measure(module(x), y).mean().item() for x, y in trainer.draw_batches(task)]
    assert len(losses) == math.ceil(EPOCHS * POPULATION.sizes[2] / 2) != RULE.steps
    assert trainer.train(task).loss == pytest.approx(np.mean(losses), rel=1e-6)


def test_workers_give_the_same_bits_and_one_batch_of_many_clients_is_refused() -> None:
    method = fedavg(POPULATION, OWN, 4, 0.5)
    same_bits(run(method, Cores(make(method), 2, 1000)), run(method))
    one_step = fedavg(POPULATION, replace(OWN, steps=1), 4)
    for executor in (Stacked, Weighted):
        with pytest.raises(ValueError, match=r"local\.epochs = 1\.5: clients take different numbers of steps"):
            executor(make(one_step))


def experiment(*changes: str) -> Experiment:
    return Experiment(make_runs(BASE, changes=changes)[0])


@pytest.mark.parametrize("batch", ["local.batch_size=4", "local.batch_size=full"])
def test_the_clock_counts_each_clients_steps_so_a_deadline_leaves_out_the_slow(batch: str) -> None:
    made = experiment(batch, "network.seconds_per_sample=0.5", "network.upload_seconds=1.0")
    sizes = made.population.sizes
    passed = 2 * sizes if batch.endswith("full") else 4 * np.ceil(1.5 * sizes / 4)
    assert np.array_equal(made.plan.clock.compute_seconds, 0.5 * passed)
    middle = float(np.median(0.5 * passed + 1.0))
    late = experiment(batch, "network.seconds_per_sample=0.5", f"faults.deadline_seconds={middle}")
    late.check()
    there = {k for event in late.method.schedule.events for k in event.cohort.tolist()}
    assert there
    assert there <= set(np.flatnonzero(0.5 * passed + 1.0 <= middle).tolist())


def test_fedrep_trains_the_head_with_what_a_clients_steps_leave() -> None:
    rule = replace(OWN, epochs=0.5)
    least = math.ceil(0.5 * POPULATION.sizes.min() / 2)
    with pytest.raises(InputError, match=rf"method\.body_steps = {least}: must be less than .* may be {least};"):
        fedrep(POPULATION, rule, 2, linear_module(), body_steps=least)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["local.epochs=0"], r"local\.epochs"),
        (
            ["method.name=hierarchical", "method.fraction="],
            r"local\.epochs = 1\.5: cannot be used with hierarchical aggregation",
        ),
        (
            ["method.name=hierfavg", "method.fraction="],
            r"local\.epochs = 1\.5: cannot be used with hierarchical aggregation",
        ),
        (["method.name=ifca", "method.option=gradients", "local.steps=1"], r"local\.epochs = 1\.5: .*'gradients'"),
        (["run.executor=stacked"], r"run\.executor = 'stacked': local\.epochs = 1\.5: clients take different"),
        (["run.executor=weighted", "local.steps=1"], r"run\.executor = 'weighted': local\.epochs = 1\.5: clients"),
        (["method.name=fedcluster", "clustering.method=feduc"], r"local\.epochs = 1\.5: .*FedUC's bound"),
    ],
)
def test_what_does_not_go_with_them_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        experiment(*changes).check()


def test_a_client_takes_at_least_one_step() -> None:
    assert [LocalRule(sgd, 0.1, batch_size=size, epochs=1e-10).steps_of(5) for size in (30, "full")] == [1, 1]


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, pd.Series])
def test_rates_may_be_a_list_an_array_a_tensor_or_a_column(make: Callable[[list[float]], Any]) -> None:
    rule = LocalRule(sgd, 0.1, rates=make([0.5, 0.25]))
    assert rule.lr_at(1) == 0.25
    assert hash(rule) == hash(replace(rule, rates=(0.5, 0.25)))
    (made,) = make_runs({"rounds": 2, "local": {"schedule": "list", "rates": make([0.5, 0.25])}})
    assert made.local.get("rates") == [0.5, 0.25]


def test_with_resampling_a_full_batch_is_one_of_the_parts() -> None:
    table = {"rounds": 5, "data": {"clients": 4, "samples": 40}, "local": {"batch_size": "full"}}
    seconds = [
        Experiment(
            make_runs({**table, "method": {"name": "ifca", "clusters": 2, "resample": resample}})[0]
        ).plan.clock.compute_seconds.sum()
        for resample in (False, True)
    ]
    assert seconds[1] == pytest.approx(seconds[0] / 10)


def test_epochs_that_rounding_puts_above_a_whole_number_of_steps_are_that_number() -> None:
    assert 1.1 * 100 > 110
    assert LocalRule(sgd, 0.1, batch_size=1, epochs=1.1).steps_of(100) == 110
