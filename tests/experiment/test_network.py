"""From settings to networks, phases and FedUC's problem: what arrives, and what is refused in one sentence."""

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from atoll import Experiment, InputError, Serial, Trainer, init, make_runs, read_model, train
from atoll.clustering.feduc.bound import evaluate
from atoll.data.population import Population
from atoll.evaluation.constants import gradient_deviations
from atoll.experiment.cluster_waits import work_ends
from atoll.experiment.networks import grid_of
from atoll.network.network import Network
from atoll.support.arrays import Floats

CLIENTS, AGGREGATORS = 12, 4
BASE = {
    "rounds": 100,
    "data": {"partition": "one-label", "size_ratio": 2.0, "clients": CLIENTS},
    "model": {"name": "linear"},
    "local": {"lr": 0.05, "steps": 1, "batch_size": 16},
    "clustering": {"clusters": AGGREGATORS, "smoothness": 2.0},
    "network": {"bandwidth_hz": 1e4},
    "method": {"name": "hierarchical", "pattern": "cenasy", "intra_rounds": 5},
}
CELLS = ((10, 10), (30, 10), (10, 30), (30, 30))  # the centres of a 2 x 2 grid, metres
MODEL_BITS = 8 * 4 * (64 * 10 + 10)
XY = np.array([(3.0 * k + 1.5, 39 - 2.0 * k) for k in range(CLIENTS)])
MILLIWATTS = np.linspace(40, 95, CLIENTS)
ZETA = np.linspace(0.002, 0.005, CLIENTS)
SAMPLES = 10 + np.arange(CLIENTS)
UPLOAD = 1 + np.arange(CLIENTS)[:, None] / 10 + np.arange(AGGREGATORS) / 100
TRANSFER = np.array([0.5, 0.6, 0.7, 0.8])
LINKS = ("network.file=links.csv",)


def made(*changes: str) -> Experiment:
    return Experiment(make_runs(BASE, changes=changes)[0])


def network_of(*changes: str) -> Network:
    return made(*changes).conditions.networks[0]


def write_table(path: Path, **columns: Any) -> None:
    """Write a CSV file with a header."""
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")


def write_clients(path: Path, **changed: Any) -> None:
    columns = {"x": XY[:, 0], "y": XY[:, 1], "power": MILLIWATTS, "seconds_per_sample": ZETA, "samples": SAMPLES}
    write_table(path, client=range(CLIENTS), **columns | changed)


def write_links(path: Path, transfer: np.ndarray = TRANSFER) -> None:
    """Write a link from each client to each aggregator, and of these to the server."""
    rows = [(str(k), f"a{j}", UPLOAD[k, j]) for k in range(CLIENTS) for j in range(AGGREGATORS)]
    rows += [(f"a{j}", "server", seconds) for j, seconds in enumerate(transfer)]
    sender, receiver, seconds = zip(*rows, strict=True)
    write_table(path, **{"from": sender, "to": receiver, "up_seconds": seconds})


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with the files that the settings name; forget modules imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_clients(Path("clients.csv"))
    np.savetxt("upload.csv", UPLOAD, delimiter=",")
    write_links(Path("links.csv"))
    write_table(Path("trace.csv"), **TRACE)
    yield tmp_path
    for name in ("linking", "placing"):
        sys.modules.pop(name, None)


# At round 30 client 3 moves, at 60 all do.
TRACE = {
    "round": [0] * CLIENTS + [30] + [60] * CLIENTS,
    "client": [*range(CLIENTS), 3, *range(CLIENTS)],
    "x": [*XY[:, 0], 5.0, *XY[::-1, 0]],
    "y": [*XY[:, 1], 6.0, *XY[::-1, 1]],
}


# The network


@pytest.mark.parametrize(
    ("clusters", "grid"), [(1, (1, 1)), (2, (1, 2)), (6, (2, 3)), (7, (1, 7)), (12, (3, 4)), (16, (4, 4)), (24, (4, 6))]
)
def test_the_grid_is_as_square_as_can_be(clusters: int, grid: tuple[int, int]) -> None:
    assert grid_of(made(f"clustering.clusters={clusters}").settings) == grid


def test_a_grid_may_be_given() -> None:
    network = network_of("clustering.clusters=6", "network.grid=[3, 2]", "network.side_metres=12")
    assert network.aggregators_xy is not None
    assert network.server_xy is not None
    assert network.aggregators_xy.tolist() == [[3, 2], [9, 2], [3, 6], [9, 6], [3, 10], [9, 10]]
    assert network.server_xy.tolist() == [6, 4]
    assert network.neighbours == ((1, 2), (0, 3), (0, 3, 4), (1, 2, 5), (2, 5), (3, 4))


def test_equal_seeds_draw_equal_networks_whatever_else_differs() -> None:
    ranges = "network.seconds_per_sample=[0.001, 0.003]"
    first = network_of(ranges)
    for others in ((), ("clustering.method=major-class",), ("method.pattern=decsyn", "method.intra_rounds=2")):
        again = network_of(ranges, *others)
        for name in ("clients_xy", "compute_seconds", "upload_seconds", "transfer_seconds", "exchange_seconds"):
            assert getattr(again, name).tobytes() == getattr(first, name).tobytes()
    other = network_of(ranges, "seed=1")
    for name in ("clients_xy", "compute_seconds", "upload_seconds"):
        assert (getattr(other, name) != getattr(first, name)).all()
    assert other.transfer_seconds.tobytes() == first.transfer_seconds.tobytes()  # nothing of it is drawn


def test_speeds_positions_and_powers_are_drawn_from_their_ranges() -> None:
    experiment = made(
        "network.seconds_per_sample=[0.002, 0.004]", "network.side_metres=10", "network.client_milliwatts=[20, 30]"
    )
    network = experiment.conditions.networks[0]
    zeta = network.compute_seconds / experiment.population.sizes
    assert 0.002 <= zeta.min() < 0.0025 < 0.0035 < zeta.max() <= 0.004
    assert network.clients_xy is not None
    assert 0 <= network.clients_xy.min() < 2 < 8 < network.clients_xy.max() <= 10
    milliwatts = milliwatts_behind(network)
    np.testing.assert_allclose(milliwatts, milliwatts[:, :1].repeat(AGGREGATORS, axis=1))
    assert 20 <= milliwatts.min() < 23 < 27 < milliwatts.max() <= 30


def milliwatts_behind(network: Network) -> Floats:
    """Return the powers that explain the upload times, by solving r = B log2(1 + p h0 d^-4 / s^2) for p."""
    assert network.clients_xy is not None
    assert network.aggregators_xy is not None
    metres = np.linalg.norm(network.clients_xy[:, None] - network.aggregators_xy, axis=2)
    snr = 2 ** (MODEL_BITS / network.upload_seconds / 1e4) - 1
    return np.asarray(snr * metres**4 * 1e-10 / 1e-4)  # -100 dBm is 1e-10 mW, -40 dB is 1e-4


def test_one_speed_is_that_of_all() -> None:
    experiment = made("network.seconds_per_sample=0.5")
    assert experiment.conditions.networks[0].compute_seconds.tolist() == (0.5 * experiment.population.sizes).tolist()


def test_everything_in_a_clients_file_is_taken_over() -> None:
    order = np.random.default_rng(0).permutation(CLIENTS)  # the column `client` counts, not the row
    columns = {"x": XY[:, 0], "y": XY[:, 1], "power": MILLIWATTS, "seconds_per_sample": ZETA, "samples": SAMPLES}
    write_table(Path("mixed.csv"), client=order, **{name: values[order] for name, values in columns.items()})
    experiment = made("network.clients_file=mixed.csv")
    network = experiment.conditions.networks[0]
    assert network.clients_xy is not None
    assert network.clients_xy.tolist() == XY.tolist()
    np.testing.assert_allclose(milliwatts_behind(network), MILLIWATTS[:, None].repeat(AGGREGATORS, axis=1))
    assert network.compute_seconds.tolist() == (ZETA * SAMPLES).tolist()
    assert experiment.plan.problem.sizes.tolist() == SAMPLES.tolist()


def test_what_a_clients_file_leaves_out_is_drawn() -> None:
    write_table(Path("few.csv"), client=range(CLIENTS), x=XY[:, 0], y=XY[:, 1])
    experiment = made("network.clients_file=few.csv", "network.seconds_per_sample=[0.001, 0.002]")
    plain = made("network.seconds_per_sample=[0.001, 0.002]")
    assert (
        experiment.conditions.networks[0].compute_seconds.tolist()
        == plain.conditions.networks[0].compute_seconds.tolist()
    )
    np.testing.assert_allclose(
        milliwatts_behind(experiment.conditions.networks[0]), milliwatts_behind(plain.conditions.networks[0])
    )
    assert experiment.plan.problem.sizes.tolist() == experiment.population.sizes.tolist()


def test_a_file_may_say_how_long_each_client_sends() -> None:
    """In the place of positions where all send to one server; aggregators still need to know who is where."""
    rows = "".join(f"{k},{0.01 * (k + 1)},{k}\n" for k in range(12))
    Path("sending.csv").write_text(f"client,seconds_per_sample,upload_seconds\n{rows}")
    clock = made("network.clients_file=sending.csv", "method.name=fedavg").plan.clock
    assert clock.upload_seconds.tolist() == list(range(12))
    pooled = made("network.clients_file=sending.csv", "method.name=centralized").plan.clock
    assert pooled.upload_seconds.tolist() == [5.5], "data of all are nobody's, so their holder is as fast as the mean"
    np.testing.assert_allclose(pooled.compute_seconds, [clock.compute_seconds.mean()])
    with pytest.raises(InputError, match="has no column 'x'"):
        network_of("network.clients_file=sending.csv")


def test_a_trace_needs_no_positions_in_the_clients_file() -> None:
    write_table(Path("speeds.csv"), client=range(CLIENTS), seconds_per_sample=ZETA)
    network = network_of("network.clients_file=speeds.csv", "network.trace_file=trace.csv")
    assert network.clients_xy is not None
    assert network.clients_xy.tolist() == XY.tolist()


@pytest.mark.filterwarnings("ignore:.*no link between aggregators is given")
@pytest.mark.parametrize("pattern", ["censyn", "cenasy", "decsyn", "decasy"])
def test_links_by_name(pattern: str) -> None:
    """The topology says who is linked where no link of two aggregators does; they hear of each other by the server."""
    write_table(Path("speeds.csv"), client=range(CLIENTS), seconds_per_sample=ZETA, samples=SAMPLES)
    network = network_of(*LINKS, "network.clients_file=speeds.csv", f"method.pattern={pattern}")
    np.testing.assert_allclose(network.upload_seconds, UPLOAD, rtol=1e-15)
    np.testing.assert_allclose(network.transfer_seconds, TRANSFER, rtol=1e-15)
    assert network.exchange_seconds[0].tolist() == pytest.approx([0, 1.1, 1.2, 1.3])
    np.testing.assert_allclose(network.compute_seconds, ZETA * SAMPLES, rtol=1e-15)
    assert network.neighbours == ((1, 2), (0, 3), (0, 3), (1, 2))
    assert network.clients_xy is None
    assert network_of(*LINKS, f"method.pattern={pattern}").upload_seconds.tolist() == network.upload_seconds.tolist()


@pytest.mark.filterwarnings("ignore:.*no link between aggregators is given")
def test_every_clustering_and_pattern_takes_links() -> None:
    """FedUC's limit is that of clients side by side: 12 uploads of up to 2.1 s in turns would take 18 s."""
    for pattern in ("censyn", "cenasy", "decsyn", "decasy"):
        for method in ("comaw", "dataw", "feduc"):
            limit = ["clustering.time_limit=3", "clustering.refine=true"] if method == "feduc" else []
            experiment = made(*LINKS, f"method.pattern={pattern}", f"clustering.method={method}", *limit)
            assert len(experiment.method.schedule) == 20
            if limit:
                assert experiment.plan.summary.max_completion_seconds <= 3


OWN = """
import networkx as nx

def wheel(aggregators):
    return nx.wheel_graph(aggregators)

def tuples():
    return nx.grid_2d_graph(2, 3)

def none():
    pass

def pairs():
    return [(0, 1)]

def short():
    return nx.path_graph(3)

def directed():
    return nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])
"""
TOPOLOGIES = [
    (["network.topology=grid"], ((1, 3), (0, 2, 4), (1, 5), (0, 4), (1, 3, 5), (2, 4))),
    (["network.topology=ring"], ((1, 5), (0, 2), (1, 3), (2, 4), (3, 5), (0, 4))),
    (["network.topology=star"], ((1, 2, 3, 4, 5), (0,), (0,), (0,), (0,), (0,))),
    (["network.topology=complete"], tuple(tuple(i for i in range(6) if i != j) for j in range(6))),
    (
        ["network.topology=edges", "network.edges=[[0, 1], [2, 1], [2, 3], [3, 4], [5, 4]]"],
        ((1,), (0, 2), (1, 3), (2, 4), (3, 5), (4,)),
    ),
    (["network.topology=edges", "network.edges=edges.txt"], ((5,), (5,), (5,), (5,), (5,), (0, 1, 2, 3, 4))),
    (["network.topology=linking:wheel"], ((1, 2, 3, 4, 5), (0, 2, 5), (0, 1, 3), (0, 2, 4), (0, 3, 5), (0, 1, 4))),
]


@pytest.mark.parametrize(("changes", "neighbours"), TOPOLOGIES, ids=[changes[-1] for changes, _ in TOPOLOGIES])
def test_topologies(changes: list[str], neighbours: tuple[tuple[int, ...], ...]) -> None:
    Path("edges.txt").write_text("# all with the last\n" + "".join(f"{j}, 5\n" for j in range(5)))
    Path("linking.py").write_text(OWN)
    assert network_of("clustering.clusters=6", "method.pattern=decsyn", *changes).neighbours == neighbours


@pytest.mark.parametrize("changes", [("regular", "degree=3"), ("erdos-renyi", "probability=0.7")])
def test_drawn_topologies_come_from_the_seed(changes: tuple[str, str]) -> None:
    words = ["clustering.clusters=10", f"network.topology={changes[0]}", f"network.{changes[1]}"]
    first, again, other = (network_of(*words, f"seed={seed}").neighbours for seed in (0, 0, 1))
    assert first == again != other
    if changes[0] == "regular":
        assert {len(near) for near in first} == {3}


# Clients that move


def test_a_trace_makes_phases_and_labels_change_only_when_clustered_anew() -> None:
    experiment = made("network.trace_file=trace.csv", "network.recluster_every=40")
    phases = {phase.round: phase for phase in experiment.plan.phases}
    assert list(phases) == [0, 30, 40, 60, 80]
    moved = XY.copy()
    moved[3] = (5, 6)
    for round_, xy in ((0, XY), (30, moved), (40, moved), (60, XY[::-1]), (80, XY[::-1])):
        network = phases[round_].network
        assert network.clients_xy is not None
        assert network.clients_xy.tolist() == xy.tolist()
        assert network.aggregators_xy is not None
        assert network.aggregators_xy.tolist() == [list(cell) for cell in CELLS]
        np.testing.assert_allclose(milliwatts_behind(network), milliwatts_behind(phases[0].network))
        assert network.compute_seconds.tolist() == phases[0].network.compute_seconds.tolist()
    labels = [phase.clustering.labels.tolist() for phase in phases.values()]
    assert labels[0] == labels[1]
    assert labels[2] == labels[3]
    assert len({tuple(each) for each in labels}) == 3


def test_samples_of_clusters_are_those_of_the_round() -> None:
    plan = made("network.trace_file=trace.csv", "network.recluster_every=40", "clustering.method=random").plan
    for round_, phase in ((0, 0), (39, 1), (40, 2), (79, 3), (80, 4)):
        labels = plan.phases[phase].clustering.labels
        expected = [int(plan.clients.population.sizes[labels == j].sum()) for j in range(AGGREGATORS)]
        assert plan.samples_of_clusters(round_).tolist() == expected


def test_in_each_phase_the_slowest_aggregator_ends_its_work_with_the_event() -> None:
    experiment = made("network.trace_file=trace.csv", "method.pattern=censyn", "clustering.method=random")
    ends = work_ends(experiment)
    assert ends is not None
    for event in experiment.method.schedule.events:
        own, ends = ends[: len(event.active)], ends[len(event.active) :]
        assert own.max() == pytest.approx(event.seconds, rel=1e-9)
        assert own.min() < event.seconds
    assert not len(ends)


def test_without_recluster_every_clients_move_but_keep_their_aggregators() -> None:
    phases = made("network.trace_file=trace.csv").plan.phases
    assert [phase.round for phase in phases] == [0, 30, 60]
    assert len({id(phase.clustering) for phase in phases}) == 1


@pytest.mark.parametrize(("every", "rounds"), [("20", [0, 20, 40, 60, 80]), ("", [*range(100)])])
def test_clients_can_walk_by_random_waypoints(every: str, rounds: list[int]) -> None:
    words = ("network.metres_per_round=0.25", f"network.recluster_every={every}")
    networks, others = made(*words).conditions.networks, made(*words, "seed=1").conditions.networks
    assert list(networks) == rounds
    assert made(*words).conditions.networks[80].upload_seconds.tobytes() == networks[80].upload_seconds.tobytes()
    ways = []
    for before, after in pairwise(rounds):
        xy, then, other = networks[before].clients_xy, networks[after].clients_xy, others[after].clients_xy
        assert xy is not None
        assert then is not None
        assert (then != other).all()
        ways.append(np.linalg.norm(then - xy, axis=1) / (after - before))
    assert 0.2 < np.mean(ways) <= np.max(ways) <= 0.25 * (1 + 1e-9)
    still = network_of().clients_xy
    assert still is not None
    assert networks[0].clients_xy is not None
    assert networks[0].clients_xy.tobytes() == still.tobytes()


def test_clients_walk_from_where_a_file_has_them() -> None:
    network = network_of("network.clients_file=clients.csv", "network.metres_per_round=1")
    assert network.clients_xy is not None
    assert network.clients_xy.tolist() == XY.tolist()


def test_what_happens_after_the_last_round_is_left_out() -> None:
    phases = made("network.trace_file=trace.csv", "network.recluster_every=40", "rounds=40").plan.phases
    assert [phase.round for phase in phases] == [0, 30]


def test_an_own_clustering_is_given_the_network_and_the_problem_of_its_round() -> None:
    Path("placing.py").write_text(
        "def nearest(network, problem):\n"
        "    assert problem.network is network\n"
        "    return network.upload_seconds.argmin(axis=1)\n"
    )
    changes = ("network.trace_file=trace.csv", "network.recluster_every=20", "clustering.method=placing:nearest")
    for phase in made(*changes, "clustering.clusters=16").plan.phases:
        xy = phase.network.clients_xy
        assert xy is not None
        if phase.round % 20 == 0:
            cells = (xy // 10).astype(int)  # 4 x 4 cells of 10 m
            assert phase.clustering.labels.tolist() == (4 * cells[:, 1] + cells[:, 0]).tolist()


def test_models_are_kept_when_clients_are_clustered_anew() -> None:
    changes = ("method.pattern=censyn", "local.lr=0.5", "rounds=60")
    moving = made("network.trace_file=trace.csv", "network.recluster_every=40", *changes)
    still = made(*changes)
    servers = []
    for experiment in (moving, still):
        executor, method = experiment.execution.make_executor(), experiment.method
        states = [step.state for step in train(method, executor, init(method, *experiment.training.initial_models()))]
        servers.append([state.server for state in states if state.server is not None])
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(*servers, strict=True)]
    assert same == [event * 5 < 40 for event in range(12)]  # other clusters, and so others' averages, from 40 on
    losses = [moving.execution.make_evaluator().score(model).train_loss for model in servers[0]]
    assert losses[8] < 0.7 * losses[0]


# The problem


def shares_of(population: Population) -> Floats:
    counts = population.class_counts()
    return np.asarray(counts / counts.sum(axis=1, keepdims=True) - counts.sum(axis=0) / counts.sum())


def softmax_gradients(experiment: Experiment, rows: list[npt.NDArray[Any]]) -> Floats:
    """Return the gradient at w0 of the mean loss on each of these samples, by the formula (p - y) x^T."""
    model = experiment.module.state_dict()
    w, b = model["1.weight"].double().numpy(), model["1.bias"].double().numpy()
    data = experiment.population.data
    gradients = []
    for own in rows:
        x = data.inputs[own].reshape(len(own), -1) / 16
        scores = x @ w.T + b
        p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        error = (p - np.eye(10)[data.targets[own]]) / len(own)
        gradients.append(np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)]))
    return np.array(gradients)


def xi_shares(experiment: Experiment) -> Floats:
    return shares_of(experiment.population)


def xi_labels(experiment: Experiment) -> Floats:
    population = experiment.population
    held = population.indices
    labels = population.data.targets[held]
    return shares_of(population) @ softmax_gradients(experiment, [held[labels == c] for c in range(10)])


def xi_gradients(experiment: Experiment) -> Floats:
    population = experiment.population
    gradients = softmax_gradients(experiment, [population.samples(k) for k in range(CLIENTS)])
    return gradients - np.average(gradients, axis=0, weights=population.sizes)


@pytest.mark.parametrize(("xi", "by_hand"), [("shares", xi_shares), ("labels", xi_labels), ("gradients", xi_gradients)])
def test_xi(xi: str, by_hand: Callable[[Experiment], Floats]) -> None:
    experiment = made(f"clustering.xi={xi}", "data.partition=dirichlet", "data.alpha=0.5")
    found, rows = experiment.plan.problem.deviations, by_hand(experiment)
    np.testing.assert_allclose(found @ found.T, rows @ rows.T, rtol=1e-4, atol=1e-6)


def test_a_warm_up_takes_the_model_where_clients_differ_most() -> None:
    words = ("local.lr=0.5", "local.steps=5", "clustering.clusters=2")
    experiment = made(*words, "clustering.xi=gradients", "clustering.warmup_rounds=3")
    found = experiment.plan.problem.deviations
    averaged = made(*words, "method.name=fedavg", "rounds=3")
    start, method = read_model(averaged.module), averaged.method
    executor = Serial(Trainer(averaged.module, averaged.population, averaged.plan.rule, 0))
    models = [start, *(step.state.server for step in train(method, executor, init(method, start)))]
    shares, spreads = experiment.population.shares, []
    for model in models:
        assert model is not None
        rows = gradient_deviations(experiment.population, experiment.module, [model])
        spreads.append(float(shares @ (rows**2).sum(axis=1)))
    assert float(shares @ (found**2).sum(axis=1)) == pytest.approx(max(spreads))
    assert max(spreads) > 1.01 * spreads[0]


def test_mu_and_smoothness_can_be_estimated() -> None:
    """On least squares both are within what the clients' Hessians allow."""
    experiment = made(
        *("data.dataset=regression", "data.partition=planted", "data.width=4"),
        *("clustering.mu=estimate", "clustering.smoothness=estimate", "clustering.initial_gap=1"),
    )
    population, problem = experiment.population, experiment.plan.problem
    spectra = []
    for client in range(CLIENTS):
        own = population.samples(client)
        x = np.hstack([population.data.inputs[own], np.ones((len(own), 1))])  # and the bias
        spectra.append(np.linalg.eigvalsh(x.T @ x / len(own)))
    values = np.array(spectra)
    assert values[:, 0].min() <= problem.mu <= values[:, -1].min()
    assert population.shares @ values[:, 0] <= problem.smoothness <= population.shares @ values[:, -1]
    assert problem.mu < problem.smoothness


@pytest.mark.parametrize("pattern", ["cenasy", "decasy"])
def test_frequencies_as_if_transfers_alone_took_time(pattern: str) -> None:
    problem = made("clustering.frequencies=transfer", f"method.pattern={pattern}").plan.problem
    network = problem.network
    slowest = [max(network.exchange_seconds[j, list(near)]) for j, near in enumerate(network.neighbours)]
    seconds = network.transfer_seconds if pattern == "cenasy" else np.array(slowest)
    assert problem.frequencies is not None
    assert problem.frequencies.tolist() == (1 / seconds).tolist()


def test_frequencies_are_for_asynchronous_patterns_and_one_aggregator_has_one() -> None:
    for given in ("transfer", "[1.0, 2.0, 3.0, 2.0]"):
        assert made(f"clustering.frequencies={given}", "method.pattern=decsyn").plan.problem.frequencies is None
    for pattern in ("censyn", "decsyn"):
        one = made("clustering.frequencies=transfer", f"method.pattern={pattern}", "clustering.clusters=1")
        assert one.plan.problem.frequencies is None
    alone = made("clustering.frequencies=transfer", "method.pattern=decasy", "clustering.clusters=1").plan.problem
    assert alone.frequencies is not None
    assert alone.frequencies.tolist() == [1.0]


def test_numbers_arrive_in_the_problem() -> None:
    given = "clustering.frequencies=[1.0, 2.0, 3.0, 2.0]"
    experiment = made(
        *(given, "clustering.time_limit=7.5", "clustering.mu=0.3", "clustering.initial_gap=1.5", "rounds=120"),
        *("local.lr=0.1", "local.lr_factor=0.5", "local.steps=2", "method.intra_rounds=4", "method.pattern=decasy"),
    )
    problem = experiment.plan.problem
    assert (problem.pattern, problem.steps, problem.intra_rounds, problem.local_steps) == ("decasy", 120, 4, 2)
    assert (problem.lr, problem.mu, problem.smoothness, problem.initial_gap) == (0.05, 0.3, 2.0, 1.5)
    assert problem.limits.tolist() == [7.5] * AGGREGATORS
    assert problem.seconds is None
    assert problem.network is experiment.conditions.networks[0]
    assert evaluate(problem, experiment.clustering.labels).psi.tolist() == [1 / 8, 2 / 8, 3 / 8, 2 / 8]
    assert np.isinf(made().plan.problem.limits).all()


def test_the_initial_gap_is_the_loss_at_the_start() -> None:
    experiment = made()
    loss = experiment.execution.make_evaluator().score(read_model(experiment.module)).train_loss
    assert experiment.plan.problem.initial_gap == pytest.approx(loss, abs=1e-12)
    before = {name: tensor.clone() for name, tensor in experiment.module.state_dict().items()}
    made_again = made("clustering.xi=gradients", "clustering.warmup_rounds=2", "clustering.mu=estimate")
    assert made_again.plan.problem.initial_gap == experiment.plan.problem.initial_gap
    for name, tensor in made_again.module.state_dict().items():  # w0 is still what the run begins with
        assert torch.equal(tensor, before[name])


def test_the_clock_and_the_bound_read_the_same_frequencies() -> None:
    given = [4.0, 2.0, 1.0, 3.0]
    problem = made(f"network.frequencies={given}").plan.problem
    assert problem.frequencies is problem.network.frequencies
    assert problem.frequencies is not None
    assert problem.frequencies.tolist() == given
    network = network_of("network.frequencies=transfer")
    assert network.frequencies is not None
    assert network.frequencies.tolist() == (1 / network.transfer_seconds).tolist()


@pytest.mark.parametrize("pattern", ["cenasy", "decasy"])
def test_one_aggregator_waits_for_nobody(pattern: str) -> None:
    changes = (f"method.pattern={pattern}", "clustering.clusters=1")
    waiting, free = (made(*changes, *more).method.schedule for more in (["network.frequencies=transfer"], []))
    assert [event.seconds for event in waiting.events] == [event.seconds for event in free.events]


def test_limits_may_be_one_an_aggregator() -> None:
    np.savetxt("limits.csv", [[3.0], [2.0], [4.0], [5.0]])
    for given in ("[3, 2, 4, 5]", "limits.csv"):
        assert made(f"clustering.time_limit={given}").plan.problem.limits.tolist() == [3, 2, 4, 5]


# What is refused

REFUSED: list[tuple[list[str], list[str]]] = [
    (["network.grid=[3, 2]"], ["network.grid = [3, 2]", "clustering.clusters = 4"]),
    (["network.seconds_per_sample=[0.2, 0.1]"], ["network.seconds_per_sample = [0.2, 0.1]", "the lower first"]),
    (["network.seconds_per_sample=-0.1"], ["network.seconds_per_sample = -0.1", "of at least 0"]),
    (["network.seconds_per_sample=0"], ["client 0 computes for 0.0 s", "positive"]),
    (["network.seconds_per_sample=[0.1]"], ["network.seconds_per_sample = [0.1]"]),
    (["network.seconds_per_sample=nan"], ["network.seconds_per_sample = nan", "a finite number"]),
    (["network.client_milliwatts=[90, 60]"], ["network.client_milliwatts = [90", "the lower first"]),
    (["network.clients_file=absent.csv"], ["absent.csv", "No such file"]),
    (["network.clients_file=clients.csv", "data.clients=13"], ["'clients.csv'", "has 12 clients", "data.clients = 13"]),
    (["network.clients_file=slow.csv"], ["slow.csv", "'seconds_per_sample', row 5 is -1", "positive"]),
    (["network.clients_file=lost.csv"], ["lost.csv", "'x', row 3 is nan", "a finite number"]),
    (["network.clients_file=near.csv"], ["client 7 and aggregator 2 are both at (10.0, 30.0)", "apart"]),
    (["network.trace_file=trace.csv", "data.clients=13"], ["'trace.csv'", "has 12 clients", "data.clients = 13"]),
    (["network.recluster_every=10"], ["network.recluster_every = 10", "network.trace_file", "metres_per_round"]),
    (["network.metres_per_round=1", "network.trace_file=trace.csv"], ["network.metres_per_round", "one of them"]),
    (["network.metres_per_round=41"], ["network.metres_per_round = 41", "40"]),
    (["network.metres_per_round=0"], ["network.metres_per_round = 0", "greater than 0"]),
    ([*LINKS, "network.metres_per_round=1"], ["network.metres_per_round", "network.file"]),
    ([*LINKS, "network.trace_file=trace.csv"], ["network.trace_file", "network.file"]),
    ([*LINKS, "network.recluster_every=10"], ["network.recluster_every", "network.file"]),
    ([*LINKS, "network.downloads=true"], ["network.downloads", "network.file"]),
    ([*LINKS, "data.clients=11"], ["links.csv", "unknown id '11'"]),
    ([*LINKS, "data.clients=13"], ["links.csv", "client '12' has no link to an aggregator"]),
    ([*LINKS, "clustering.clusters=3"], ["'links.csv'", "4 aggregators", "clustering.clusters = 3"]),
    ([*LINKS, "network.clients_file=few.csv"], ["few.csv", "has 11 clients", "data.clients = 12"]),
    (["network.file=absent.csv"], ["absent.csv", "No such file"]),
    (
        [*LINKS, "network.frequencies=[1.0, 2.0, 3.0, 4.0]"],
        ["network.frequencies = [1.0, 2.0, 3.0, 4.0]", "network.file", "give one of them"],
    ),
    (["network.frequencies=[1, 2, 3]"], ["network.frequencies = [1.0, 2.0, 3.0]", "clustering.clusters = 4"]),
    (["network.frequencies=transfer", "method.pattern=censyn"], ["network.frequencies", "'cenasy'", "'censyn'"]),
    (
        ["network.file=beside.csv", "network.frequencies=transfer"],
        ["network.frequencies = 'transfer'", "aggregator 1 takes no time"],
    ),
    (["network.topology=rng"], ["network.topology = 'rng'", "did you mean 'ring'?", "module:function"]),
    (["network.topology=regular"], ["network.degree is not set", "'regular'"]),
    (["network.topology=erdos-renyi"], ["network.probability is not set", "'erdos-renyi'"]),
    (["network.topology=edges"], ["network.edges is not set", "'edges'"]),
    (["network.topology=edges", "network.edges=[[0, 4]]"], ["network.edges", "aggregator 4", "0 to 3"]),
    (["network.topology=regular", "network.degree=4"], ["network.degree = 4", "0 to 3"]),
    (["network.topology=linking:none"], ["network.topology = 'linking:none'", "networkx", "nothing"]),
    (["network.topology=linking:pairs"], ["network.topology = 'linking:pairs'", "networkx", "'list'"]),
    (["network.topology=linking:tuples", "clustering.clusters=6"], ["network.topology", "(0, 0)", "0 to 5"]),
    (["network.topology=linking:short"], ["network.topology", "3 nodes", "4 aggregators"]),
    ([*LINKS, "network.topology=linking:short"], ["network.topology", "3 nodes", "4 aggregators"]),
    (["network.topology=linking:directed", "clustering.clusters=6"], ["neighbour", "not the other way round"]),
    (["network.topology=edges", "network.edges=[[0, 1], [2, 3]]", "method.pattern=decasy"], ["0, 1 have no path"]),
    (["network.topology=erdos-renyi", "network.probability=0", "method.pattern=decsyn"], ["aggregator 0 has no path"]),
    (["rounds=99"], ["rounds = 99", "a multiple of", "5 x 1"]),
    (["rounds=15", "local.steps=2"], ["rounds = 15", "a multiple of", "5 x 2"]),
]
PROBLEM_REFUSED: list[tuple[list[str], list[str]]] = [
    (["clustering.warmup_rounds=2"], ["clustering.warmup_rounds = 2", "'gradients'", "'labels'"]),
    (["clustering.warmup_rounds=2", "clustering.xi=shares"], ["clustering.warmup_rounds = 2", "'shares'"]),
    (["clustering.mu=20"], ["clustering.mu = 20", "less than 1 / local.lr = 20"]),
    (["clustering.mu=2", "local.lr=0.1", "local.lr_factor=5"], ["clustering.mu = 2", "less than 1 / local.lr = 2"]),
    (["clustering.mu=estimat"], ["clustering.mu = 'estimat'", "'estimate'"]),
    (["clustering.frequencies=[1.0, 2.0]"], ["frequency of aggregator", "[2]", "[4]"]),
    (["rounds=99"], ["rounds = 99", "a multiple of"]),
    (
        ["clustering.frequencies=[1, 2, 3, 5]", "network.frequencies=[1, 2, 3, 4]"],
        ["clustering.frequencies = [1.0, 2.0, 3.0, 5.0]", "network.frequencies = [1.0, 2.0, 3.0, 4.0]"],
    ),
    (["clustering.time_limit=[1, 2]"], ["clustering.time_limit = [1.0, 2.0]", "clustering.clusters = 4"]),
    (["clustering.time_limit=upload.csv"], ["clustering.time_limit = 'upload.csv'", "12 x 4", "= 4"]),
]


@pytest.mark.parametrize(("changes", "told"), REFUSED, ids=[" ".join(changes) for changes, _ in REFUSED])
def test_networks_that_are_refused(changes: list[str], told: list[str]) -> None:
    zeta, x, y = ZETA.copy(), XY[:, 0].copy(), XY[:, 1].copy()
    zeta[4], x[2] = -1, np.nan
    write_clients(Path("slow.csv"), seconds_per_sample=zeta)
    write_clients(Path("lost.csv"), x=x)
    x[2], x[7], y[7] = 1, 10, 30
    write_clients(Path("near.csv"), x=x, y=y)
    write_links(Path("beside.csv"), TRANSFER * [1, 0, 1, 1])
    write_table(Path("few.csv"), client=range(11), samples=SAMPLES[:11])
    Path("linking.py").write_text(OWN)
    with pytest.raises(InputError) as error:
        made(*changes).check()
    assert_sentence(str(error.value), told)


@pytest.mark.parametrize(("changes", "told"), PROBLEM_REFUSED, ids=[" ".join(c) for c, _ in PROBLEM_REFUSED])
def test_problems_that_are_refused(changes: list[str], told: list[str]) -> None:
    with pytest.raises(InputError) as error:
        made(*changes).plan.problem  # noqa: B018
    assert_sentence(str(error.value), told)


def assert_sentence(sentence: str, told: list[str]) -> None:
    assert "\n" not in sentence
    for words in told:
        assert words in sentence


@pytest.mark.parametrize("pattern", ["censyn", "cenasy"])
def test_central_patterns_need_no_links_between_aggregators(pattern: str) -> None:
    experiment = made(
        "network.topology=edges", "network.edges=[[0, 1], [2, 3]]", f"method.pattern={pattern}", "rounds=10"
    )
    experiment.check()
    assert len(experiment.method.schedule) == 2


def test_aggregators_are_where_a_file_says() -> None:
    places = np.arange(2.0 * AGGREGATORS).reshape(-1, 2) ** 2
    order = np.random.default_rng(0).permutation(AGGREGATORS)
    write_table(Path("aggregators.csv"), aggregator=order, x=places[order, 0], y=places[order, 1])
    network = network_of("network.aggregators_file=aggregators.csv")
    assert network.aggregators_xy is not None
    assert network.aggregators_xy.tolist() == places.tolist()
    assert network.server_xy is not None
    np.testing.assert_allclose(network.server_xy, places.mean(axis=0))


def test_the_server_is_moved_to_where_no_aggregator_is() -> None:
    write_table(Path("line.csv"), aggregator=range(AGGREGATORS), x=[-3, 0, 1, 2], y=[-3, 0, 1, 2])
    server_xy = network_of("network.aggregators_file=line.csv").server_xy
    assert server_xy is not None
    assert server_xy.tolist() == [3, 3]


def test_bad_places_of_aggregators_are_refused() -> None:
    write_table(Path("two.csv"), aggregator=range(2), x=[0, 9], y=[0, 9])
    write_table(Path("twice.csv"), aggregator=[0] * AGGREGATORS, x=range(AGGREGATORS), y=range(AGGREGATORS))
    write_table(Path("flat.csv"), aggregator=range(AGGREGATORS), x=range(AGGREGATORS))
    for file, told in (
        (
            "two.csv",
            rf"network.aggregators_file = 'two.csv': has 2 aggregators, but clustering.clusters = {AGGREGATORS}",
        ),
        ("twice.csv", r"network.aggregators_file: twice.csv: aggregator 0 is in row 1 and again in row 2"),
        ("flat.csv", r"network.aggregators_file: flat.csv: has no column 'y'"),
        ("none.csv", r"network.aggregators_file: none.csv: cannot be read"),
    ):
        with pytest.raises(InputError, match=told):
            network_of(f"network.aggregators_file={file}")
    with pytest.raises(InputError, match=r"network.grid: cannot be used with network.aggregators_file"):
        network_of("network.aggregators_file=two.csv", f"network.grid=[1, {AGGREGATORS}]")
    with pytest.raises(InputError, match=r"network.aggregators_file: cannot be used with network.file"):
        network_of(*LINKS, "network.aggregators_file=two.csv")
