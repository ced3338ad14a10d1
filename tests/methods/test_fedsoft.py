"""FedSoft (Ruan and Joe-Wong 2022) against a loop by hand, its limits, and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll import (
    Experiment,
    InputError,
    LocalRule,
    Method,
    Result,
    Serial,
    State,
    Trainer,
    alone,
    bcd,
    fedsoft,
    make_runs,
    own_and_centres,
    read_model,
    weigh_equally,
)
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.methods.parts.soft_clusters import OwnAndCentres, OwnModelUp
from atoll.support.arrays import Floats
from tests.methods.running import SEED, equal, states_of, trainer_of
from tests.problems import Tallying, as_vector, linear_module, quadratics

POPULATION, LR, STEPS, LEAST = quadratics(clients=6, samples=10), 0.05, 4, 0.01
RULE = LocalRule(sgd, LR, STEPS, batch_size=2, lr_decay=0.9)


def make_module(centres: int) -> OwnAndCentres:
    """The client's model has seed 0, the centres seeds 1, 2, ..."""
    seeds = iter(range(centres + 1))
    return own_and_centres(lambda: linear_module(seed=next(seeds)), centres)


def serial(method: Method, module: Any) -> list[State]:
    return states_of(method, Serial(trainer_of(method, module, POPULATION)), module)


def residual(w: Floats, rows: Any) -> Floats:
    return np.asarray(POPULATION.data.inputs[rows] @ w - POPULATION.data.targets[rows])


def by_hand(method: Method, count: int, penalty: float) -> Any:
    """Yield the centres and all clients' own models after each round."""
    draws = Trainer(linear_module(), POPULATION, RULE, SEED)
    first = [as_vector(read_model(linear_module(seed=seed))) for seed in range(count + 1)]
    own, centres = [first[0]] * len(POPULATION), first[1:]
    for event in method.schedule.events:
        importance = np.zeros((len(POPULATION), count))
        for k in event.cohort.tolist():
            samples = POPULATION.samples(k)
            best = np.argmin([residual(c, samples) ** 2 for c in centres], axis=0)
            importance[k] = [max(np.mean(best == s), LEAST) for s in range(count)]
            for rows in draws.draw_rows(ClientTask(event.index, event.round, 0, 0, k, {})):
                gradient = POPULATION.data.inputs[rows].T @ residual(own[k], rows) / len(rows)
                pull = sum(importance[k, s] * (own[k] - centres[s]) for s in range(count))
                own[k] = own[k] - LR * 0.9**event.round * (gradient + penalty * pull)
        v = importance * POPULATION.sizes[:, None]
        v = v / v.sum(axis=0)
        centres = [sum(v[k, s] * own[k] for k in range(len(POPULATION))) for s in range(count)]
        yield centres, list(own)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_it_is_the_loop_by_hand(count: int) -> None:
    module = make_module(count)
    method = fedsoft(POPULATION, RULE, 8, module, count, 0.7, LEAST, 0.5)
    for state, (centres, own) in zip(serial(method, module), by_hand(method, count, 0.7), strict=True):
        assert state.server is not None
        found = [as_vector({"w": state.server[f"components.{s}.0.weight"]}) for s in range(count)]
        np.testing.assert_allclose(found, centres, rtol=0, atol=1e-10)
        for client, kept in state.clients.items():
            np.testing.assert_allclose(as_vector(dict(kept)), own[client], rtol=0, atol=1e-10)


def test_without_a_pull_every_client_trains_alone_to_the_bit() -> None:
    """Whatever its importances are; the server then only averages."""
    module = make_module(2)
    ours = serial(fedsoft(POPULATION, RULE, 6, module, 2, 0.0, LEAST, 0.5), module)
    theirs = serial(alone(POPULATION, RULE, 6, 0.5), linear_module())
    for one, other in zip(ours, theirs, strict=True):
        assert one.clients.keys() == other.clients.keys()
        for k, kept in one.clients.items():
            assert equal({name.removeprefix("own."): each for name, each in kept.items()}, dict(other.clients[k]))


def test_with_one_centre_of_all_clients_it_is_block_coordinate_descent() -> None:
    """Which pulls every client's own model to the mean; only the rounding of the mean differs."""
    module = own_and_centres(linear_module, 1)
    ours = serial(weigh_equally(fedsoft(POPULATION, RULE, 6, module, 1, 0.3, LEAST, 1.0)), module)
    theirs = serial(bcd(POPULATION, RULE, 6, 0.3, fraction=1.0), linear_module())
    for one, other in zip(ours, theirs, strict=True):
        for k, kept in one.clients.items():
            np.testing.assert_allclose(as_vector(dict(kept)), as_vector(dict(other.clients[k])), rtol=0, atol=1e-12)


WANTED: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 6, "samples": 12},
    "model": {"name": "linear"},
    "local": {"steps": 2, "batch_size": 4},
    "method": {"name": "fedsoft", "fraction": 0.5, "clusters": 3},
    "run": {"executor": "serial"},
}


def made(*changes: str) -> Experiment:
    return Experiment(make_runs(WANTED, changes=list(changes))[0])


def test_all_centres_go_down_and_one_model_up() -> None:
    """And the importances, four bytes for each centre, both ways; the server's only so that forms agree."""
    (event,) = made().method.schedule.events[:1]
    up, down = made("method.name=fedavg", "method.clusters=").traffic.bytes_of([event])
    assert made().traffic.bytes_of([event]) == (up + 3 * 3 * 4, 3 * down + 3 * 3 * 4)


def half_frozen() -> nn.Sequential:
    """Return a network whose first layer is frozen, and the same in every copy."""
    first = nn.Linear(64, 16)
    nn.init.eye_(first.weight)
    nn.init.zeros_(first.bias)
    return nn.Sequential(nn.Flatten(), first.requires_grad_(False), nn.ReLU(), nn.Linear(16, 10))


def test_frozen_layers_that_do_not_travel_change_nothing_but_the_bytes(tmp_path: Path) -> None:
    def run(travels: str) -> Result:
        model = {"name": half_frozen, "travels": travels}
        return atoll.run(WANTED, tmp_path / travels, model=model, run={"probes": ["personal_model_accuracy"]})

    part, whole = run("trainable"), run("all")
    for name in ("local_loss", "personal_model_accuracy"):
        np.testing.assert_array_equal(part.history[name], whole.history[name])
    assert 0 < part.history["bytes_up"][-1] < whole.history["bytes_up"][-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["method.clusters=7"], r"method\.clusters = 7: must be at most data\.clients = 6"),
        (["method.clusters=0"], r"method\.clusters"),
        (["method.least_importance=0"], r"method\.least_importance"),
        (["local.proximal=0.1"], r"local\.proximal = 0\.1: cannot be used with method\.name = 'fedsoft'"),
        (["run.executor=stacked"], r"run\.executor = 'stacked'"),
        (["method.combine=median"], r"method\.combine = 'median'.*'fedsoft' combines otherwise"),
        (["method.select=power-of-choice", "method.candidates=6"], "'fedsoft'.*'power-of-choice': the model that"),
        (["travel.codec=int8"], r"travel\.codec = 'int8'.*'fedsoft'"),
        (["model.travels=['own.*']"], r"model\.travels.*'fedsoft' itself says"),
        (["faults.max_update_norm=9"], r"^faults\.max_update_norm = 9: .*'fedsoft', whose clients send no update"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(*changes).check()


def test_a_module_of_ones_own_must_be_made_of_so_many_models() -> None:
    with pytest.raises(InputError, match=r"module: must be made of method\.clusters = 2 models"):
        fedsoft(POPULATION, RULE, 1, make_module(3), 2)


def test_importances_do_not_depend_on_buffers_that_another_client_left() -> None:
    seeds = iter(range(3))
    module = own_and_centres(lambda: nn.Sequential(Tallying(), linear_module(seed=next(seeds))), 2)
    trainer = trainer_of(fedsoft(POPULATION, RULE, 1, module, 2), module, POPULATION)
    task = ClientTask(0, 0, 0, 0, 1, read_model(module))
    first, _, again = (trainer.train(each) for each in (task, replace(task, client=2), task))
    assert equal(first.model, again.model)


def test_an_importance_of_zero_is_refused() -> None:
    own = OwnModelUp({"own.w": torch.zeros(1)})
    start = {"components.0.w": torch.zeros(1), "importance": torch.ones(1)}
    with pytest.raises(ValueError, match="importances must be above 0"):
        own.receive({"own.w": torch.zeros(1), "importance": torch.tensor([0.0])}, start, {})
