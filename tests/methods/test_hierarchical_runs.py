"""Whole runs of the four patterns on digits, from settings to rows, against what is counted and measured by hand."""

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from atoll import Experiment, Serial, State, generator, init, make_runs, run_events, train
from atoll.clustering.feduc.problem import PATTERNS
from atoll.network.network import Network
from atoll.runs import warnings as run_warnings
from atoll.settings.choices import uses_network
from atoll.support.errors import SettingWarning
from tests.made_runs import timeless
from tests.tiers import thinned

CLIENTS, AGGREGATORS, INTRA_ROUNDS, EVENTS = 12, 4, 2, 12
BASE = {
    "rounds": INTRA_ROUNDS * EVENTS,
    "data": {"partition": "one-label", "size_ratio": 2.0, "clients": CLIENTS},
    "model": {"name": "linear"},
    "local": {"lr": 0.5, "steps": 1, "batch_size": 16},
    "clustering": {"clusters": AGGREGATORS},
    "network": {"bandwidth_hz": 1e4, "seconds_per_sample": [0.001, 0.004]},
    "method": {"name": "hierarchical", "intra_rounds": INTRA_ROUNDS},
    "run": {"checkpoint_every": 5 * INTRA_ROUNDS, "evaluate_every": INTRA_ROUNDS},
}
OWN = """
import numpy as np

def middle(population):  # none at aggregators 0 and 3
    return 1 + np.arange(len(population)) % 2

def ends(population):  # on a line 0-1-2-3 these two do not meet
    return 3 * (np.arange(len(population)) % 2)

def one(population):
    return np.full(len(population), 2)

def one_in_time(problem):
    return np.full(problem.network.clients, 2)

def some(population):  # two clients belong nowhere
    numbers = np.arange(len(population))
    return np.where(numbers % 6 == 5, -1, numbers % 3)
"""
CLUSTERINGS = ("random", "placing:middle", "placing:one")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with the module `placing`; forget it afterwards."""
    (tmp_path / "placing.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("placing", None)


def made(*changes: str) -> Experiment:
    return Experiment(make_runs(BASE, changes=changes)[0])


def carried_out(experiment: Experiment, out: str = "run", resume: bool = False) -> list[dict[str, Any]]:
    """Carry a run out to its end and return its rows."""
    for _ in run_events(experiment, out, resume):
        pass
    return rows_in(out)


def rows_in(out: str) -> list[dict[str, Any]]:
    """Return a run's rows without the wall-clock time, the one value that may differ."""
    lines = (Path(out) / "metrics.jsonl").read_text().splitlines()
    return [timeless(line) for line in lines]


def summary_in(out: str) -> dict[str, Any]:
    return dict(json.loads((Path(out) / "summary.json").read_bytes()))


def states_of(experiment: Experiment) -> list[State]:
    """Return the states before the first event and after every one."""
    method = experiment.method
    first = init(method, *experiment.training.initial_models())
    return [first, *(step.state for step in train(method, experiment.execution.make_executor(), first))]


@dataclass(frozen=True)
class Measured:
    """A linear model's loss and accuracy on the test samples, and the share of them that rounding may turn."""

    loss: float
    accuracy: float
    doubtful: float

    def fits(self, loss: float, accuracy: float) -> bool:
        return abs(loss / self.loss - 1) < 1e-5 and self.is_accuracy(accuracy)

    def is_accuracy(self, accuracy: float) -> bool:
        return abs(accuracy - self.accuracy) <= self.doubtful + 1e-9


def measured_by_hand(experiment: Experiment, model: Mapping[str, torch.Tensor]) -> Measured:
    data = experiment.population.data
    x = data.test_inputs.reshape(len(data.test_inputs), -1) / 16
    scores = x @ model["1.weight"].double().numpy().T + model["1.bias"].double().numpy()
    right = scores[np.arange(len(x)), data.test_targets]
    losses = np.log(np.exp(scores).sum(axis=1)) - right
    second, first = np.sort(scores, axis=1)[:, -2:].T
    hits = scores.argmax(axis=1) == data.test_targets
    return Measured(float(losses.mean()), float(hits.mean()), float((first - second < 1e-5).mean()))


def work_by_hand(network: Network, labels: npt.NDArray[np.int64], pattern: str) -> dict[int, float]:
    """Return how long the work of each aggregator with clients takes, (50) and the transfer."""
    seconds = {}
    for j in sorted(set(labels.tolist()) - {-1}):
        t = 0.0
        for i in sorted(np.flatnonzero(labels == j).tolist(), key=lambda i: float(network.compute_seconds[i])):
            t = max(t, network.compute_seconds[i]) + network.upload_seconds[i, j]
        sent = [network.exchange_seconds[j, other] for other in network.neighbours[j]]
        seconds[j] = INTRA_ROUNDS * t + (network.transfer_seconds[j] if pattern in ("censyn", "cenasy") else max(sent))
    return seconds


def clock_by_hand(work: dict[int, float], pattern: str) -> Iterator[tuple[float, list[int]]]:
    """Yield when each event ends, and whose it is."""
    finish = dict(work)
    for event in range(EVENTS):
        if pattern in ("censyn", "decsyn"):
            yield (event + 1) * max(work.values()), list(work)
        else:
            j = min(finish, key=lambda j: finish[j])
            yield finish[j], [j]
            finish[j] += work[j]


@pytest.mark.parametrize("clustering", thinned(CLUSTERINGS, 1))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_time_bytes_and_updates_are_as_counted_by_hand(pattern: str, clustering: str) -> None:
    experiment = made(f"method.pattern={pattern}", f"clustering.method={clustering}")
    rows = carried_out(experiment)
    labels, network = experiment.clustering.labels, experiment.conditions.networks[0]
    central = pattern in ("censyn", "cenasy")
    updates = models = 0
    waited, staleness = dict.fromkeys(range(AGGREGATORS), -1), [0]
    assert [row["round"] for row in rows] == [INTRA_ROUNDS * event for event in range(EVENTS + 1)]
    clock = list(clock_by_hand(work_by_hand(network, labels, pattern), pattern))
    for event, (seconds, active) in enumerate(clock):
        row = rows[event + 1]
        assert row["event"] == event + 1
        assert row["virtual_time"] == pytest.approx(seconds, rel=1e-12)
        updates += INTRA_ROUNDS * int(np.isin(labels, active).sum())
        models += sum(1 if central else len(network.neighbours[j]) for j in active)
        assert row["client_updates"] == updates
        assert row["bytes_up"] == row["bytes_down"] == (updates + models) * 4 * 650
        staleness += [event - 1 - waited[j] for j in active]
        for j in active:
            waited[j] = event
    summary = summary_in("run")
    assert summary["max_staleness"] == max(staleness)
    works = np.array([sum(j in active for _, active in clock) for j in range(AGGREGATORS)])
    assert summary["cluster_frequencies"] == pytest.approx(works / works.sum())
    assert summary["events"] == EVENTS
    assert summary["rounds"] == INTRA_ROUNDS * EVENTS
    assert summary["cluster_sizes"] == np.bincount(labels, minlength=AGGREGATORS).tolist()
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]


COMMON = {"event", "round", "virtual_time", "train_loss", "test_loss", "test_accuracy", "local_loss", "client_updates"}
COMMON |= {"bytes_up", "bytes_down"}
OF_AGGREGATORS = {"cluster_accuracy", "mean_cluster_accuracy", "worst_cluster_accuracy"}


@pytest.mark.parametrize("clustering", thinned(CLUSTERINGS, 2))
@pytest.mark.parametrize("pattern", ["censyn", "cenasy"])
def test_with_a_server_its_model_is_measured(pattern: str, clustering: str) -> None:
    experiment = made(f"method.pattern={pattern}", f"clustering.method={clustering}")
    for row, state in zip(carried_out(experiment), states_of(experiment), strict=True):
        assert set(row) == COMMON
        assert state.server is not None
        assert measured_by_hand(experiment, state.server).fits(row["test_loss"], row["test_accuracy"])


@pytest.mark.parametrize("clustering", thinned([*CLUSTERINGS, "placing:some"], 1))
@pytest.mark.parametrize("pattern", ["decsyn", "decasy"])
def test_without_a_server_the_mean_model_and_each_aggregators_are_measured(pattern: str, clustering: str) -> None:
    experiment = made(f"method.pattern={pattern}", f"clustering.method={clustering}")
    labels, sizes = experiment.clustering.labels, experiment.population.sizes
    samples = [int(sizes[labels == j].sum()) for j in range(AGGREGATORS)]
    apart = 0.0
    for row, state in zip(carried_out(experiment), states_of(experiment), strict=True):
        assert set(row) == COMMON | OF_AGGREGATORS
        assert state.server is None
        mean_model = {
            name: torch.stack([samples[j] / sum(samples) * state.starts[j][name].double() for j in range(AGGREGATORS)])
            for name in state.starts[0]
        }
        by_hand = measured_by_hand(experiment, {name: parts.sum(dim=0) for name, parts in mean_model.items()})
        assert by_hand.fits(row["test_loss"], row["test_accuracy"])
        known = []
        for j, accuracy in enumerate(row["cluster_accuracy"]):
            assert (accuracy is None) == (not samples[j])
            if accuracy is not None:
                assert measured_by_hand(experiment, state.starts[j]).is_accuracy(accuracy)
                known.append(accuracy)
        assert row["mean_cluster_accuracy"] == pytest.approx(np.mean(known))
        assert row["worst_cluster_accuracy"] == min(known)
        apart = max(apart, max(known) - min(known))
    assert (apart > 0) == (clustering != "placing:one")


def test_every_intra_round_draws_batches_of_its_own() -> None:
    """CenSyn on mini-batches, by hand: w <- sum_j beta_j w~_j, each w~_j from T' steps on fresh weighted batches."""
    experiment = made("method.pattern=censyn")
    population, data = experiment.population, experiment.population.data
    states = states_of(experiment)
    w = np.hstack([states[0].starts[0][f"1.{name}"].double().numpy().reshape(10, -1) for name in ("weight", "bias")])
    for event in range(3):
        total = np.zeros_like(w)
        for j in range(AGGREGATORS):
            own = w.copy()
            for repeat in range(INTRA_ROUNDS):
                trained = np.zeros_like(w)
                members = np.flatnonzero(experiment.clustering.labels == j)
                for i in members.tolist():
                    draws = generator(0, "batches", event, repeat, i).integers(population.sizes[i], size=(1, 16))
                    rows = population.samples(i)[draws[0]]
                    x = np.hstack([data.inputs[rows].reshape(16, -1) / 16, np.ones((16, 1))])
                    scores = np.exp(x @ own.T)
                    error = scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[data.targets[rows]]
                    trained += population.sizes[i] * (own - 0.5 * error.T @ x / 16)
                own = trained / population.sizes[members].sum()
            total += population.sizes[members].sum() * own
        w = total / population.sizes.sum()
        server = states[event + 1].server
        assert server is not None
        np.testing.assert_allclose(server["1.weight"].numpy(), w[:, :-1], atol=1e-5)
        np.testing.assert_allclose(server["1.bias"].numpy(), w[:, -1], atol=1e-5)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_aggregators_without_clients(pattern: str) -> None:
    """Never active; in the synchronous patterns they receive models, in the others they keep the first one."""
    experiment = made(f"method.pattern={pattern}", "clustering.method=placing:middle")
    states, schedule = states_of(experiment), experiment.method.schedule
    assert {j for event in schedule.events for j in event.active} == {1, 2}
    last, first = states[-1], states[0].starts[0]
    for j in (0, 3):
        assert last.published[j] is first
        if pattern == "censyn":
            assert last.starts[j] is last.server
        elif pattern == "decsyn":  # of a square's corners 1 and 2 are the neighbours of 0 and of 3
            sizes, labels = experiment.population.sizes, experiment.clustering.labels
            held = [float(sizes[labels == neighbour].sum()) for neighbour in (1, 2)]
            for name, tensor in last.starts[j].items():
                mixed = (held[0] * last.published[1][name] + held[1] * last.published[2][name]) / sum(held)
                torch.testing.assert_close(tensor, mixed)
        else:
            assert last.starts[j] is first


@pytest.mark.parametrize("pattern", thinned(PATTERNS, 1))
def test_more_aggregators_than_clients(pattern: str) -> None:
    experiment = made(f"method.pattern={pattern}", "clustering.clusters=16", "network.grid=[2, 8]", "rounds=40")
    rows = carried_out(experiment)
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    if pattern.startswith("dec"):
        empty = [j for j, size in enumerate(experiment.clustering.sizes) if not size]
        assert len(empty) == 4
        assert [j for j, value in enumerate(rows[-1]["cluster_accuracy"]) if value is None] == empty


# Resuming

TRACE = "round,client,x,y\n" + "".join(
    f"{round_},{client},{(7 * client + 11 * round_) % 39 + 0.5},{(5 * client + 3 * round_) % 37 + 1.5}\n"
    for round_ in (0, 6, 12)
    for client in range(CLIENTS)
)
MOVING = ("network.trace_file=trace.csv", "network.recluster_every=6")


@pytest.mark.parametrize("killed", thinned([False, True], 1), ids=["stopped", "killed"])
@pytest.mark.parametrize(
    ("pattern", "changes"),
    thinned([("cenasy", ()), ("decasy", MOVING), ("decasy", ()), ("decsyn", ()), ("cenasy", MOVING)]),
)
def test_a_run_stopped_between_events_that_train_together(pattern: str, changes: tuple[str, ...], killed: bool) -> None:
    Path("trace.csv").write_text(TRACE)
    words = (f"method.pattern={pattern}", *changes)
    whole = carried_out(made(*words), "whole")
    experiment = made(*words)
    schedule = experiment.method.schedule
    done = 6
    if pattern.endswith("asy"):
        assert len(schedule.ready(0)) > 1
        together = [e for e in range(5, EVENTS - 2) if len(schedule.ready(e)) > 1]
        done = together[0] + 1  # the second of them is still to come
    steps = run_events(experiment, "run")
    for progress in steps:
        if progress.events_done == done:
            break
    steps.close()
    if killed:  # as if there were only the checkpoint of event 5
        for file in Path("run/checkpoint").glob(f"event-{done:08d}.*"):
            file.unlink()
    assert carried_out(made(*words), "run", resume=True) == whole
    for file in Path("whole/checkpoint").iterdir():
        if file.stem == f"event-{EVENTS:08d}":
            assert (Path("run/checkpoint") / file.name).read_bytes() == file.read_bytes()
    assert summary_in("run")["final"] | {"wall_time": 0} == whole[-1] | {"wall_time": 0}


# Executors


@pytest.mark.parametrize("pattern", thinned(PATTERNS, 2))
def test_the_weighted_pass_gives_what_clients_one_by_one_give(pattern: str) -> None:
    words = (f"method.pattern={pattern}", "model.name=mlp")
    serial, auto = made(*words, "run.executor=serial"), made(*words)
    assert type(serial.execution.make_executor()) is Serial
    assert auto.execution.choice.whole  # in this process or, on many cores, in workers
    first, second = states_of(serial)[-1], states_of(auto)[-1]
    moved = 0.0
    for j in range(AGGREGATORS):
        for name, tensor in first.starts[j].items():
            torch.testing.assert_close(second.starts[j][name], tensor, rtol=0, atol=1e-5)
            moved = max(moved, float((tensor - serial.module.state_dict()[name]).abs().max()))
    assert moved > 0.01


# Warnings


def warnings_of(experiment: Experiment, out: str) -> list[str]:
    steps = run_events(experiment, out)
    found = list(next(steps).warnings)
    steps.close()
    return found


@pytest.mark.parametrize("method", ["random", "comaw"])
def test_a_limit_that_a_clustering_does_not_keep_is_told(method: str) -> None:
    limited = BASE | {"clustering": {"method": method, "clusters": 4, "time_limit": 0.001}}
    (told,) = run_warnings.warnings_of(Experiment(make_runs(limited)[0]))
    assert told.startswith("aggregators whose completion is above clustering.time_limit = 0.001: 0, 1")


def test_a_limit_is_advised_only_where_the_clustering_may_keep_it() -> None:
    (told,) = warnings_of(made("clustering.method=placing:one_in_time"), "run")
    assert told == "all clients are in one of 4 clusters, so patterns train alike; lower clustering.time_limit"


@pytest.mark.parametrize(
    ("pattern", "clustering", "topology", "is_cut"),
    [
        ("decsyn", "placing:ends", "grid", True),
        ("decasy", "placing:ends", "grid", True),
        ("decasy", "placing:ends", "ring", False),  # on a ring the two are neighbours
        ("decsyn", "placing:middle", "grid", False),
        ("decsyn", "placing:one", "grid", False),
        ("cenasy", "placing:ends", "grid", False),
    ],
)
def test_a_warning_when_empty_aggregators_cut_the_graph(
    pattern: str, clustering: str, topology: str, is_cut: bool
) -> None:
    words = (f"method.pattern={pattern}", f"clustering.method={clustering}", f"network.topology={topology}")
    found = warnings_of(made(*words, "network.grid=[1, 4]" if topology == "grid" else "network.side_metres=50"), "run")
    in_one = clustering == "placing:one"
    told = "all clients are in one of 4 clusters, so patterns train alike; choose another clustering.method"
    assert found[:in_one] == [told] * in_one
    assert len(found) == is_cut + in_one
    if is_cut:
        assert "from round 0 on, aggregators without clients cut the others into parts" in found[0]


def test_a_warning_of_clients_left_out() -> None:
    (found,) = warnings_of(made("clustering.method=placing:some"), "run")
    assert found == "clients that belong to no cluster and never train (2): 5, 11"


def test_a_warning_where_rounds_end_a_run_before_its_time() -> None:
    """Else patterns that are to be compared at one time would end at times of their own."""
    told = r"run\.virtual_seconds = 1e\+06: rounds = .* ends the run at .* s already; raise rounds to use all of it"
    with pytest.warns(SettingWarning, match=told):
        made("run.virtual_seconds=1e6").method  # noqa: B018
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made("run.virtual_seconds=3").method  # noqa: B018


def test_runs_beside_fedavg_end_after_equal_work() -> None:
    """Whatever a round is in each."""
    for method in ("hierarchical", "fedavg", "fedcluster"):
        fraction = ("method.fraction=1.0",) if method != "hierarchical" else ()
        schedule = made(f"method.name={method}", *fraction, "run.client_updates=120", "rounds=240").method.schedule
        done = sum(event.client_updates for event in schedule.events)
        assert 120 - max(event.client_updates for event in schedule.events) < done <= 120
    with pytest.warns(SettingWarning, match=r"run\.client_updates = 1e\+09: rounds = .* ends the run at .* already;"):
        made("run.client_updates=1000000000").method  # noqa: B018


# Composing


@pytest.mark.parametrize("clustering", ["major-class", "comaw", "dataw", "feduc"])
def test_fedcluster_and_hierarchical_take_any_clustering(clustering: str) -> None:
    limit = ("clustering.time_limit=0.8",)
    words = (f"clustering.method={clustering}", "rounds=8")
    cycling = made(*words, "method.name=fedcluster", "method.fraction=1.0", *(limit if clustering == "feduc" else ()))
    hierarchical = made(*words, *limit)
    assert cycling.clustering.labels.tolist() == hierarchical.clustering.labels.tolist()
    assert {event.active for event in cycling.method.schedule.events} == {(j,) for j in range(AGGREGATORS)}
    for number, experiment in enumerate((cycling, hierarchical)):
        rows = carried_out(experiment, f"run{number}")
        assert rows[-1]["train_loss"] < rows[0]["train_loss"]


def test_rounds_of_fedcluster_are_no_local_steps_and_need_be_no_multiple() -> None:
    words = ("method.name=fedcluster", "clustering.method=feduc", "method.intra_rounds=5")
    experiment = made(*words, "rounds=3", "local.steps=7")
    assert experiment.plan.problem.steps == 3 * 5 * 7


@pytest.mark.parametrize("pattern", thinned(PATTERNS, 2))
@pytest.mark.parametrize(
    ("changes", "plain"),
    thinned(
        [
            (("local.optimizer=momentum", "local.momentum=0.9", "local.steps=2"), ("local.steps=2",)),
            (("local.proximal=1.0", "local.steps=2"), ("local.steps=2",)),
            (("local.lr_decay=0.9",), ()),
            (("data.partition=dirichlet", "data.alpha=1.0", "local.batch_size=full"), ()),
        ]
    ),
    ids=["momentum", "FedProx", "lr_decay", "another partition"],
)
def test_every_pattern_composes_with_every_local_rule(
    pattern: str, changes: tuple[str, ...], plain: tuple[str, ...]
) -> None:
    word = f"method.pattern={pattern}"
    rows = carried_out(made(word, "rounds=16", *changes), "run")
    others = carried_out(made(word, "rounds=16", *plain), "plain")
    assert rows[0]["event"] == 0
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert rows[-1]["train_loss"] != others[-1]["train_loss"]
    if "local.steps=2" in changes:
        assert rows[-1]["event"] == others[-1]["event"] == 4


def test_lr_decay_is_per_local_step() -> None:
    """With a rate that all but vanishes after one step, only the events at t = 0 move anything."""
    experiment = made("method.pattern=censyn", "local.lr_decay=1e-12")
    weights = [state.starts[0]["1.weight"] for state in states_of(experiment)]  # in CenSyn the server's
    moves = [float((after - before).abs().max()) for before, after in pairwise(weights)]
    assert moves[0] > 0.01
    assert max(moves[1:]) < 1e-6


@pytest.mark.parametrize("method", ["ifca", "fedavg"])
def test_methods_without_a_network_ignore_its_settings(method: str) -> None:
    words = (f"method.name={method}", "method.fraction=1.0", "rounds=3", "data.rotations=1")
    odd = ("network.grid=[7, 9]", "network.topology=ring", "network.frequencies=transfer")
    assert not uses_network(made(*words).settings)
    assert carried_out(made(*words), "a") == carried_out(made(*words, *odd), "b")
