"""Deadlines in FedUC's patterns, where the clients of a cluster upload one after the other."""

import numpy as np
import numpy.typing as npt
import pytest

from atoll import Clustering, InputError
from atoll.clustering.feduc.problem import PATTERNS, Pattern
from atoll.methods.papers.hierarchical import Phase, hierarchical_schedule
from atoll.network.completion import completion_of
from atoll.network.network import Network
from atoll.network.network_files import matrix_network
from tests.problems import quadratics

CLIENTS = 8
POPULATION = quadratics(clients=CLIENTS)
TWO = Clustering(np.arange(CLIENTS) % 2, 2)


def late_by_hand(network: Network, labels: npt.NDArray[np.int64], deadline: float) -> set[int]:
    late = set()
    for cluster in range(network.aggregators):
        members = np.flatnonzero(labels == cluster).tolist()
        now = 0.0
        for client in sorted(members, key=lambda k: (network.compute_seconds[k], k)):
            end = max(now, network.compute_seconds[client]) + network.upload_seconds[client, cluster]
            if end > deadline:
                late.add(client)
            else:
                now = end
    return late


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("deadline", [0.6, 1.2, 2.0, 50.0])
def test_clusters_wait_for_their_clients_until_the_deadline(pattern: Pattern, deadline: float) -> None:
    rng = np.random.default_rng(1)
    near = ((1,), (0, 2), (1,))
    network = matrix_network(rng.random(CLIENTS), rng.random((CLIENTS, 3)), np.ones(3), np.ones((3, 3)), near)
    labels = np.array([0, 1, 0, 1, 0, 1, 0, -1])  # the last aggregator, and the last client, are alone
    phases = [Phase(0, Clustering(labels, 3), network)]
    late = late_by_hand(network, labels, deadline)
    assert (len(late) > 0) == (deadline < 50)
    without_deadline, schedule = (
        hierarchical_schedule(POPULATION, phases, pattern, 12, 2, 1, end)[0] for end in (np.inf, deadline)
    )
    lengths: dict[int, float] = {}
    for event in schedule.events:
        members = [k for j in event.active for k in np.flatnonzero(labels == j)]
        assert event.cohort.tolist() == [k for k in members if k not in late]
        assert event.late == len(members) - len(event.cohort)
        assert event.models_down - event.models_up == 2 * event.late
        lengths |= {j: event.seconds - began for j, began in zip(event.active, event.began, strict=True)}
    for j, length in lengths.items():
        waited = [2 * min(completion_of(network, labels)[i], deadline) + 1 for i in (0, 1)]
        assert length == pytest.approx(max(waited) if pattern in ("censyn", "decsyn") else waited[j])
    if not late:
        assert [event.seconds for event in schedule.events] == [event.seconds for event in without_deadline.events]


def test_a_deadline_that_every_cluster_misses_is_refused() -> None:
    network = matrix_network(np.ones(CLIENTS), np.full((CLIENTS, 2), 0.25), np.ones(2), np.ones((2, 2)), ((1,), (0,)))
    with pytest.raises(InputError, match=r"faults\.deadline_seconds = 1: .* the fastest needs 1\.25 s"):
        hierarchical_schedule(POPULATION, [Phase(0, TWO, network)], "censyn", 4, 2, 1, deadline_seconds=1.0)
    kept = hierarchical_schedule(POPULATION, [Phase(0, TWO, network)], "censyn", 4, 2, 1, deadline_seconds=1.25)[0]
    assert {tuple(event.cohort.tolist()) for event in kept.events} == {(0, 1)}
