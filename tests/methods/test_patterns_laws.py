"""What every schedule of FedUC's patterns must be, on any network, with empty aggregators and clients that move."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import Clustering, Event, InputError, Mix, Population, Schedule, generator
from atoll.clustering.feduc.problem import PATTERNS, Pattern
from atoll.methods.papers.hierarchical import Phase, cut_by_empty, hierarchical_schedule
from atoll.network.completion import event_seconds
from atoll.network.network import Network
from atoll.schedules.events import FROM_SERVER
from atoll.schedules.packed import BLOCK
from tests.problems import quadratics
from tests.tiers import thinned

CLIENTS = 8
POPULATION = quadratics(clients=CLIENTS)
CENTRAL, ASYNCHRONOUS = ("censyn", "cenasy"), ("cenasy", "decasy")


@dataclass(frozen=True)
class Case:
    population: Population
    phases: list[Phase]
    pattern: Pattern
    events: int
    intra_rounds: int
    local_steps: int

    @property
    def schedule(self) -> Schedule:
        rounds = self.events * self.intra_rounds * self.local_steps
        return hierarchical_schedule(
            self.population, self.phases, self.pattern, rounds, self.intra_rounds, self.local_steps
        )[0]

    def phase(self, event: Event) -> Phase:
        return next(phase for phase in reversed(self.phases) if phase.round <= event.round)

    def seconds(self, phase: Phase) -> list[float]:
        return event_seconds(phase.network, phase.clustering.labels, self.pattern, self.intra_rounds).tolist()

    def occupied(self, phase: Phase) -> list[int]:
        return np.flatnonzero(phase.clustering.sizes).tolist()


def make_phase(round_: int, clusters: int, seed: int) -> Phase:
    """Seconds are few whole numbers, so that clusters often finish together."""
    rng = generator(seed, "phase", round_)
    labels = rng.integers(-1, clusters, CLIENTS)
    labels[0] = rng.integers(clusters)
    graph = nx.gnp_random_graph(clusters, 0.3, seed=seed)
    graph.add_edges_from((int(rng.integers(j)), j) for j in range(1, clusters))
    return Phase(
        round_,
        Clustering(labels, clusters),
        Network(
            compute_seconds=rng.integers(1, 4, CLIENTS).astype(float),
            upload_seconds=rng.integers(0, 3, (CLIENTS, clusters)).astype(float),
            transfer_seconds=rng.integers(0, 3, clusters).astype(float),
            exchange_seconds=rng.integers(1, 3, (clusters, clusters)) * (1.0 - np.eye(clusters)),
            neighbours=tuple(tuple(sorted(graph[j])) for j in range(clusters)),
        ),
    )


@st.composite
def cases(draw: st.DrawFn, moving: bool = True, patterns: tuple[str, ...] = PATTERNS) -> Case:
    clusters, seed = draw(st.integers(1, 6)), draw(st.integers(0, 10_000))
    changes = sorted(draw(st.sets(st.integers(1, 60), max_size=3))) if moving else []
    return Case(
        POPULATION,
        [make_phase(round_, clusters, seed) for round_ in (0, *changes)],
        draw(st.sampled_from(patterns)),
        draw(st.integers(1, 30)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
    )


def mixes(event: Event) -> list[Mix]:
    return ([event.server] if event.server else []) + [mix for _, mix in event.starts]


@given(cases())
def test_events_are_numbered_counted_and_in_order(case: Case) -> None:
    schedule, per_event = case.schedule, case.intra_rounds * case.local_steps
    assert len(schedule) == case.events
    assert schedule.rounds == case.events * per_event
    assert [schedule.rounds_done(done) for done in range(case.events + 1)] == [
        done * per_event for done in range(case.events + 1)
    ]
    assert schedule.has_server == (case.pattern in CENTRAL)
    now = 0.0
    for index, event in enumerate(schedule.events):
        assert (event.index, event.round, event.intra_rounds) == (index, index * per_event, case.intra_rounds)
        assert len(event.active) == len(event.began) == len(event.staleness) > 0
        assert event.seconds >= now
        assert all(0 <= began < event.seconds for began in event.began)
        now = event.seconds


@given(cases())
def test_merges_are_convex_and_leave_out_empty_aggregators(case: Case) -> None:
    for event in case.schedule.events:
        phase = case.phase(event)
        held = np.bincount(
            phase.clustering.labels + 1, weights=POPULATION.sizes, minlength=phase.clustering.clusters + 1
        )
        samples = held[1:]
        assert (event.server is not None) == (case.pattern in CENTRAL)
        for mix in mixes(event):
            assert mix.server + sum(weight for _, weight in mix.published) == pytest.approx(1, abs=1e-12)
            assert mix.server >= 0
            assert all(weight > 0 and samples[j] > 0 for j, weight in mix.published)
        if case.pattern == "cenasy":
            assert dict(event.server.published) == pytest.approx(  # type: ignore[union-attr]
                {j: samples[j] / samples.sum() for j in event.active if samples[j]}
            )
        if case.pattern in CENTRAL:
            everyone = range(len(samples)) if case.pattern == "censyn" else event.active
            assert event.starts == tuple((j, FROM_SERVER) for j in everyone)
        for j, mix in event.starts if case.pattern not in CENTRAL else ():
            near = {k for k in (j, *phase.network.neighbours[j]) if samples[k]}
            assert dict(mix.published) == pytest.approx({k: samples[k] / sum(samples[list(near)]) for k in near})


@given(cases(moving=False))
def test_all_clients_of_a_cluster_train_and_models_are_counted(case: Case) -> None:
    phase = case.phases[0]
    for event in case.schedule.events:
        members = [phase.clustering.members(j) for j in event.active]
        assert event.clusters is not None
        assert event.cohort.tolist() == np.concatenate(members).tolist()
        assert event.clusters.tolist() == phase.clustering.labels[event.cohort].tolist()
        assert event.weights.tolist() == POPULATION.sizes[event.cohort].tolist()
        sent = (1 if case.pattern in CENTRAL else len(phase.network.neighbours[j]) for j in event.active)
        models = len(event.cohort) * case.intra_rounds + sum(sent)
        assert event.models_up == event.models_down == models


@given(cases(moving=False, patterns=("censyn", "decsyn")))
def test_synchronous_events_wait_for_the_slowest(case: Case) -> None:
    occupied = case.occupied(case.phases[0])
    slowest = max(case.seconds(case.phases[0])[j] for j in occupied)
    for index, event in enumerate(case.schedule.events):
        assert event.active == tuple(occupied)
        assert set(event.began) == {index * slowest}
        assert event.seconds == (index + 1) * slowest
        assert set(event.staleness) == {0}


@given(cases(moving=False, patterns=ASYNCHRONOUS))
def test_asynchronous_clusters_work_without_pause_and_finish_in_order(case: Case) -> None:
    seconds, events = case.seconds(case.phases[0]), case.schedule.events
    assert [(e.seconds, e.active) for e in events] == sorted((e.seconds, e.active) for e in events)
    for j in range(len(seconds)):
        own = [event for event in events if event.active == (j,)]
        assert [event.began[0] for event in own] == [seconds[j] * i for i in range(len(own))]
        assert [event.seconds for event in own] == [seconds[j] * (i + 1) for i in range(len(own))]
        if j in case.occupied(case.phases[0]):  # the next one would have come too late
            assert (seconds[j] * (len(own) + 1), j) > (events[-1].seconds, events[-1].active[0])
        else:
            assert not own


@given(cases())
def test_staleness_is_the_number_of_events_since_the_last_download(case: Case) -> None:
    events = case.schedule.events
    for event in events:
        for j, staleness in zip(event.active, event.staleness, strict=True):
            since = 0
            for earlier in reversed(events[: event.index]):
                if j in dict(earlier.starts):
                    break
                since += 1
            assert staleness == since


def moves_by_hand(case: Case) -> Iterator[tuple[int, float, float, list[int]]]:
    """(cluster, began, seconds, members) of each event of an asynchronous pattern, from tables of who does what."""
    began: dict[int, float] = {}
    finish: dict[int, float] = {}
    members: dict[int, list[int]] = {}
    now = 0.0
    for e in range(case.events):
        t = e * case.intra_rounds * case.local_steps
        phase = [phase for phase in case.phases if phase.round <= t][-1]
        for j in case.occupied(phase):
            if j not in finish:
                began[j], finish[j] = now, now + case.seconds(phase)[j]
                members[j] = np.flatnonzero(phase.clustering.labels == j).tolist()
        now, j = min((seconds, j) for j, seconds in finish.items())
        yield j, began[j], finish.pop(j), members[j]


@given(cases(patterns=ASYNCHRONOUS))
def test_moving_clients_finish_where_they_began(case: Case) -> None:
    events = case.schedule.events
    found = [(e.active[0], e.began[0], e.seconds, e.cohort.tolist()) for e in events]
    assert found == list(moves_by_hand(case))
    for j in range(case.phases[0].clustering.clusters):
        own = [event for event in events if event.active == (j,)]
        assert all(one.seconds <= other.began[0] for one, other in pairwise(own))


@given(cases(patterns=("censyn", "decsyn")))
def test_synchronous_events_take_the_phase_in_force(case: Case) -> None:
    now = 0.0
    for event in case.schedule.events:
        phase = case.phase(event)
        assert event.active == tuple(case.occupied(phase))
        assert event.seconds == now + max(case.seconds(phase))
        assert set(event.cohort) == set(np.flatnonzero(phase.clustering.labels >= 0))
        now = event.seconds


def still(labels: list[int], neighbours: tuple[tuple[int, ...], ...] = ((1,), (0,)), round_: int = 0) -> Phase:
    """Clients 0 and 1 compute 1 s, client 2 computes 2 s; nothing else takes time."""
    clusters = len(neighbours)
    network = Network(
        np.array([1.0, 1.0, 2.0]),
        np.zeros((3, clusters)),
        np.zeros(clusters),
        np.zeros((clusters, clusters)),
        neighbours,
    )
    return Phase(round_, Clustering(np.array(labels), clusters), network)


THREE = quadratics(clients=3)  # 8, 9 and 10 samples


def test_a_move_worked_by_hand() -> None:
    """Cluster 1 loses its clients while in flight, and later gets one again."""
    phases = [still([0, 1, 1]), still([0, 0, 0], round_=2), still([1, 0, 0], round_=4)]
    events = hierarchical_schedule(THREE, phases, "cenasy", rounds=7, intra_rounds=1)[0].events
    table = [(e.active[0], e.began[0], e.seconds, e.cohort.tolist(), e.staleness[0], e.server) for e in events]
    moved = 19 / 27
    assert table == [
        (0, 0.0, 1.0, [0], 0, Mix(1 - 8 / 27, ((0, 8 / 27),))),
        (0, 1.0, 2.0, [0], 0, Mix(1 - 8 / 27, ((0, 8 / 27),))),
        (1, 0.0, 2.0, [1, 2], 2, Mix(1.0)),  # it was in flight, but weighs nothing now
        (0, 2.0, 4.0, [0, 1, 2], 1, Mix(0.0, ((0, 1.0),))),
        (1, 4.0, 5.0, [0], 1, Mix(1 - 8 / 27, ((1, 8 / 27),))),
        (0, 4.0, 6.0, [1, 2], 1, Mix(1 - moved, ((0, moved),))),
        (1, 5.0, 6.0, [0], 1, Mix(1 - 8 / 27, ((1, 8 / 27),))),
    ]


def test_aggregators_without_clients_under_each_pattern() -> None:
    """A star whose centre is empty: its leaves never hear of each other; it hears of them only in DecSyn."""
    star = still([1, 2, 2], ((1, 2, 3), (0,), (0,), (0,)))
    shares = ((1, 8 / 27), (2, 19 / 27))
    whole = {j: (j, Mix(published=((j, 1.0),))) for j in (1, 2)}
    merges = {
        pattern: [(e.active, e.server, e.starts) for e in hierarchical_schedule(THREE, [star], pattern, 2, 1)[0].events]
        for pattern in PATTERNS
    }
    assert merges["censyn"][0] == ((1, 2), Mix(published=shares), tuple((j, FROM_SERVER) for j in range(4)))
    assert merges["cenasy"][0] == ((1,), Mix(1 - 8 / 27, ((1, 8 / 27),)), ((1, FROM_SERVER),))
    assert merges["decsyn"][0] == ((1, 2), None, ((0, Mix(published=shares)), whole[1], whole[2]))
    assert merges["decasy"] == [((1,), None, (whole[1],)), ((1,), None, (whole[1],))]


def test_empty_aggregators_that_cut_the_others_are_told() -> None:
    star = still([1, 2, 2], ((1, 2), (0,), (0,)))
    assert cut_by_empty(star.network, star.clustering)
    assert not cut_by_empty(star.network, Clustering(np.array([0, 1, 2]), 3))
    assert not cut_by_empty(star.network, Clustering(np.array([2, 2, 2]), 3))


@pytest.mark.parametrize("pattern", thinned(PATTERNS, 1))
def test_events_of_long_schedules_share_their_cohorts_and_merges(pattern: Pattern) -> None:
    """Else 10,000 events of 1000 clusters would not fit into memory."""
    clusters = 1000 if pattern in ASYNCHRONOUS else 20
    population = quadratics(clients=2 * clusters, samples=1, width=1)
    rng = generator(0, "network")
    network = Network(
        rng.uniform(1, 2, 2 * clusters),
        rng.uniform(0, 1, (2 * clusters, clusters)),
        np.zeros(clusters),
        np.zeros((clusters, clusters)),
        tuple(tuple(sorted({(j - 1) % clusters, (j + 1) % clusters})) for j in range(clusters)),
    )
    phase = Phase(0, Clustering(np.arange(2 * clusters) % clusters, clusters), network)
    events = hierarchical_schedule(population, [phase], pattern, 50_000)[0].events
    assert len(events) == 10_000
    early = events[: 2 * BLOCK]  # in the last block, which is shorter, cohorts come too rarely to be worth sharing
    assert len({id(event.cohort) for event in early}) <= clusters
    assert len({id(event.starts) for event in early}) <= clusters


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rounds": 12, "intra_rounds": 5}, r"rounds = 12: must be a multiple of .* = 5 x 1"),
        ({"rounds": 0}, "rounds = 0: must be at least 1"),
        ({"intra_rounds": 0}, r"method\.intra_rounds = 0: must be at least 1"),
        ({"local_steps": 0}, r"local\.steps = 0: must be at least 1"),
        ({"pattern": "sync"}, r"method\.pattern = 'sync': must be one of censyn, cenasy, decsyn, decasy"),
        ({"phases": []}, r"phases: begin at rounds \[\]; must begin at 0 and ascend"),
        ({"phases": [still([0, 1, 1], round_=1)]}, r"phases: begin at rounds \[1\]"),
        ({"phases": [still([0, 1, 1]), still([0, 1, 1])]}, r"phases: begin at rounds \[0, 0\]"),
        ({"phases": [still([-1, -1, -1])]}, "clustering: no client is in any cluster"),
        ({"phases": [still([0, 1, 1], ((1,), (0,), ()))], "pattern": "decasy"}, "aggregator 2 has no path"),
        ({"phases": [still([0, 1, 1]), still([0, 1, 1], ((1,), (0,), ()), 2)]}, "must be 2, the number of aggregators"),
        ({"population": POPULATION}, r"network: has 3 clients .* but data\.clients = 8"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    given_ = {"population": THREE, "phases": [still([0, 1, 1])], "pattern": "cenasy", "rounds": 10} | arguments
    with pytest.raises(InputError, match=message):
        hierarchical_schedule(**given_)  # type: ignore[arg-type]


def test_work_that_takes_no_time_is_refused() -> None:
    timeless = Network(np.zeros(3), np.zeros((3, 2)), np.zeros(2), np.zeros((2, 2)), ((1,), (0,)))
    with pytest.raises(InputError, match=r"the work of cluster 0 takes 0\.0 s; must be more than 0 and finite"):
        hierarchical_schedule(THREE, [Phase(0, Clustering(np.array([0, 1, 1]), 2), timeless)], "cenasy", 10)
