"""A fleet against `Serial` to the bit, with all clients there; and what becomes of a run whose nodes misbehave."""

import logging
import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Experiment, Serial, State, Step, init, train
from atoll.engine.cohorts import Cohort
from atoll.fleet.agreed.messages import TrainReply, decode
from atoll.fleet.agreed.transport import Failure
from atoll.fleet.node.node import open_site
from atoll.fleet.node.shards import write_shards
from atoll.fleet.node.versions import Versions, name_of
from atoll.fleet.server.fleet_executor import FleetExecutor
from atoll.fleet.server.joining import wait_for_nodes
from atoll.fleet.server.replies import REASONS
from atoll.local.models import Model
from tests.fleets import agreement_of, join, open_sites, replying, sending, small
from tests.memory_fleet import Fault, MemoryFleet
from tests.tiers import thinned

METHODS: dict[str, dict[str, Any]] = {
    "fedcluster": {},
    "fedcluster, momentum, convolutions": {
        "local": {"optimizer": "momentum", "lr_decay": 0.9},
        "model": {"name": "tests.fleet.test_fleet:dropping"},
    },
    "censyn": {"rounds": 20, "method": {"name": "hierarchical", "pattern": "censyn"}, "local": {"steps": 2}},
    "cenasy": {"rounds": 20, "method": {"name": "hierarchical", "pattern": "cenasy"}, "local": {"steps": 1}},
    "decasy": {"rounds": 20, "method": {"name": "hierarchical", "pattern": "decasy"}, "local": {"steps": 1}},
    "ifca, gradients": {"method": {"name": "ifca", "clusters": 2, "option": "gradients"}, "local": {"steps": 1}},
    "cfl-mgd": {"method": {"name": "cfl-mgd", "clusters": 2}},
    "cfl-mgd, turned, resampled, restarted": {
        "data": {"partition": "rotated"},
        "method": {"name": "cfl-mgd", "clusters": 2, "resample": True, "restarts": 2, "restart_rounds": 1},
    },
    "fedadam": {"method": {"name": "fedadam"}},
    "fedbuff": {"method": {"name": "fedbuff", "concurrency": 3, "buffer": 2}},
    "fedat": {"method": {"name": "fedat", "tiers": 2}},
    "hierfavg": {"rounds": 20, "method": {"name": "hierfavg"}, "local": {"steps": 2}},
    "scaffold": {"method": {"name": "scaffold", "fraction": 0.5}, "rounds": 6},
    "feddyn": {"method": {"name": "feddyn", "fraction": 0.5}, "rounds": 6},
    "ditto": {"method": {"name": "ditto", "fraction": 0.5}, "rounds": 6},
    "bcd": {"method": {"name": "bcd"}},
    "fedem": {"method": {"name": "fedem", "fraction": 0.5}, "rounds": 6},
    "fedrc": {"method": {"name": "fedrc", "fraction": 0.5}, "rounds": 6},
    "fedsoft": {"method": {"name": "fedsoft", "fraction": 0.5}, "rounds": 6},
    "pfedme": {"method": {"name": "pfedme", "fraction": 0.5}, "rounds": 6},
    "apfl": {"method": {"name": "apfl", "fraction": 0.5}, "rounds": 6},
    "perfedavg": {"method": {"name": "perfedavg", "fraction": 0.5}, "rounds": 6},
    "moon": {"method": {"name": "moon", "fraction": 0.5}, "rounds": 6},
    "local": {"method": {"name": "local"}},
    "fedper": {"method": {"name": "fedper"}},
    "fedrep": {"method": {"name": "fedrep"}},
    "fedbn": {"method": {"name": "fedbn"}, "model": {"name": "tests.fleet.test_fleet:dropping"}},
    "patterns travel": {
        "rounds": 20,
        "method": {"name": "hierarchical", "pattern": "cenasy", "intra_rounds": 2},
        "local": {"steps": 2},
        "model": {"travels": ["1.*"]},
    },
    "trainable tensors travel": {"model": {"name": "tests.fleet.test_fleet:half_frozen", "travels": "trainable"}},
    "regression": {"data": {"dataset": "regression"}, "model": {"name": "linear"}, "local": {"batch_size": "full"}},
    "bfloat16": {"travel": {"codec": "bfloat16"}, "method": {"name": "scaffold"}},
    "int8": {
        "travel": {"codec": "int8", "rounding": "stochastic"},
        "model": {"name": "tests.fleet.test_fleet:dropping"},
    },
    "int8, moments": {"travel": {"codec": "int8"}, "method": {"name": "cfl-mgd", "clusters": 2}},
    "topk": {
        "travel": {"codec": "topk"},
        "rounds": 20,
        "method": {"name": "hierarchical", "pattern": "cenasy", "intra_rounds": 2},
        "local": {"steps": 2},
    },
    "augmented": {"data": {"augment": "crop-flip", "shift": 1}, "method": {"name": "ifca", "clusters": 2}},
    "fednova": {
        "method": {"name": "fednova", "fraction": 0.5},
        "local": {"epochs": 0.3, "batch_size": 4},
        "data": {"partition": "dirichlet", "samples": None},
    },
    "power of choice": {"method": {"name": "fedavg", "fraction": 0.5, "select": "power-of-choice", "candidates": 3}},
    "topk, nothing kept": {"travel": {"codec": "topk", "feedback": False}},
}


def dropping(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """A module with dropout, whose random numbers must be the simulation's, and a buffer that is no real number."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3),
        torch.nn.BatchNorm2d(2),
        torch.nn.Flatten(),
        torch.nn.Dropout(),
        torch.nn.Linear(72, 10),
    )
    assert any(not buffer.is_floating_point() for buffer in module.buffers())
    return module


def half_frozen(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """A module whose first layer is never trained, and so need not travel."""
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Linear(8, classes))
    module[1].requires_grad_(False)
    return module


def assert_same(ours: Model, theirs: Model) -> None:
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name


def simulate(experiment: Experiment) -> list[Step]:
    executor = Serial(experiment.training.trainer())
    return list(train(experiment.method, executor, first(experiment, executor)))


def first(experiment: Experiment, executor: Serial | FleetExecutor) -> State:
    return init(experiment.method, *experiment.training.best_start(executor))


def run_events(experiment: Experiment, executor: FleetExecutor) -> list[Step]:
    return list(train(experiment.method, executor, first(experiment, executor)))


@pytest.mark.parametrize("changes", thinned(METHODS.values(), 3), ids=METHODS)
def test_with_all_nodes_there_the_bits_are_those_of_simulation(changes: dict[str, Any], tmp_path: Path) -> None:
    experiment = small(**changes)
    executor = join(experiment, fleet := MemoryFleet(open_sites(experiment, tmp_path)))
    ours, theirs = run_events(experiment, executor), simulate(experiment)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.loss == other.loss
        assert np.array_equal(mine.clusters, other.clusters)
        for one, two in zip(
            mine.state.starts + mine.state.published, other.state.starts + other.state.published, strict=True
        ):
            assert_same(one, two)
    assert not executor.refused
    assert ours[-1].state.clients.keys() == theirs[-1].state.clients.keys()
    for client, state in theirs[-1].state.clients.items():
        versions = Versions(fleet.stores[f"node-{client}"], client, executor.agreement.digest)
        assert_same(versions.read(name_of(ours[-1].state.clients[client])) or {}, state)


def test_a_node_may_be_several_clients(tmp_path: Path) -> None:
    experiment = small()
    write_shards(experiment, tmp_path)
    sites = {
        "first": open_site(experiment.settings, tmp_path, [0, 2, 3]),
        "second": open_site(experiment.settings, tmp_path, [1]),
    }
    executor = join(experiment, MemoryFleet(sites))
    assert executor.nodes == {0: "first", 2: "first", 3: "first", 1: "second"}
    ours, theirs = run_events(experiment, executor), simulate(experiment)
    assert_same(ours[-1].state.starts[0], theirs[-1].state.starts[0])


def test_who_comes_later_takes_part(tmp_path: Path) -> None:
    experiment = small()
    fleet = MemoryFleet(open_sites(experiment, tmp_path))
    fleet.gone.add("node-2")
    joined = wait_for_nodes(fleet, agreement_of(experiment), 3, 5.0)
    executor = FleetExecutor(fleet, joined.nodes, agreement_of(experiment), 10.0, joined.samples)
    (average,) = executor.train([one_cohort(experiment)], experiment.method.combine)
    assert average.refused == {"gone": 1}
    fleet.gone.clear()
    (average,) = executor.train([one_cohort(experiment)], experiment.method.combine)
    assert average.answered is not None
    assert average.answered.all()


def test_random_numbers_are_keyed_with_what_the_cohort_draws_by(tmp_path: Path) -> None:
    experiment = small()
    executor = join(experiment, MemoryFleet(open_sites(experiment, tmp_path)))
    serial = Serial(experiment.training.trainer())
    (start,) = experiment.training.initial_models()
    everyone = np.arange(4)
    named = Cohort(1, 0, 2, 0, everyone, np.ones(4), 4.0, start, drawn_as=7)
    other = Cohort(1, 0, 2, 0, everyone, np.ones(4), 4.0, start)
    combine = experiment.method.combine
    results = [each.train([cohort], combine)[0].model for each in (executor, serial) for cohort in (named, other)]
    assert_same(results[0], results[2])
    assert_same(results[1], results[3])
    assert not torch.equal(results[0]["1.weight"], results[1]["1.weight"])


def with_names(change: Callable[[Model], Model]) -> Fault:
    return replying(lambda head, model: (head, change(model)))


def with_head(**values: Any) -> Fault:
    return replying(lambda head, model: (TrainReply.model_validate(head.model_dump() | values), model))


FIRST = "1.weight"
FAULTS: dict[str, tuple[Fault, str]] = {
    "NaN": (with_names(lambda m: m | {FIRST: torch.full_like(m[FIRST], torch.nan)}), "not_finite"),
    "infinite": (with_names(lambda m: m | {FIRST: torch.full_like(m[FIRST], torch.inf)}), "not_finite"),
    "loss NaN": (with_head(loss=None), "not_finite"),
    "shape": (with_names(lambda m: m | {FIRST: m[FIRST][1:]}), "wrong_form"),
    "transposed": (with_names(lambda m: m | {FIRST: m[FIRST].T}), "wrong_form"),
    "missing tensor": (with_names(lambda m: {k: v for k, v in m.items() if k != FIRST}), "wrong_form"),
    "no tensors": (with_names(lambda m: {}), "wrong_form"),
    "extra tensor": (with_names(lambda m: m | {"more": torch.zeros(1)}), "wrong_form"),
    "extra moment": (with_names(lambda m: m | {f"{FIRST}@momentum_buffer": m[FIRST]}), "wrong_form"),
    "renamed": (with_names(lambda m: {k + "x": v for k, v in m.items()}), "wrong_form"),
    "type": (with_names(lambda m: m | {FIRST: m[FIRST].double()}), "wrong_form"),
    "absurd norm": (with_names(lambda m: {k: v * 1e6 for k, v in m.items()}), "too_large"),
    "huge": (with_names(lambda m: m | {"more": torch.zeros(1 << 20)}), "oversized"),
    "event": (with_head(event=1000), "wrong_event"),
    "repeat": (with_head(repeat=1000), "wrong_event"),
    "nonce": (with_head(nonce="0" * 32), "repeated"),
    "negative count": (with_head(samples=-40), "wrong_count"),
    "absurd count": (with_head(samples=10**12), "wrong_count"),
    "no samples": (with_head(samples=0), "wrong_count"),
    "no work": (with_head(passed=0), "wrong_count"),
    "another client": (with_head(client=1), "wrong_sender"),
    "no such client": (with_head(client=99), "wrong_sender"),
    "pickled": (sending(lambda _: pickle.dumps(np.zeros(3))), "unreadable"),
    "pickled body": (sending(lambda reply: reply[:200] + pickle.dumps(np.zeros(3))), "unreadable"),
    "truncated": (sending(lambda reply: reply[:-1]), "unreadable"),
    "header only": (sending(lambda reply: reply[:100]), "unreadable"),
    "empty": (sending(lambda _: b""), "unreadable"),
    "too long to be read": (sending(lambda _: Failure("too_large")), "oversized"),
    "failed": (sending(lambda _: Failure("failed")), "failed"),
}


@pytest.mark.parametrize(("fault", "reason"), thinned(FAULTS.values(), 12), ids=FAULTS)
def test_a_reply_that_is_not_good_is_refused_and_the_run_goes_on(fault: Fault, reason: str, tmp_path: Path) -> None:
    experiment = small(rounds=1, faults={"max_update_norm": 100.0})
    fleet = MemoryFleet(open_sites(experiment, tmp_path), {"node-0": fault})
    executor = join(experiment, fleet)
    steps = run_events(experiment, executor)
    assert len(steps) == len(experiment.method.schedule.events)
    assert executor.refused == {reason: 1}
    assert reason in REASONS
    assert all(tensor.isfinite().all() for tensor in steps[-1].state.starts[0].values())


def test_an_earlier_reply_sent_again_is_refused(tmp_path: Path) -> None:
    experiment = small(rounds=2)
    kept: list[bytes] = []

    def replay(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        reply = honest()
        if task == "train":
            kept.append(reply)
        return kept[0] if task == "train" else reply

    fleet = MemoryFleet(open_sites(experiment, tmp_path), {"node-0": replay})
    executor = join(experiment, fleet)
    run_events(experiment, executor)
    assert executor.refused == {"wrong_event": 1}
    event = decode(kept[0], TrainReply)[0].event
    executor.train([one_cohort(experiment, event)], experiment.method.combine)  # once more, as after a resume
    assert executor.refused == {"wrong_event": 1, "repeated": 1}


def test_what_a_transport_delivers_twice_or_from_nobody_asked_does_not_count(tmp_path: Path) -> None:
    experiment = small()
    fleet = MemoryFleet(open_sites(experiment, tmp_path))

    class Repeating:
        nodes, allow, close = fleet.nodes, fleet.allow, fleet.close

        def call(self, heads: Mapping[str, bytes], task: str, payload: bytes, timeout: float) -> Any:
            for name, content in fleet.call(heads, task, payload, timeout):
                yield name, content
                yield name, content
                yield "stranger", content

    cohort = one_cohort(experiment)
    honest = join(experiment, fleet)
    executor = FleetExecutor(Repeating(), honest.nodes, honest.agreement, 10.0, honest.samples)
    (average,) = executor.train([cohort], experiment.method.combine)
    assert executor.refused["repeated"] + executor.refused["wrong_sender"] >= 4
    assert average.answered is not None
    assert average.answered.all()
    assert_same(average.model, honest.train([cohort], experiment.method.combine)[0].model)


def test_a_node_cannot_answer_for_another(tmp_path: Path) -> None:
    """Two nodes that swap their good replies are both refused, whatever each of them says."""
    experiment = small()
    sites = open_sites(experiment, tmp_path)
    fleet = MemoryFleet(sites)

    class Swapping:
        nodes, allow, close = fleet.nodes, fleet.allow, fleet.close

        def call(self, heads: Mapping[str, bytes], task: str, payload: bytes, timeout: float) -> Any:
            swapped = {"node-0": "node-1", "node-1": "node-0"}
            for name, content in fleet.call(heads, task, payload, timeout):
                yield swapped.get(name, name), content

    honest = join(experiment, fleet)
    executor = FleetExecutor(Swapping(), honest.nodes, honest.agreement, 10.0)
    (average,) = executor.train([one_cohort(experiment)], experiment.method.combine)
    assert average.answered is not None
    assert average.answered.tolist() == [False, False, True, True]
    assert average.refused == {"wrong_sender": 2}


def one_cohort(experiment: Experiment, event: int = 0) -> Cohort:
    start = experiment.training.initial_models()[0]
    return Cohort(event, 0, 0, 0, np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]), 10.0, start)


def test_who_does_not_answer_is_left_out_of_the_mean(tmp_path: Path) -> None:
    experiment = small(method={"name": "ifca", "option": "gradients"}, local={"steps": 1})
    fleet = MemoryFleet(open_sites(experiment, tmp_path), {"node-1": sending(lambda _: None)})
    executor = join(experiment, fleet, deadline_seconds=1.0)
    fleet.gone.add("node-2")
    began = time.monotonic()
    cohort = one_cohort(experiment)
    (average,) = executor.train([cohort], experiment.method.combine)
    assert time.monotonic() - began < 3
    assert average.answered is not None
    assert average.answered.tolist() == [True, False, False, True]
    assert average.refused == {"late": 1, "gone": 1}
    assert average.arrived == pytest.approx(0.5)
    there = Cohort(0, 0, 0, 0, np.array([0, 3]), np.array([1.0, 4.0]), 5.0, cohort.start)
    (other,) = Serial(experiment.training.trainer()).train([there], experiment.method.combine)
    assert_same(average.model, other.model)
    assert average.loss == other.loss


def test_who_is_lost_in_one_cluster_counts_in_no_other(tmp_path: Path) -> None:
    """The gradients' share is of all clients of the event that answered (IFCA, option I)."""
    experiment = small(method={"name": "ifca", "option": "gradients"}, local={"steps": 1})
    fleet = MemoryFleet(open_sites(experiment, tmp_path))
    executor = join(experiment, fleet)
    fleet.gone.add("node-2")
    start = experiment.training.initial_models()[0]
    cohorts = [
        Cohort(0, 0, 0, cluster, np.array(clients), np.ones(2), 4.0, start)
        for cluster, clients in enumerate([[0, 1], [2, 3]])
    ]
    there = [
        Cohort(0, 0, 0, cluster, np.array(clients), np.ones(len(clients)), 3.0, start)
        for cluster, clients in enumerate([[0, 1], [3]])
    ]
    serial = Serial(experiment.training.trainer())
    combine = experiment.method.combine
    for mine, other in zip(executor.train(cohorts, combine), serial.train(there, combine), strict=True):
        assert_same(mine.model, other.model)


def test_with_nobody_there_the_start_is_kept(tmp_path: Path) -> None:
    experiment = small()
    fleet = MemoryFleet(open_sites(experiment, tmp_path))
    executor = join(experiment, fleet)
    fleet.gone.update(fleet.sites)
    cohort = one_cohort(experiment)
    (average,) = executor.train([cohort], experiment.method.combine)
    assert average.model is cohort.start
    assert np.isnan(average.loss)
    assert average.arrived == 0
    assert average.answered is not None
    assert not average.answered.any()
    assert average.refused == {"gone": 4}
    assert np.isnan(executor.losses([cohort.start], cohort.clients, 0)).all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])  # of training, in which nobody measures
def test_losses_are_those_of_simulation_to_rounding_and_unknown_ones_nan(precision: str, tmp_path: Path) -> None:
    experiment = small(method={"name": "ifca"}, run={"precision": precision})
    fleet = MemoryFleet(open_sites(experiment, tmp_path))
    executor = join(experiment, fleet)
    fleet.gone.add("node-3")
    models = experiment.training.initial_models()
    clients = np.array([3, 0, 2])
    ours = executor.losses(models, clients, 0)
    theirs = Serial(experiment.training.trainer()).losses(models, clients, 0)
    assert np.isnan(ours[0]).all()
    assert ours[1:] == pytest.approx(theirs[1:], rel=1e-6)


def test_a_slow_transport_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.fleet.server.gathering.GRACE_SECONDS", 0.2)
    experiment = small()
    fleet = MemoryFleet(open_sites(experiment, tmp_path))

    class Stuck:
        nodes, allow, close = fleet.nodes, fleet.allow, fleet.close

        def call(self, heads: Mapping[str, bytes], task: str, payload: bytes, timeout: float) -> Any:
            yield from fleet.call(dict([*heads.items()][:1]), task, payload, timeout)
            time.sleep(30)

    honest = join(experiment, fleet)
    executor = FleetExecutor(Stuck(), honest.nodes, honest.agreement, 0.5)
    began = time.monotonic()
    (average,) = executor.train([one_cohort(experiment)], experiment.method.combine)
    assert time.monotonic() - began < 5
    assert average.refused == {"late": 3}


SECRET = "patient 4711"


def test_what_a_node_raises_is_known_to_its_owner_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    experiment = small(rounds=1)
    sites = open_sites(experiment, tmp_path)

    def tell(*_: object) -> None:
        raise ValueError(SECRET)

    sites["node-0"].trainer.trainer.train = tell  # type: ignore[method-assign,assignment]
    came: list[object] = []
    fleet = MemoryFleet(sites)

    class Overheard:
        nodes, allow, close = fleet.nodes, fleet.allow, fleet.close

        def call(self, heads: Mapping[str, bytes], task: str, payload: bytes, timeout: float) -> Any:
            for item in fleet.call(heads, task, payload, timeout):
                came.append(item)
                yield item

    honest = join(experiment, fleet)
    executor = FleetExecutor(Overheard(), honest.nodes, honest.agreement, 10.0)
    with caplog.at_level(logging.ERROR, "atoll.fleet"):
        steps = run_events(experiment, executor)
    assert executor.refused == {"failed": 1}
    assert len(came) == 4
    assert SECRET not in repr(came) + repr(steps) + repr(vars(executor))
    assert SECRET in caplog.text  # where the node runs


def test_settings_of_another_kind_are_refused_by_the_node(tmp_path: Path) -> None:
    experiment, other = small(), small(local={"lr": 0.01})
    fleet = MemoryFleet(open_sites(experiment, tmp_path))
    nodes = {client: f"node-{client}" for client in range(4)}
    executor = FleetExecutor(fleet, nodes, agreement_of(other), 10.0)
    (average,) = executor.train([one_cohort(other)], other.method.combine)
    assert average.refused == {"wrong_settings": 4}


def test_what_is_measured_adds_up(tmp_path: Path) -> None:
    experiment = small(rounds=2)

    def slow(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        reply = honest()
        if task == "train":
            time.sleep(0.2)
        return reply

    executor = join(experiment, MemoryFleet(open_sites(experiment, tmp_path), {"node-1": slow}))
    run_events(experiment, executor)
    measured = executor.measured
    assert measured.replies.tolist() == [2, 2, 2, 2]
    assert (measured.seconds_per_sample > 0).all()
    assert measured.upload_seconds[1] > 0.2
    assert np.delete(measured.upload_seconds, 1).max() < 0.2


def test_a_node_that_boasts_of_long_work_is_not_believed(tmp_path: Path) -> None:
    experiment = small(rounds=1)
    fault = replying(lambda head, model: (head.model_copy(update={"seconds": 1e9}), model))
    executor = join(experiment, MemoryFleet(open_sites(experiment, tmp_path), {"node-1": fault}))
    run_events(experiment, executor)
    assert executor.measured.seconds_per_sample[1] < 1
    assert executor.measured.upload_seconds[1] == 0
