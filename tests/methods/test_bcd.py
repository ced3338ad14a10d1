"""FedBCD of personal models (Wu et al. 2021) against a loop by hand that keeps all N models, and its limits."""

import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import (
    Executor,
    Experiment,
    InputError,
    LocalRule,
    Method,
    RunError,
    Serial,
    State,
    Trainer,
    bcd,
    fedavg,
    init,
    make_runs,
    read_model,
    train,
)
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.ray.ray_executor import Ray
from atoll.executors.stacked.stacked_executor import Stacked
from atoll.faults.dropouts import lose_clients
from atoll.local.models import Model
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.methods.parts.personal_trainer import PersonalTrainer
from atoll.support.arrays import Floats
from tests.killing import carry_to_end, count_steps, kill_at
from tests.problems import as_vector, linear_module, quadratics

POPULATION, SEED, LR, STEPS, GAMMA = quadratics(clients=6), 5, 0.05, 4, 0.7
RULE = LocalRule(sgd, LR, STEPS, batch_size=2, lr_decay=0.9)


def make(method: Method, rule: LocalRule | None = None) -> Trainer:
    made: Any = method.trainer or Trainer
    trainer: Trainer = made(linear_module(), POPULATION, rule or method.rule, SEED)
    return trainer


def run(method: Method, executor: Executor) -> list[State]:
    with closing(executor):
        return [step.state for step in train(method, executor, init(method, read_model(linear_module())))]


def server(state: State) -> Floats:
    assert state.server is not None
    return as_vector(state.server)


def own(state: State) -> dict[int, Floats]:
    return {client: as_vector(dict(kept)) for client, kept in state.clients.items()}


def gradient(client_rows: Floats, w: Floats) -> Floats:
    x, y = POPULATION.data.inputs[client_rows], POPULATION.data.targets[client_rows]
    return np.asarray(x.T @ (x @ w - y) / len(client_rows))


def by_hand(method: Method, z: Floats, server_lr: float, lost: Callable[[int, int], bool]) -> Iterator[Any]:
    """Yield z and all clients' models after each round; `lost(event, place)` says whose answers do not come."""
    draws = Trainer(linear_module(), POPULATION, RULE, SEED)
    theta = [z] * len(POPULATION)
    for event in method.schedule.events:
        for place, k in enumerate(event.cohort.tolist()):
            if lost(event.index, place):
                continue
            w = theta[k]
            for rows in draws.draw_rows(ClientTask(event.index, event.round, 0, 0, k, {})):
                w = w - LR * 0.9**event.round * (gradient(rows, w) + GAMMA * (w - z))
            theta[k] = w
        z = z - server_lr * (z - np.mean(theta, axis=0))
        yield z, list(theta)


@pytest.mark.parametrize("server_lr", [1.0, 0.3])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_it_is_the_loop_by_hand(fraction: float, server_lr: float) -> None:
    method = bcd(POPULATION, RULE, 12, GAMMA, server_lr, fraction, seed=0)
    expected = by_hand(method, as_vector(read_model(linear_module())), server_lr, lambda event, place: False)
    for state, (z, theta) in zip(run(method, Serial(make(method))), expected, strict=True):
        np.testing.assert_allclose(server(state), z, rtol=0, atol=1e-10)
        for client, model in own(state).items():
            np.testing.assert_allclose(model, theta[client], rtol=0, atol=1e-10)
    assert len(state.clients) == len(POPULATION)


def test_a_client_that_does_not_answer_keeps_its_model_and_counts_with_it() -> None:
    method = bcd(POPULATION, RULE, 8, GAMMA, fraction=0.7, seed=0)
    lossy = replace(method, schedule=lose_clients(method.schedule, seed=3, dropout=0.4))
    assert sum(event.dropped for event in lossy.schedule.events) > 5
    answered = [set(event.cohort.tolist()) for event in lossy.schedule.events]
    cohorts = [event.cohort.tolist() for event in method.schedule.events]
    start = as_vector(read_model(linear_module()))
    expected = by_hand(method, start, 1.0, lambda event, place: cohorts[event][place] not in answered[event])
    for state, (z, _) in zip(run(lossy, Serial(make(method))), expected, strict=True):
        np.testing.assert_allclose(server(state), z, rtol=0, atol=1e-10)


def test_its_first_round_is_that_of_fedprox_to_the_bit() -> None:
    """From z a client takes FedProx's steps; with all clients of equal weight the means agree to rounding."""
    method = bcd(POPULATION, RULE, 1, GAMMA, fraction=1.0, seed=0)
    (state,) = run(method, Serial(make(method)))
    prox = replace(RULE, proximal=GAMMA)
    start, trainer = read_model(linear_module()), Trainer(linear_module(), POPULATION, prox, SEED)
    for client, kept in state.clients.items():
        expected = trainer.train(ClientTask(0, 0, 0, 0, client, start)).model
        assert all(kept[name].equal(tensor) for name, tensor in expected.items())
    plain = fedavg(POPULATION, prox, 1, 1.0, seed=0)
    even = [replace(event, weights=np.ones(len(event.cohort))) for event in plain.schedule.events]
    (other,) = run(replace(plain, schedule=replace(plain.schedule, events=tuple(even))), Serial(make(plain)))
    np.testing.assert_allclose(server(state), server(other), rtol=0, atol=1e-14)


def test_without_a_penalty_clients_train_alone_to_the_bit() -> None:
    method = bcd(POPULATION, RULE, 4, 0.0, fraction=0.5, seed=0)
    found = run(method, Serial(make(method)))[-1].clients
    trainer = Trainer(linear_module(), POPULATION, RULE, SEED)
    alone: dict[int, Model] = {}
    for event in method.schedule.events:
        for k in event.cohort.tolist():
            task = ClientTask(event.index, event.round, 0, 0, k, alone.get(k, read_model(linear_module())))
            alone[k] = trainer.train(task).model
    assert found.keys() == alone.keys()
    assert all(found[k][name].equal(tensor) for k in alone for name, tensor in alone[k].items())


@pytest.mark.more
def test_it_ends_where_the_penalised_sum_is_least() -> None:
    """The minimiser of a quadratic: ``theta_i = (H_i + gamma)^-1 (b_i + gamma z)``, z their mean."""
    rule = LocalRule(sgd, 0.05, 5, "full")
    method = bcd(POPULATION, rule, 400, GAMMA, fraction=1.0)
    last = run(method, Serial(make(method)))[-1]
    systems = [(POPULATION.data.inputs[r], POPULATION.data.targets[r]) for r in map(POPULATION.samples, range(6))]
    inverses = [np.linalg.inv(x.T @ x / len(y) + GAMMA * np.eye(3)) for x, y in systems]
    alone = [inverse @ x.T @ y / len(y) for inverse, (x, y) in zip(inverses, systems, strict=True)]
    z = np.linalg.solve(np.eye(3) - GAMMA * np.mean(inverses, axis=0), np.mean(alone, axis=0))
    np.testing.assert_allclose(server(last), z, atol=1e-8)
    for client, model in own(last).items():
        np.testing.assert_allclose(model, alone[client] + GAMMA * inverses[client] @ z, atol=1e-8)


def same_bits(ours: list[State], theirs: list[State]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert np.array_equal(server(one), server(other))
        assert own(one).keys() == own(other).keys()
        assert all(np.array_equal(model, own(other)[client]) for client, model in own(one).items())


def test_workers_give_the_same_bits() -> None:
    method = bcd(POPULATION, RULE, 5, GAMMA, 0.5, 0.5)
    same_bits(run(method, Cores(make(method), 2, 1000)), run(method, Serial(make(method))))


@pytest.mark.more
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")
def test_workers_of_ray_give_the_same_bits() -> None:
    method = bcd(POPULATION, RULE, 3, GAMMA, fraction=0.5)
    same_bits(run(method, Ray(make(method), 2)), run(method, Serial(make(method))))


def test_stacked_refuses_it() -> None:
    with pytest.raises(ValueError, match="PersonalTrainer keeps a state"):
        Stacked(make(bcd(POPULATION, RULE, 1)))


WANTED = {
    "rounds": 4,
    "data": {"clients": 6, "samples": 12},
    "model": {"name": "linear"},
    "local": {"steps": 2, "batch_size": 4},
    "method": {"name": "bcd", "fraction": 0.5, "server_lr": 0.5},
    "run": {"checkpoint_every": 1, "evaluate_samples": 20},
}


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
@pytest.mark.parametrize("executor", ["serial", "cores"])
def test_killed_and_resumed_it_has_the_same_bits(tmp_path: Path, executor: str) -> None:
    experiment = Experiment(make_runs(WANTED, changes=[f"run.executor={executor}"])[0])
    experiment.check()
    carry_to_end(experiment, tmp_path / "whole")
    steps = count_steps(experiment, tmp_path / "counted")
    for number in range(steps // 3, steps, 7):
        kill_at(experiment, tmp_path / "killed", number, 0.5)
    carry_to_end(experiment, tmp_path / "killed")
    last = "checkpoint/event-00000004.safetensors"
    assert (tmp_path / "killed" / last).read_bytes() == (tmp_path / "whole" / last).read_bytes()


def test_it_costs_the_bytes_of_fedavg() -> None:
    ours, fedavgs = (Experiment(make_runs({**WANTED, "method": {"name": name}})[0]) for name in ("bcd", "fedavg"))
    assert ours.traffic.message_bytes == fedavgs.traffic.message_bytes
    assert ours.execution.choice.name in ("serial", "cores")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["local.proximal=0.1"], r"local\.proximal = 0\.1: .*'bcd', whose penalty is method\.gamma"),
        (["method.gamma=-1"], r"method\.gamma"),
        (["method.server_lr=0"], r"method\.server_lr"),
        (["method.combine=median"], r"method\.combine = 'median'.*'bcd' combines otherwise"),
        (["run.executor=stacked"], r"run\.executor = 'stacked': .*keeps a state"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Experiment(make_runs(WANTED, changes=changes)[0]).check()


def test_a_run_must_begin_from_the_trainers_model() -> None:
    method = bcd(POPULATION, RULE, 1, GAMMA)
    elsewhere = {name: tensor + 1 for name, tensor in read_model(linear_module()).items()}
    with pytest.raises(RunError, match="must start from the model"):
        list(train(method, Serial(make(method)), init(method, elsewhere)))


def test_counters_of_a_layer_are_each_clients_own() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1)).double()
    method = bcd(POPULATION, RULE, 3, GAMMA, 0.5, 1.0)
    executor = Serial(PersonalTrainer(module, POPULATION, method.rule, SEED))
    state = init(method, read_model(module))
    for step in train(method, executor, state):
        state = step.state
    assert all(kept["1.num_batches_tracked"] == 3 * STEPS for kept in state.clients.values())
    assert state.server is not None
    assert state.server["1.num_batches_tracked"] == 0


def test_workers_do_not_wait_for_each_other_when_what_clients_keep_is_large() -> None:
    """A request and an answer of 800 kB each, more than a pipe holds: neither side may write while the other does."""
    population = quadratics(clients=8, width=100_000, samples=2)
    method = bcd(population, LocalRule(sgd, 1e-6, 1, 1), 3, GAMMA, fraction=1.0)
    module = linear_module(100_000)
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the workers are stuck"))
    signal.alarm(120)
    try:
        with closing(Cores(PersonalTrainer(module, population, method.rule, SEED), 2, 1_000_000)) as executor:
            steps = list(train(method, executor, init(method, read_model(module))))
    finally:
        signal.alarm(0)
    assert len(steps) == 3
