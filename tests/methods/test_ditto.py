"""Ditto (Li et al. 2021) and training alone, against loops by hand, and their limits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atoll import (
    Clock,
    Experiment,
    InputError,
    LocalRule,
    Method,
    Serial,
    State,
    Trainer,
    alone,
    ditto,
    fedavg,
    make_runs,
    read_model,
)
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.runs.warnings import warnings_of
from atoll.support.arrays import Floats
from tests.methods.running import SEED, equal, states_of, trainer_of
from tests.problems import as_vector, linear_module, quadratics

POPULATION, LR, STEPS, PENALTY = quadratics(clients=6), 0.05, 4, 0.7
RULE = LocalRule(sgd, LR, STEPS, batch_size=2, lr_decay=0.9)


def serial(method: Method) -> list[State]:
    return states_of(method, Serial(trainer_of(method, linear_module(), POPULATION)), linear_module())


def gradient(rows: Any, w: Floats) -> Floats:
    x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
    return np.asarray(x.T @ (x @ w - y) / len(rows))


def by_hand(method: Method, penalty: float) -> Any:
    """Yield the server's model and all clients' own after each round of Ditto."""
    draws = Trainer(linear_module(), POPULATION, RULE, SEED)
    w = as_vector(read_model(linear_module()))
    v = [w] * len(POPULATION)
    for event in method.schedule.events:
        sent, trained = w, []
        for k in event.cohort.tolist():
            lr, local = LR * 0.9**event.round, sent
            for rows in draws.draw_rows(ClientTask(event.index, event.round, 0, 0, k, {})):
                v[k] = v[k] - lr * (gradient(rows, v[k]) + penalty * (v[k] - sent))
                local = local - lr * gradient(rows, local)
            trained.append(local)
        w = np.average(trained, axis=0, weights=event.weights)
        yield w, list(v)


def test_ditto_is_the_loop_by_hand() -> None:
    method = ditto(POPULATION, RULE, 10, PENALTY, 0.5)
    for state, (w, v) in zip(serial(method), by_hand(method, PENALTY), strict=True):
        assert state.server is not None
        np.testing.assert_allclose(as_vector(state.server), w, rtol=0, atol=1e-10)
        for client, model in state.clients.items():
            np.testing.assert_allclose(as_vector(dict(model)), v[client], rtol=0, atol=1e-10)


def test_training_alone_is_the_loop_by_hand() -> None:
    """Ditto's own models without a penalty."""
    method = alone(POPULATION, RULE, 10, 0.5)
    first = as_vector(read_model(linear_module()))
    for state, (_, v) in zip(serial(method), by_hand(method, 0.0), strict=True):
        assert state.server is not None
        assert np.array_equal(as_vector(state.server), first)
        for client, model in state.clients.items():
            np.testing.assert_allclose(as_vector(dict(model)), v[client], rtol=0, atol=1e-10)


def test_dittos_server_has_fedavgs_model_to_the_bit() -> None:
    ours, theirs = serial(ditto(POPULATION, RULE, 6, PENALTY, 0.5)), serial(fedavg(POPULATION, RULE, 6, 0.5))
    assert all(equal(one.server, other.server) for one, other in zip(ours, theirs, strict=True))


def test_dittos_own_models_without_a_penalty_are_those_trained_alone_to_the_bit() -> None:
    ours, theirs = serial(ditto(POPULATION, RULE, 6, 0.0, 0.5)), serial(alone(POPULATION, RULE, 6, 0.5))
    for one, other in zip(ours, theirs, strict=True):
        assert one.clients.keys() == other.clients.keys()
        assert all(equal(dict(kept), dict(other.clients[k])) for k, kept in one.clients.items())


def test_what_rounds_take_and_send() -> None:
    clock = Clock(np.full(6, 3.0), np.full(6, 1.0))
    assert ditto(POPULATION, RULE, 1, fraction=0.5, clock=clock).schedule.events[0].seconds == 7
    (event,) = alone(POPULATION, RULE, 1, 0.5, clock).schedule.events
    assert (event.seconds, event.models_up, event.models_down) == (3, 0, 0)


WANTED: dict[str, Any] = {
    "rounds": 4,
    "data": {"clients": 6, "samples": 12},
    "model": {"name": "linear"},
    "local": {"steps": 2, "batch_size": 4},
    "method": {"name": "ditto", "fraction": 0.5},
    "run": {"checkpoint_every": 1, "evaluate_samples": 20, "executor": "serial"},
}


def test_a_robust_rule_takes_the_place_of_dittos_mean() -> None:
    """As in the paper, whose subject is robustness: the clients' own models do not go through it."""
    experiment = Experiment(make_runs(WANTED, changes=["method.combine=median"])[0])
    experiment.check()
    assert experiment.method.keeps_model


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["method.penalty=-1"], r"method\.penalty"),
        (["run.executor=stacked"], r"run\.executor = 'stacked': .*keeps a state"),
        (["run.executor=weighted", "local.steps=1"], r"run\.executor = 'weighted': .*keeps a state"),
        (["method.name=local", "local.proximal=0.1"], r"local\.proximal = 0\.1.*'local'"),
        (["method.name=local", "method.combine=median"], r"method\.combine = 'median'.*'local' combines otherwise"),
        (["method.name=local", "method.penalty=1"], r"method\.penalty"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Experiment(make_runs(WANTED, changes=changes)[0]).check()


def test_alone_it_is_said_that_the_server_learns_nothing() -> None:
    """Unless a probe measures what clients have."""
    told = "test_accuracy is that of a server's model without all that clients learn; set run.probes = ['client_accur"
    assert told in " ".join(warnings_of(Experiment(make_runs(WANTED, changes=["method.name=local"])[0])))
    for others in (["method.name=ditto"], ["method.name=local", "run.probes=['trained_client_accuracy']"]):
        assert warnings_of(Experiment(make_runs(WANTED, changes=others)[0])) == []
    numbers = Experiment(data={"dataset": "regression", "clients": 4}, model={"name": "linear"}, method="local")
    (found,) = warnings_of(numbers)  # of which there are no accuracies
    assert found.startswith("test_loss is that of")
    assert found.endswith("set run.probes = ['client_score']")


def test_a_rule_of_ones_own_is_not_changed() -> None:
    """The server's model has the rule's proximal term, the clients' own the penalty."""
    prox = replace(RULE, proximal=0.3)
    ours, theirs = serial(ditto(POPULATION, prox, 3, PENALTY)), serial(fedavg(POPULATION, prox, 3))
    assert all(equal(one.server, other.server) for one, other in zip(ours, theirs, strict=True))
