"""Upload seconds that are computed when asked for are those of the table, to the bit."""

import numpy as np
import pytest

from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.feduc import feduc
from atoll.clustering.feduc.problem import PATTERNS, Pattern, Problem
from atoll.network import wireless
from atoll.network.completion import completion_of, event_seconds, late_clients
from atoll.network.computed_rows import ComputedRows
from atoll.network.network import Network
from atoll.network.topology import grid
from atoll.network.wireless import draw_watts, grid_positions, place_clients, wireless_network
from atoll.support.errors import InputError

CLIENTS = 60


def some_network(downloads: bool = True, side_metres: float = 40.0) -> Network:
    rng = np.random.default_rng(3)
    aggregators_xy, server_xy = grid_positions(3, 4, side_metres)
    clients_xy, watts = place_clients(CLIENTS, side_metres, rng), draw_watts(CLIENTS, rng)
    computing = rng.uniform(0.5, 2.0, CLIENTS)
    return wireless_network(
        clients_xy, aggregators_xy, server_xy, computing, watts, 1e6, grid(3, 4), downloads=downloads
    )


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> tuple[Network, Network]:
    """The same network with seconds held and computed."""
    held = some_network()
    monkeypatch.setattr(wireless, "_HELD", 0)
    computed = some_network()
    assert {type(computed.upload_seconds), type(computed.download_seconds)} == {ComputedRows}
    return held, computed


@pytest.mark.parametrize(
    "where",
    [
        5,
        (5, 7),
        (5, np.array([1, 0])),
        np.array([9, 2, 2, 40]),
        np.arange(CLIENTS) % 3 == 0,
        (np.array([9, 2, 2, 40]), 3),
        (np.array([9, 2, 2, 40]), np.array([0, 11, 3, 0])),
        (slice(None), 4),
        slice(10, 20),
    ],
    ids=str,
)
def test_rows_are_those_of_the_table(networks: tuple[Network, Network], where: object) -> None:
    held, computed = networks
    for name in ("upload_seconds", "download_seconds"):
        np.testing.assert_array_equal(getattr(computed, name)[where], getattr(held, name)[where])


def test_the_whole_and_each_rows_least(networks: tuple[Network, Network]) -> None:
    held, computed = (network.upload_seconds for network in networks)
    np.testing.assert_array_equal(np.asarray(computed), held)
    np.testing.assert_array_equal(computed.min(axis=1), held.min(axis=1))
    np.testing.assert_array_equal(computed.argmin(axis=1), held.argmin(axis=1))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_clusterings_and_clocks_are_equal(networks: tuple[Network, Network], pattern: Pattern) -> None:
    """With limits that some clients can only meet by moving others, so that every part of the search is used."""
    shares = np.random.default_rng(0).dirichlet(np.full(5, 0.3), CLIENTS)
    found = []
    for network in networks:
        limits = np.full(network.aggregators, 2.2)
        problem = Problem(pattern, network, np.ones(CLIENTS), shares - shares.mean(axis=0), limits, steps=1000)
        labels = feduc(problem, opening="nearest").labels
        times = completion_of(network, labels), event_seconds(network, labels, pattern, 5)
        found.append((labels, *times, late_clients(network, labels, 1.5), evaluate(problem, labels).bound))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_seconds_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wireless, "_HELD", 0)
    with pytest.raises(InputError, match="the longest upload or download takes inf s; it must be finite"):
        some_network(side_metres=1e90)
