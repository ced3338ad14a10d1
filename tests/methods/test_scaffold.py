"""SCAFFOLD against a loop by hand that keeps all c_i, and FedAvg where no c is ever kept."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll import ClientTask, ClientUpdate, InputError, LocalRule, Method, Serial, fedavg, scaffold
from atoll.aggregation.screening import Screening
from atoll.faults.dropouts import lose_clients
from atoll.local.rule import momentum, sgd
from atoll.methods.parts.equal_clients import SHARE, MeanAndShare
from atoll.methods.parts.update_trainers import ControlVariates
from atoll.support.arrays import Floats
from tests.methods.twins import LR, POPULATION, RULE, START, count_alike, gradients, make, run, server
from tests.tiers import thinned


def by_hand(
    method: Method, x: Floats, server_lr: float, lost: Callable[[int, int], bool]
) -> Iterator[tuple[Floats, Floats]]:
    """Yield x and c after each round; `lost(event, client)` says whose answers do not come."""
    count = len(POPULATION)
    c, c_i = np.zeros(3), np.zeros((count, 3))
    for event in method.schedule.events:
        lr, ends, changes = LR * 0.9**event.round, [], []
        for k in (k for k in event.cohort.tolist() if not lost(event.index, k)):
            y, steps = x, method.rule.steps_of(int(POPULATION.sizes[k]))
            for gradient in gradients(event, k, steps):
                y = y - lr * (gradient(y) - c_i[k] + c)
            new = c_i[k] - c + (x - y) / (steps * lr)
            changes.append(new - c_i[k])
            ends.append(y - x)
            c_i[k] = new
        if ends:
            x = x + server_lr * np.mean(ends, axis=0)
            c = c + np.sum(changes, axis=0) / count
        yield x, c


@pytest.mark.parametrize("server_lr", thinned([0.6, 1.0, 1.5], 1))
@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("rule", [RULE, replace(RULE, epochs=1.5)], ids=["steps", "epochs"])
def test_it_is_the_loop_by_hand(rule: LocalRule, fraction: float, server_lr: float) -> None:
    method = scaffold(POPULATION, rule, 12, server_lr, fraction)
    for state, (x, c) in zip(run(method), by_hand(method, START, server_lr, lambda *_: False), strict=True):
        np.testing.assert_allclose(server(state), x, rtol=0, atol=1e-10)
        assert state.server is not None
        np.testing.assert_allclose(state.server["0.weight@c"].numpy().ravel(), c, rtol=0, atol=1e-10)
        assert set(state.server) == {"0.weight", "0.weight@c"}


def test_those_who_do_not_answer_change_neither_c() -> None:
    method = scaffold(POPULATION, RULE, 10, 0.6, 0.5)
    lossy = replace(method, schedule=lose_clients(method.schedule, seed=3, dropout=0.6))
    assert any(not len(event.cohort) for event in lossy.schedule.events)
    there = [set(event.cohort.tolist()) for event in lossy.schedule.events]
    expected = by_hand(method, START, 0.6, lambda event, client: client not in there[event])
    for state, (x, _) in zip(run(lossy), expected, strict=True):
        np.testing.assert_allclose(server(state), x, rtol=0, atol=1e-10)


def test_results_are_screened_with_what_travels_beside_the_model() -> None:
    method = scaffold(POPULATION, RULE, 4, fraction=0.5)
    screened = replace(method, screening=Screening(tolerate=True, max_update_norm=1e3))
    last = run(screened)[-1]
    assert not last.refused
    assert np.array_equal(server(last), server(run(method)[-1]))


class Forgetful(ControlVariates):
    """Keeps c_i = 0, and so sends c = 0."""

    def train(self, task: ClientTask) -> ClientUpdate:
        update = super().train(task)
        zeros = {name: torch.zeros_like(tensor) for name, tensor in (update.state or {}).items()}
        sent = {f"{name}@c": tensor for name, tensor in zeros.items()}
        return ClientUpdate(update.model | sent, update.loss, zeros)


def test_with_c_kept_at_zero_it_is_fedavg_to_the_bit() -> None:
    method = replace(scaffold(POPULATION, RULE, 8, fraction=0.5), trainer=Forgetful)
    plain = count_alike(fedavg(POPULATION, RULE, 8, 0.5))
    for ours, theirs in zip(run(method, Serial(make(method))), run(plain), strict=True):
        assert np.array_equal(server(ours), server(theirs))


@pytest.mark.more
def test_it_goes_where_fedavg_does_not() -> None:
    """With unlike clients and full batches, FedAvg's fixed point is off the minimum of the sum; SCAFFOLD's is it."""
    rule = LocalRule(sgd, 0.1, 5, "full")
    systems = [POPULATION.samples(k) for k in range(len(POPULATION))]
    x, y = POPULATION.data.inputs, POPULATION.data.targets
    hessian = sum(x[r].T @ x[r] / len(r) for r in systems)
    best = np.linalg.solve(hessian, sum(x[r].T @ y[r] / len(r) for r in systems))
    ours, theirs = (
        run(m)[-1]
        for m in (scaffold(POPULATION, rule, 100, fraction=1.0), count_alike(fedavg(POPULATION, rule, 100, 1.0)))
    )
    assert np.abs(server(ours) - best).max() < 1e-6 < 1e-3 < np.abs(server(theirs) - best).max()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (replace(RULE, optimizer=momentum), r"local\.optimizer = SGD with momentum: must be 'sgd' with .*'scaffold'"),
        (replace(RULE, proximal=0.1), r"local\.proximal = 0\.1: cannot be used with method\.name = 'scaffold'"),
    ],
)
def test_other_rules_are_refused(rule: LocalRule, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scaffold(POPULATION, rule, 2)


@pytest.mark.more
@pytest.mark.parametrize(
    ("method", "without"),
    thinned(
        [
            ({"name": "scaffold"}, {"name": "fedavg"}),
            ({"name": "feddyn"}, {"name": "fedavg"}),
            ({"name": "lcfed", "embedding_penalty": 2.0}, {"name": "lcfed", "embedding_penalty": 0.0}),
        ],
        1,
    ),
)
def test_corrections_count_in_bfloat16_too(method: dict[str, Any], without: dict[str, Any]) -> None:
    """Rounded products change a model little, the corrections that are added to gradients much."""
    table = {
        "rounds": 4,
        "data": {"dataset": "digits", "partition": "one-label", "clients": 10, "samples": 20},
        "model": {"name": "mlp"},
        "local": {"lr": 0.1, "steps": 5},
    }

    def trained(precision: str, method: dict[str, Any]) -> Floats:
        own = {**table, "method": {"fraction": 1.0, **method}, "run": {"precision": precision, "executor": "serial"}}
        starts = atoll.run(own).state.starts
        kept = (each for model in starts for name, each in sorted(model.items()) if "@" not in name)
        return np.concatenate([each.double().numpy().ravel() for each in kept])

    exact, rounded, plain = trained("float32", method), trained("bfloat16", method), trained("bfloat16", without)
    assert np.abs(exact - rounded).max() < 0.3 * np.abs(exact - plain).max()


def test_the_share_that_answered_is_of_clients_not_of_weights() -> None:
    model = {"w": torch.ones(1)}
    assert MeanAndShare(4)([(1.0, model), (1.0, model)], model, 3.0)[SHARE] == 0.5
