"""What clients and the server keep: SCAFFOLD and FedAvgM against loops by hand, and to the same bits anywhere."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import (
    Event,
    Executor,
    Experiment,
    InputError,
    LocalRule,
    Method,
    Population,
    RunError,
    Schedule,
    Serial,
    State,
    Trainer,
    fedavg,
    fedcluster,
    ifca,
    init,
    make_runs,
    read_model,
    train,
)
from atoll.aggregation.screening import Screening
from atoll.clustering.clustering import Clustering
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.ray.ray_executor import Ray
from atoll.executors.stacked.stacked_executor import Stacked
from atoll.executors.weighted import Weighted
from atoll.local.models import Model
from atoll.local.rule import sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.runs.checkpoint import load_checkpoint, save_checkpoint
from atoll.runs.fingerprint import Fingerprint
from atoll.schedules.events import FROM_SERVER, Mix
from atoll.support.arrays import Floats
from tests.attackers import attacked_by
from tests.cli.pages import write_files
from tests.killing import carry_to_end, count_steps, kill_at
from tests.problems import as_vector, linear_module, quadratics
from tests.tiers import thinned

POPULATION, SEED, LR, STEPS = quadratics(clients=6), 5, 0.05, 4
RULE = LocalRule(sgd, LR, STEPS, batch_size=2)


@pytest.fixture(scope="module", autouse=True)
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of the page on extending, which can be imported."""
    folder = tmp_path_factory.mktemp("page")
    write_files(Path(__file__).parents[2] / "docs/extending.md", folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def scaffold(rounds: int = 5, fraction: float = 0.5) -> Method:
    made: Method = importlib.import_module("scaffold").scaffold(POPULATION, RULE, rounds, fraction, seed=SEED)
    return made


def run(method: Method, executor: Executor) -> list[State]:
    with closing(executor):
        return [step.state for step in train(method, executor, init(method, read_model(linear_module())))]


def made_by(method: Method) -> Any:
    return method.trained_by(linear_module(), POPULATION, method.rule, SEED)


def same_bits(one: Model | None, other: Model | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def assert_same(ours: list[State], theirs: list[State]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.clients.keys() == other.clients.keys()
        assert all(same_bits(one.clients[k], other.clients[k]) for k in one.clients)
        assert same_bits(one.server, other.server)
        assert same_bits(one.server_state, other.server_state)


def gradient(client: int, rows: Floats, w: Floats) -> Floats:
    x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
    return np.asarray(x.T @ (x @ w - y) / len(rows))


def scaffold_by_hand(method: Method, w: Floats) -> Iterator[tuple[Floats, Floats, dict[int, Floats]]]:
    """The server's model and variate, and the clients' variates, after each round (Algorithm 1, option II)."""
    trainer = Trainer(linear_module(), POPULATION, RULE, SEED)
    c, kept = np.zeros_like(w), dict[int, Floats]()
    for event in method.schedule.events:
        models, changes = [], []
        for k in event.cohort.tolist():
            y, c_k = w, kept.get(k, np.zeros_like(w))
            for rows in trainer.draw_rows(ClientTask(event.index, event.round, 0, 0, k, {})):
                y = y - LR * (gradient(k, rows, y) - c_k + c)
            kept[k] = c_k - c + (w - y) / (STEPS * LR)
            models.append(y - w)
            changes.append(kept[k] - c_k)
        w = w + np.mean(models, axis=0)
        c = c + len(event.cohort) / len(POPULATION) * np.mean(changes, axis=0)
        yield w, c, dict(kept)


def test_scaffold_is_the_loop_by_hand() -> None:
    method = scaffold(rounds=12)
    found = run(method, Serial(made_by(method)))
    by_hand = list(scaffold_by_hand(method, as_vector(read_model(linear_module()))))
    for state, (w, c, kept) in zip(found, by_hand, strict=True):
        assert state.server is not None
        np.testing.assert_allclose(as_vector(state.server), w, rtol=0, atol=1e-12)
        np.testing.assert_allclose(state.server["0.weight@c"].numpy().ravel(), c, rtol=0, atol=1e-12)
        assert state.clients.keys() == kept.keys()
        for client, own in kept.items():
            np.testing.assert_allclose(as_vector(dict(state.clients[client])), own, rtol=0, atol=1e-12)


def test_workers_give_the_same_bits() -> None:
    method = scaffold()
    expected = run(method, Serial(made_by(method)))
    assert len(expected[0].clients) == 3
    assert_same(run(method, Cores(made_by(method), 2, 1000)), expected)


@pytest.mark.more
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")
def test_workers_of_ray_give_the_same_bits() -> None:
    method = scaffold()
    assert_same(run(method, Ray(made_by(method), 2)), run(method, Serial(made_by(method))))


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
@pytest.mark.parametrize("executor", thinned(["serial", "cores"], 1))
def test_killed_and_resumed_it_has_the_same_bits(page: Path, tmp_path: Path, executor: str) -> None:
    wanted = {
        "rounds": 4,
        "data": {"clients": 6, "samples": 12},
        "model": {"name": "linear"},
        "local": {"steps": 2, "batch_size": 4},
        "method": {"name": "scaffold:scaffold", "fraction": 0.5},
        "run": {"executor": executor, "checkpoint_every": 1, "evaluate_samples": 20},
    }
    experiment = Experiment(make_runs(wanted)[0])
    experiment.check()
    carry_to_end(experiment, tmp_path / "whole")
    steps = count_steps(experiment, tmp_path / "counted")
    for number in range(steps // 3, steps, 7):
        kill_at(experiment, tmp_path / "killed", number, 0.5)
    carry_to_end(experiment, tmp_path / "killed")
    last = "checkpoint/event-00000004.safetensors"
    assert (tmp_path / "killed" / last).read_bytes() == (tmp_path / "whole" / last).read_bytes()


class Counts(Trainer):
    """Keeps how often each client has trained, and sends that as its loss."""

    keeps_state = True

    def train(self, task: ClientTask) -> ClientUpdate:
        times = task.state["times"] + 1 if task.state else torch.tensor([1.0])
        return ClientUpdate(super().train(task).model, times.item(), {"times": times})


def counts(state: State) -> dict[int, int]:
    return {client: int(kept["times"]) for client, kept in sorted(state.clients.items())}


def test_a_state_goes_from_one_intra_cluster_round_to_the_next() -> None:
    schedule = fedavg(POPULATION, RULE, 3, 0.5, seed=0).schedule
    events = tuple(replace(event, intra_rounds=4) for event in schedule.events)
    method = Method(replace(schedule, events=events), RULE, trainer=Counts)
    last = run(method, Serial(made_by(method)))[-1]
    seen = np.concatenate([event.cohort for event in events]).tolist()
    assert counts(last) == {client: 4 * seen.count(client) for client in sorted(set(seen))}


def cluster_event(index: int, cluster: int, clients: list[int]) -> Event:
    cohort, ones = np.array(clients), np.ones(len(clients))
    mix = Mix(published=((cluster, 1.0),))
    return Event(index, index, 1.0, (cluster,), (0.0,), cohort, np.full(len(cohort), cluster), ones, server=mix)


def test_events_that_share_a_client_which_keeps_state_are_not_trained_together() -> None:
    """The clusters have their start models from the first, so plain clients of all three would train side by side."""
    schedule = Schedule(
        (cluster_event(0, 0, [0, 1]), cluster_event(1, 1, [2, 1]), cluster_event(2, 2, [1])), clusters=3, rounds=3
    )
    groups = {apart: [len(schedule.ready(done, apart)) for done in range(3)] for apart in (False, True)}
    assert groups == {False: [3, 2, 1], True: [1, 1, 1]}
    method = Method(schedule, RULE, trainer=Counts)
    assert [counts(state)[1] for state in run(method, Serial(made_by(method)))] == [1, 2, 3]
    disjoint = Schedule((cluster_event(0, 0, [0]), cluster_event(1, 1, [1])), clusters=2, rounds=2)
    assert len(disjoint.ready(0, apart=True)) == 2


def test_a_client_twice_in_a_cohort_cannot_keep_one_state() -> None:
    schedule = Schedule((cluster_event(0, 0, [3, 3]),), clusters=1, rounds=1)
    Method(schedule, RULE)
    with pytest.raises(InputError, match="event 0: client 3 is in the cohort more than once"):
        Method(schedule, RULE, trainer=Counts)


def test_a_client_whose_result_is_screened_out_keeps_the_state_before() -> None:
    method = fedavg(POPULATION, RULE, 4, 1.0, seed=0)
    screened = replace(method, trainer=Counts, screening=Screening())

    class Broken(Counts):
        def train(self, task: ClientTask) -> ClientUpdate:
            update = super().train(task)
            bad = {name: torch.full_like(tensor, torch.nan) for name, tensor in update.model.items()}
            return replace(update, model=bad) if (task.client, task.event) in ((2, 1), (2, 2)) else update

    found = run(screened, Serial(Broken(linear_module(), POPULATION, RULE, SEED, tolerant=True)))
    assert [counts(state)[2] for state in found] == [1, 1, 1, 2]
    assert [counts(state)[3] for state in found] == [1, 2, 3, 4]


def test_clients_that_attack_keep_their_state_too() -> None:
    method = replace(fedavg(POPULATION, RULE, 3, 1.0, seed=0), trainer=Counts)
    found = run(method, Serial(attacked_by(made_by(method), np.array([0, 1]))))
    assert counts(found[-1]) == dict.fromkeys(range(6), 3)


def returning(state: Callable[[ClientTask], Any], keeps: bool = True) -> type[Trainer]:
    class Returning(Trainer):
        keeps_state = keeps

        def train(self, task: ClientTask) -> ClientUpdate:
            return replace(super().train(task), state=state(task))

    return Returning


@pytest.mark.parametrize(
    ("trainer", "message"),
    thinned(
        [
            (returning(lambda task: None), "returned no state"),
            (returning(lambda task: {}), "a dict of tensors, at least one"),
            (returning(lambda task: {"a": 1.0}), "a dict of tensors, at least one"),
            (returning(lambda task: {"a": torch.zeros(1)}, keeps=False), "does not say keeps_state = True"),
            (
                returning(lambda task: {"a": torch.zeros(1 + task.event)}),
                r"'a' was torch.float32 \[1\], is now torch.float32 \[2\]",
            ),
            (returning(lambda task: {f"a{task.event}": torch.zeros(1)}), "'a0' was .*, is now missing"),
        ],
        4,
    ),
)
@pytest.mark.parametrize("cores", [False, True])
def test_a_state_of_another_form_is_refused(trainer: type[Trainer], message: str, cores: bool) -> None:
    method = replace(fedavg(POPULATION, RULE, 2, 1.0, seed=0), trainer=trainer)
    with pytest.raises(RunError, match=rf"event \d, cluster 0, client \d: Returning .*{message}"):
        run(method, Cores(made_by(method), 2, 1000) if cores else Serial(made_by(method)))


class Forgetful(Trainer):
    """Returns nothing from an event on."""

    after = 0

    def train(self, task: ClientTask) -> Any:
        return super().train(task) if task.event < self.after else None


class Later(Forgetful):
    """Returns nothing only once the run is under way."""

    after = 1


@pytest.mark.parametrize("cores", [False, True])
def test_a_trainer_that_returns_nothing_is_named(cores: bool) -> None:
    method = replace(fedavg(POPULATION, RULE, 2, 1.0, seed=0), trainer=Later)
    told = "event 1, cluster 0, client 0: what Later.train returns: must be an atoll.ClientUpdate, it is 'NoneType'"
    with pytest.raises(InputError, match=told):
        run(method, Cores(made_by(method), 2, 1000) if cores else Serial(made_by(method)))


def test_a_trainer_that_is_not_the_methods_is_refused() -> None:
    method = fedavg(POPULATION, RULE, 2, 1.0, seed=0)
    with pytest.raises(RunError, match=r"event 0: the executor's trainer keeps state, but Method\.trainer does not"):
        run(method, Serial(Counts(linear_module(), POPULATION, RULE, SEED)))
    with pytest.raises(RunError, match="event 0: the executor's trainer does not keep state"):
        run(replace(method, trainer=Counts), Serial(Trainer(linear_module(), POPULATION, RULE, SEED)))


@pytest.mark.parametrize("make", [Stacked, Weighted])
@pytest.mark.parametrize(
    ("trainer", "reason"), [(Counts, "keeps a state"), (returning(lambda task: None, False), "single")]
)
def test_executors_that_train_many_at_once_refuse_another_trainer(
    make: Callable[[Trainer], Executor], trainer: type[Trainer], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        make(trainer(linear_module(), POPULATION, replace(RULE, steps=1), SEED))


@pytest.mark.parametrize("executor", ["stacked", "weighted"])
def test_settings_that_cannot_train_it_are_refused_before_anything_is_written(executor: str) -> None:
    wanted = {"method": {"name": "scaffold:scaffold"}, "local": {"steps": 1}, "run": {"executor": executor}}
    with pytest.raises(InputError, match=f"run.executor = '{executor}': .*keeps a state.*; use 'serial'"):
        Experiment(make_runs(wanted)[0]).check()


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        (partial(Counts, by_hand=False), r"making its trainer failed \(TypeError: .*by_hand"),
        (lambda *given: Counts(*given), "makes a Counts, whose keeps_state is True; the trainer itself must say"),
        (returning(lambda task: None), "its trainer, Returning, says keeps_state = True, but returned no state"),
    ],
)
def test_a_trainer_that_cannot_be_used_is_refused_before_anything_is_written(
    trainer: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(population: Population, rule: LocalRule, rounds: int) -> Method:
        return replace(fedavg(population, rule, rounds), trainer=trainer)

    monkeypatch.setattr(sys.modules[__name__], "own", own, raising=False)
    with pytest.raises(InputError, match=f"method.name = '{__name__}:own': .*{message}"):
        Experiment(make_runs({"method": {"name": f"{__name__}:own"}})[0]).check()


def test_a_trainer_that_returns_nothing_is_named_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(population: Population, rule: LocalRule, rounds: int) -> Method:
        return replace(fedavg(population, rule, rounds), trainer=Forgetful)

    monkeypatch.setattr(sys.modules[__name__], "own", own, raising=False)
    with pytest.raises(InputError, match=r"^what Forgetful\.train returns: must be an atoll\.ClientUpdate, it is"):
        Experiment(make_runs({"method": {"name": f"{__name__}:own"}})[0]).check()


def test_a_part_of_a_trainer_says_what_the_trainer_says() -> None:
    assert replace(fedavg(POPULATION, RULE, 2), trainer=partial(Counts, precision="float32")).keeps_state


def test_auto_chooses_client_by_client() -> None:
    wanted = {"method": {"name": "scaffold:scaffold"}, "local": {"steps": 1}, "model": {"name": "linear"}}
    experiment = Experiment(make_runs(wanted)[0])
    experiment.check()
    assert experiment.execution.choice.name in ("serial", "cores")
    assert not experiment.execution.choice.whole
    assert experiment.traffic.message_bytes == 2 * experiment.traffic.model_bytes


def test_a_checkpoint_holds_what_clients_and_server_keep(tmp_path: Path) -> None:
    method = replace(fedavg(POPULATION, RULE, 2, 0.5, seed=0), trainer=Counts, server_rule=FedAvgM(0.9))
    state = run(method, Serial(made_by(method)))[0]
    assert len(state.clients) == 3
    assert state.server_state is not None
    origin = Fingerprint(0, "", "serial")
    save_checkpoint(tmp_path, state, origin)
    found = load_checkpoint(tmp_path, init(method, read_model(linear_module())), origin)
    assert found is not None
    assert_same([found[0]], [state])


class FedAvgM:
    """SGD with momentum on the server, whose gradient is what the model moved back by (Hsu et al. 2019)."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, Model | None]:
        parameters = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in before.items()}
        optimizer = torch.optim.SGD(parameters.values(), lr=1.0, momentum=self.momentum)
        for name, parameter in parameters.items():
            parameter.grad = before[name] - merged[name]
            if state is not None:
                optimizer.state[parameter]["momentum_buffer"] = state[name].clone()
        optimizer.step()
        model = merged | {name: parameter.detach() for name, parameter in parameters.items()}
        return model, {name: optimizer.state[own]["momentum_buffer"] for name, own in parameters.items()}


def test_a_server_rule_is_the_loop_by_hand() -> None:
    clustering = Clustering(np.arange(6) % 2, 2)
    plain = fedcluster(POPULATION, clustering, RULE, 4, 0.7, seed=0)
    found = run(replace(plain, server_rule=FedAvgM(0.9)), Serial(made_by(plain)))
    w, velocity = as_vector(read_model(linear_module())), np.zeros(3)
    trainer = Trainer(linear_module(), POPULATION, RULE, SEED)
    for event, state in zip(plain.schedule.events, found, strict=True):
        trained = []
        for k in event.cohort.tolist():
            y = w
            for rows in trainer.draw_rows(ClientTask(event.index, event.round, 0, 0, k, {})):
                y = y - LR * gradient(k, rows, y)
            trained.append(y)
        velocity = 0.9 * velocity + w - np.average(trained, axis=0, weights=event.weights)
        w = w - velocity
        assert state.server is not None
        np.testing.assert_allclose(as_vector(state.server), w, rtol=0, atol=1e-12)


def test_a_server_rule_that_takes_the_merged_model_changes_no_bit() -> None:
    plain = fedavg(POPULATION, RULE, 3, 0.5, seed=0)
    taking = replace(plain, server_rule=lambda before, merged, state: (merged, state))
    assert_same(run(taking, Serial(made_by(plain))), run(plain, Serial(made_by(plain))))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda before, merged, state: ({}, None), "returned a model with other names, shapes or types"),
        (
            lambda before, merged, state: (merged, {"a": torch.zeros(2 if state else 1)}),
            "returned a state with other .*'a'",
        ),
        (
            lambda before, merged, state: merged["nothing"],
            r"the server rule failed \(KeyError: 'nothing', test_state.py line",
        ),
        (lambda before, merged, state: None, "must return a pair of dicts of tensors, .*; it returned nothing"),
        (lambda before, merged, state: merged, "must return a pair of dicts of tensors, .*; it returned 'dict'"),
        (lambda before, merged, state: (merged, torch.ones(3)), "must return a pair of dicts of tensors"),
        (lambda before, merged, state: (merged, {"n": 1}), "must return a pair of dicts of tensors"),
    ],
)
def test_a_server_rule_that_fails_names_the_event(rule: Any, message: str) -> None:
    method = replace(fedavg(POPULATION, RULE, 2, 0.5, seed=0), server_rule=rule)
    with pytest.raises(RunError, match=rf"event [01]: .*{message}"):
        run(method, Serial(made_by(method)))


def test_a_server_rule_needs_a_server() -> None:
    with pytest.raises(InputError, match=r"Method\.server_rule: the schedule has no server"):
        replace(ifca(POPULATION, RULE, 2, 2), server_rule=FedAvgM(0.9))


def test_server_models_are_handed_out_as_the_rule_made_them() -> None:
    schedule = fedavg(POPULATION, RULE, 2, 0.5, seed=0).schedule
    assert schedule.events[0].starts == ((0, FROM_SERVER),)
    method = replace(fedavg(POPULATION, RULE, 2, 0.5, seed=0), server_rule=FedAvgM(0.9))
    state = run(method, Serial(made_by(method)))[-1]
    assert state.starts[0] is state.server
