"""FedUC's four patterns against slow twins written by hand in NumPy from Algorithm 1 and equations (5) to (11).

The twins simulate the process in plain form: every aggregator has its model, its clock and its caches. They share
with the schedules nothing but the population and the matrices of seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest

from atoll import (
    Clustering,
    LocalRule,
    Method,
    Population,
    Serial,
    State,
    Trainer,
    fedavg,
    generator,
    init,
    read_model,
    train,
)
from atoll.clustering.feduc.problem import PATTERNS, Pattern
from atoll.local.rule import momentum, sgd
from atoll.methods.papers.hierarchical import hierarchical
from atoll.network.network import Network
from atoll.support.arrays import Floats
from tests.problems import as_vector, linear_module, quadratics
from tests.tiers import thinned

POPULATION = quadratics(clients=9)
RING = ((1, 3), (0, 2), (1, 3), (0, 2))
STAR = ((1, 2, 3), (0,), (0,), (0,))
LABELS = {
    "all in use": [1, 3, 0, 2, 1, 0, 3, 3, 2],
    "1 empty, a client left out": [2, 3, 0, 2, -1, 0, 3, 3, 2],
    "0 and 3 empty": [1, 1, 2, 2, 1, 2, 1, 1, 2],
}
EVENTS = 10
INTRA_ROUNDS = 2
BETA = 0.5


def random_network(neighbours: tuple[tuple[int, ...], ...], seed: int, clients: int = 9) -> Network:
    rng = generator(seed, "network")
    exchange = rng.uniform(0.1, 1, (len(neighbours), len(neighbours)))
    np.fill_diagonal(exchange, 0)
    return Network(
        compute_seconds=rng.uniform(0.2, 2, clients),
        upload_seconds=rng.uniform(0.1, 1, (clients, len(neighbours))),
        transfer_seconds=rng.uniform(0.1, 1, len(neighbours)),
        exchange_seconds=exchange,
        neighbours=neighbours,
    )


@dataclass
class Cluster:
    """One aggregator with its clients: what it would hold in memory."""

    members: list[int]
    samples: int  # D_j
    completion: float
    model: Floats  # w^j, which its clients start from
    finish: float = 0.0
    waited_since: int = -1  # the event in which it last downloaded
    caches: dict[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """What is seen after an event."""

    seconds: float
    active: list[int]
    staleness: list[int]
    server: Floats | None
    starts: dict[int, Floats]


def completion_by_hand(members: list[int], network: Network, j: int) -> float:
    """(50)."""
    t = 0.0
    for i in sorted(members, key=lambda i: (network.compute_seconds[i], i)):
        t = max(t, network.compute_seconds[i]) + network.upload_seconds[i, j]
    return t


def clusters_by_hand(labels: list[int], network: Network, w0: Floats) -> dict[int, Cluster]:
    clusters = {}
    for j in sorted(set(labels) - {-1}):
        members = [i for i, label in enumerate(labels) if label == j]
        samples = sum(len(POPULATION.samples(i)) for i in members)
        clusters[j] = Cluster(members, samples, completion_by_hand(members, network, j), w0)
    for j, cluster in clusters.items():
        cluster.caches = {other: w0 for other in (j, *network.neighbours[j]) if other in clusters}
    return clusters


def train_by_hand(i: int, w: Floats, lr: float, steps: int, beta: float) -> Floats:
    """(5), full batches."""
    own = POPULATION.samples(i)
    x, y = POPULATION.data.inputs[own], POPULATION.data.targets[own]
    u = np.zeros_like(w)
    for _ in range(steps):
        u = beta * u + x.T @ (x @ w - y) / len(y)
        w = w - lr * u
    return w


def work_by_hand(cluster: Cluster, t: int, rule: LocalRule, beta: float) -> Floats:
    """(6), T' times; t is the local step index at which the event begins."""
    w = cluster.model
    for _ in range(INTRA_ROUNDS):
        returned = [train_by_hand(i, w, rule.lr * rule.lr_decay**t, rule.steps, beta) for i in cluster.members]
        w = np.average(returned, axis=0, weights=[len(POPULATION.samples(i)) for i in cluster.members])
    return w


Twin = Callable[[dict[int, Cluster], Network, Floats, LocalRule, float], list[Moment]]


def censyn_by_hand(
    clusters: dict[int, Cluster], network: Network, w: Floats, rule: LocalRule, beta: float
) -> list[Moment]:
    moments, clock = [], 0.0
    D = sum(c.samples for c in clusters.values())
    for r in range(EVENTS):
        done = {j: work_by_hand(c, r * INTRA_ROUNDS * rule.steps, rule, beta) for j, c in clusters.items()}
        clock += max(INTRA_ROUNDS * c.completion + network.transfer_seconds[j] for j, c in clusters.items())
        w = np.sum([c.samples / D * done[j] for j, c in clusters.items()], axis=0)  # (7)
        for c in clusters.values():
            c.model = w
        moments.append(Moment(clock, [*clusters], [0] * len(clusters), w, dict.fromkeys(clusters, w)))
    return moments


def cenasy_by_hand(
    clusters: dict[int, Cluster], network: Network, w: Floats, rule: LocalRule, beta: float
) -> list[Moment]:
    moments = []
    D = sum(c.samples for c in clusters.values())
    for j, c in clusters.items():
        c.finish = INTRA_ROUNDS * c.completion + network.transfer_seconds[j]
    for r in range(EVENTS):
        j = min(clusters, key=lambda j: (clusters[j].finish, j))
        c = clusters[j]
        theta = c.samples / D
        w = (1 - theta) * w + theta * work_by_hand(c, r * INTRA_ROUNDS * rule.steps, rule, beta)  # (8)
        c.model = w
        models = {k: other.model for k, other in clusters.items()}
        moments.append(Moment(c.finish, [j], [r - c.waited_since - 1], w, models))
        c.waited_since = r
        c.finish += INTRA_ROUNDS * c.completion + network.transfer_seconds[j]
    return moments


def decsyn_by_hand(
    clusters: dict[int, Cluster], network: Network, w: Floats, rule: LocalRule, beta: float
) -> list[Moment]:
    moments, clock = [], 0.0
    for r in range(EVENTS):
        done = {j: work_by_hand(c, r * INTRA_ROUNDS * rule.steps, rule, beta) for j, c in clusters.items()}
        clock += max(
            INTRA_ROUNDS * c.completion + max(network.exchange_seconds[j, k] for k in network.neighbours[j])
            for j, c in clusters.items()
        )
        models = {}
        for j in range(network.aggregators):  # an aggregator without clients receives too
            S_j = [k for k in (j, *network.neighbours[j]) if k in clusters]
            if S_j:
                total = sum(clusters[k].samples for k in S_j)
                models[j] = np.sum([clusters[k].samples / total * done[k] for k in S_j], axis=0)  # (10)
        for j, c in clusters.items():
            c.model = models[j]
        moments.append(Moment(clock, [*clusters], [0] * len(clusters), None, models))
    return moments


def decasy_by_hand(
    clusters: dict[int, Cluster], network: Network, w: Floats, rule: LocalRule, beta: float
) -> list[Moment]:
    moments = []

    def seconds(j: int) -> float:
        slowest = max(network.exchange_seconds[j, k] for k in network.neighbours[j])
        return INTRA_ROUNDS * clusters[j].completion + slowest

    for j, c in clusters.items():
        c.finish = seconds(j)
    for r in range(EVENTS):
        j = min(clusters, key=lambda j: (clusters[j].finish, j))
        c = clusters[j]
        sent = work_by_hand(c, r * INTRA_ROUNDS * rule.steps, rule, beta)
        c.caches[j] = sent
        total = sum(clusters[k].samples for k in c.caches)
        c.model = np.sum([clusters[k].samples / total * cached for k, cached in c.caches.items()], axis=0)  # (11)
        for k in network.neighbours[j]:
            if k in clusters:
                clusters[k].caches[j] = sent
        models = {k: other.model for k, other in clusters.items()}
        moments.append(Moment(c.finish, [j], [r - c.waited_since - 1], None, models))
        c.waited_since = r
        c.finish += seconds(j)
    return moments


TWINS: dict[Pattern, Twin] = {
    "censyn": censyn_by_hand,
    "cenasy": cenasy_by_hand,
    "decsyn": decsyn_by_hand,
    "decasy": decasy_by_hand,
}
SGD = LocalRule(sgd, lr=0.05, steps=1, batch_size="full")
HEAVY_BALL = LocalRule(partial(momentum, momentum=BETA), lr=0.03, steps=2, batch_size="full", lr_decay=0.95)
BATCHES = LocalRule(partial(momentum, momentum=BETA), lr=0.03, steps=2, batch_size=4)


def make_method(
    pattern: Pattern,
    labels: list[int],
    network: Network,
    rule: LocalRule,
    events: int = EVENTS,
    intra_rounds: int = INTRA_ROUNDS,
) -> Method:
    clustering = Clustering(np.array(labels), network.aggregators)
    rounds = events * intra_rounds * rule.steps
    return hierarchical(POPULATION, clustering, network, rule, rounds, pattern, intra_rounds)


def train_to_end(method: Method, population: Population = POPULATION, after: State | None = None) -> list[State]:
    module = linear_module()
    executor = Serial(Trainer(module, population, method.rule, seed=3))
    return [step.state for step in train(method, executor, after or init(method, read_model(module)))]


def server_of(state: State) -> Floats:
    assert state.server is not None
    return as_vector(state.server)


@pytest.mark.parametrize(
    ("labels", "neighbours"), thinned(list(zip(LABELS.values(), (RING, RING, STAR), strict=True)), 1), ids=LABELS
)
@pytest.mark.parametrize(("rule", "beta"), [(SGD, 0.0), (HEAVY_BALL, BETA)], ids=["sgd", "momentum, decaying, T''=2"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_equals_its_twin(
    pattern: Pattern, rule: LocalRule, beta: float, labels: list[int], neighbours: tuple[tuple[int, ...], ...]
) -> None:
    network = random_network(neighbours, seed=len(set(labels)))
    w0 = as_vector(read_model(linear_module()))
    expected = TWINS[pattern](clusters_by_hand(labels, network, w0), network, w0, rule, beta)
    method = make_method(pattern, labels, network, rule)
    states = train_to_end(method)
    assert len(states) == len(expected) == EVENTS
    for event, state, moment in zip(method.schedule.events, states, expected, strict=True):
        where = f"event {event.index}"
        assert event.seconds == pytest.approx(moment.seconds, rel=1e-12)
        assert (list(event.active), list(event.staleness)) == (moment.active, moment.staleness), where
        assert (state.server is None) == (moment.server is None)
        if moment.server is not None:
            np.testing.assert_allclose(server_of(state), moment.server, rtol=0, atol=1e-10, err_msg=where)
        for j, model in moment.starts.items():
            np.testing.assert_allclose(as_vector(state.starts[j]), model, rtol=0, atol=1e-10, err_msg=f"{where}, {j}")
    moved = [np.abs(as_vector(states[-1].starts[j]) - w0).max() for j in expected[0].active]
    assert max(moved) > 1e-2


def test_asynchronous_twins_visit_clusters_unevenly() -> None:
    """Else they would not tell stale starts from fresh ones."""
    network = random_network(RING, seed=4)
    for pattern in ("cenasy", "decasy"):
        events = make_method(pattern, LABELS["all in use"], network, SGD).schedule.events
        assert len({tuple(event.active for event in events[e : e + 4]) for e in range(0, 8, 4)}) > 1
        assert len({event.staleness[0] for event in events}) > 2


def test_censyn_with_one_intra_round_is_fedavg_over_all_clients() -> None:
    method = make_method("censyn", LABELS["all in use"], random_network(RING, 1), BATCHES, intra_rounds=1)
    ours, theirs = train_to_end(method), train_to_end(fedavg(POPULATION, BATCHES, EVENTS, fraction=1.0))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(server_of(one), server_of(other), rtol=0, atol=1e-12)


@pytest.mark.more
def test_with_one_aggregator_every_pattern_is_the_same_run_to_the_bit() -> None:
    network = random_network(((),), seed=2)
    runs = {pattern: train_to_end(make_method(pattern, [0] * 9, network, BATCHES)) for pattern in PATTERNS}
    for pattern, states in runs.items():
        for state, reference in zip(states, runs["censyn"], strict=True):
            assert as_vector(state.starts[0]).tobytes() == server_of(reference).tobytes(), pattern
            assert as_vector(state.published[0]).tobytes() == server_of(reference).tobytes(), pattern


@pytest.mark.more
@pytest.mark.parametrize("labels", thinned(LABELS.values(), 1), ids=LABELS)
def test_decsyn_on_a_complete_graph_is_censyn(labels: list[int]) -> None:
    network = random_network(tuple(tuple(k for k in range(4) if k != j) for j in range(4)), seed=3)
    central, decentral = (
        train_to_end(make_method(pattern, labels, network, BATCHES)) for pattern in ("censyn", "decsyn")
    )
    for one, other in zip(central, decentral, strict=True):
        for j in range(4):
            np.testing.assert_allclose(as_vector(other.starts[j]), server_of(one), rtol=0, atol=1e-12)


def test_cenasy_with_equal_clocks_visits_clusters_in_turn() -> None:
    even = Network(np.full(9, 0.5), np.full((9, 3), 0.25), np.full(3, 0.1), np.zeros((3, 3)), ((1,), (0, 2), (1,)))
    schedule = make_method("cenasy", [0, 1, 2] * 3, even, SGD, events=12).schedule
    assert [event.active for event in schedule.events] == [(0,), (1,), (2,)] * 4
    assert [event.staleness for event in schedule.events] == [(0,), (1,), *[(2,)] * 10]


@pytest.mark.parametrize("pattern", ["cenasy", "decasy"])
def test_staleness_worked_by_hand(pattern: Pattern) -> None:
    """Cluster 0 takes 2 s, cluster 1 takes 3 s."""
    seconds = np.repeat([0.75, 1.25], [5, 4])
    network = Network(seconds, np.zeros((9, 2)), np.full(2, 0.5), 0.5 * (1 - np.eye(2)), ((1,), (0,)))
    events = make_method(pattern, [0] * 5 + [1] * 4, network, SGD, events=7).schedule.events
    table = [(event.began[0], event.seconds, event.active[0], event.staleness[0]) for event in events]
    assert table == [
        (0.0, 2.0, 0, 0),
        (0.0, 3.0, 1, 1),
        (2.0, 4.0, 0, 1),
        (4.0, 6.0, 0, 0),
        (3.0, 6.0, 1, 2),
        (6.0, 8.0, 0, 1),
        (6.0, 9.0, 1, 1),
    ]


@pytest.mark.more
@pytest.mark.parametrize("pattern", thinned(PATTERNS, 1))
def test_a_run_goes_on_from_any_state_to_the_same_bits(pattern: Pattern) -> None:
    method = make_method(pattern, LABELS["all in use"], random_network(RING, 5), BATCHES)
    whole = train_to_end(method)
    for done in (1, 4, 9):
        resumed = train_to_end(method, after=whole[done - 1])
        assert len(resumed) == EVENTS - done
        for one, other in zip(whole[done:], resumed, strict=True):
            for j in range(4):
                assert as_vector(one.starts[j]).tobytes() == as_vector(other.starts[j]).tobytes()
                assert as_vector(one.published[j]).tobytes() == as_vector(other.published[j]).tobytes()


def test_the_learning_rate_decays_by_local_steps() -> None:
    decaying = replace(SGD, lr_decay=0.5)
    method = make_method("censyn", [0] * 9, random_network(((),), 6), decaying, events=2)
    w0 = as_vector(read_model(linear_module()))
    cluster = clusters_by_hand([0] * 9, random_network(((),), 6), w0)[0]
    cluster.model = work_by_hand(cluster, 0, SGD, 0.0)
    by_hand = work_by_hand(cluster, 0, replace(SGD, lr=SGD.lr / 4), 0.0)  # T'T'' = 2 local steps are over
    np.testing.assert_allclose(server_of(train_to_end(method)[-1]), by_hand, rtol=0, atol=1e-12)
