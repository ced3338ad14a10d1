"""Shared links: max-min fair rates and finishing times, against cases by hand and a slow twin in exact fractions."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.network.completion import (
    broadcast_down_seconds,
    completion_of,
    completion_seconds,
    event_seconds,
    late_clients,
)
from atoll.network.network import Network
from atoll.network.sharing import Sharing, fair_rates, finish_seconds
from atoll.network.transfers import pattern_transfer_seconds
from tests.tiers import part_of

INF = float("inf")

# Senders' own limits, the links that each crosses, the links' capacities, and the rates worked out on paper.
BY_HAND: list[tuple[list[float], list[list[int]], list[float], list[float]]] = [
    ([INF, INF], [[0], [0]], [10], [5, 5]),
    ([1, INF, INF], [[0], [0], [0]], [10], [1, 4.5, 4.5]),
    ([2, 3, 20], [[0], [0], [0]], [12], [2, 3, 7]),
    ([2, 3, 4], [[0], [0], [0]], [12], [2, 3, 4]),  # the link is not full
    # The parking lot: one over both links, one over each.
    ([INF, INF, INF], [[0, 1], [0], [1]], [10, 10], [5, 5, 5]),
    ([INF, INF, INF], [[0, 1], [0], [1]], [10, 4], [2, 8, 2]),
    # Bertsekas and Gallager's figure: links of capacity 1.
    ([INF] * 5, [[0], [1, 2], [1], [1, 2], [2, 3]], [1, 1, 1, 1], [1, 1 / 3, 1 / 3, 1 / 3, 1 / 3]),
    ([7, INF], [[], [0]], [3], [7, 3]),  # one that crosses nothing
]


def table(paths: list[list[int]], links: int) -> np.ndarray:
    return np.array([[link in path for path in paths] for link in range(links)], bool).reshape(links, len(paths))


@pytest.mark.parametrize(("limits", "paths", "capacities", "rates"), BY_HAND)
def test_rates_by_hand(
    limits: list[float], paths: list[list[int]], capacities: list[float], rates: list[float]
) -> None:
    found = fair_rates(np.array(limits, float), table(paths, len(capacities)), np.array(capacities, float))
    assert found == pytest.approx(rates)


def test_finishing_times_by_hand() -> None:
    """Three send one model each over a link that carries one in 2 s; alone they take 2, 2 and 8 s.

    From 0 to 1 the first has all of it (half a model). Then it shares with the second, and from 2 with the third, who
    takes its own eighth of a model a second and leaves 3/8 - 1/16 each.
    """
    ends = finish_seconds(np.array([0.0, 1.0, 2.0]), np.array([2.0, 2.0, 8.0]), np.ones((1, 3), bool), np.array([2.0]))
    first = 2 + (1 - 0.5 - 0.25) / (3 / 16)
    second = first + (1 - 0.25 - (first - 2) * 3 / 16) / (3 / 8)
    assert ends == pytest.approx([first, second, 10.0])


def slow_rates(limits: list[Fraction], paths: list[set[int]], capacities: list[Fraction]) -> list[Fraction]:
    """Progressive filling as the textbook has it: raise all by the least that stops one."""
    rates, going = [Fraction(0)] * len(limits), set(range(len(limits)))
    while going:
        room = [
            capacity - sum(rates[i] for i, path in enumerate(paths) if link in path)
            for link, capacity in enumerate(capacities)
        ]
        many = [sum(link in paths[i] for i in going) for link in range(len(capacities))]
        steps = [limits[i] - rates[i] for i in going] + [r / m for r, m in zip(room, many, strict=True) if m]
        step = min(steps)
        for i in going:
            rates[i] += step
        full = {link for link, (r, m) in enumerate(zip(room, many, strict=True)) if m and r == m * step}
        going = {i for i in going if rates[i] < limits[i] and not full & paths[i]}
    return rates


def slow_ends(
    begins: list[Fraction], alone: list[Fraction], paths: list[set[int]], carries: list[Fraction]
) -> list[Fraction]:
    now, left, ends = min(begins), [Fraction(1)] * len(begins), [Fraction(-1)] * len(begins)
    while min(ends) < 0:
        active = [i for i in range(len(begins)) if begins[i] <= now and ends[i] < 0]
        waiting = [begin for i, begin in enumerate(begins) if begin > now and ends[i] < 0]
        rates = slow_rates([1 / alone[i] for i in active], [paths[i] for i in active], [1 / c for c in carries])
        after = [now + left[i] / rate for i, rate in zip(active, rates, strict=True)]
        until = min(after + waiting)
        for i, rate in zip(active, rates, strict=True):
            left[i] -= rate * (until - now)
            ends[i] = until if left[i] == 0 else ends[i]
        now = until
    return ends


@settings(max_examples=part_of(60), deadline=None)
@given(st.data())
def test_the_slow_twin_agrees(data: st.DataObject) -> None:
    count, links = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 3))
    whole = st.integers(1, 12)
    carries = [Fraction(data.draw(whole), 4) for _ in range(links)]
    paths = [data.draw(st.sets(st.integers(0, links - 1))) if links else set() for _ in range(count)]
    begins = [Fraction(data.draw(st.integers(0, 8)), 2) for _ in range(count)]
    alone = [max([Fraction(data.draw(whole), 3), *(carries[link] for link in path)]) for path in paths]
    found = finish_seconds(
        np.array([float(x) for x in begins]),
        np.array([float(x) for x in alone]),
        table([sorted(path) for path in paths], links),
        np.array([float(x) for x in carries]),
    )
    assert found == pytest.approx([float(end) for end in slow_ends(begins, alone, paths, carries)], rel=1e-9)


def shared(up: list[float], down: list[float] | None = None, **other: np.ndarray) -> Network:
    """Return three clients at two aggregators: 1, 2 and 3 s of computing, 2 s of sending, 1 s of receiving."""
    none = np.zeros((0, 2), bool)
    sharing = Sharing(
        np.array(up),
        np.array([0.0, 0.0] if down is None else down),
        other.get("crosses", none),
        other.get("trunk", np.zeros(len(other.get("crosses", none)))),
        other.get("trunk", np.zeros(len(other.get("crosses", none)))),
    )
    return Network(
        np.array([1.0, 2.0, 3.0]),
        np.full((3, 2), 2.0),
        np.array([4.0, 4.0]),
        np.zeros((2, 2)),
        ((), ()),
        download_seconds=None if down is None else np.ones((3, 2)),
        sharing=sharing,
    )


ALL = np.zeros(3, int)


def test_side_by_side_takes_as_long_as_the_slowest_where_nothing_is_shared() -> None:
    assert completion_of(shared([0.0, 0.0]), ALL).tolist() == [5.0, 0.0]
    assert completion_of(shared([0.0, 0.0]), np.array([0, 1, -1])).tolist() == [3.0, 4.0]


def test_a_pipe_that_carries_one_at_a_time_is_never_idle() -> None:
    """Then it is done when it has carried all, in whatever shares: eq. 50."""
    network = shared([2.0, 2.0])
    expected = completion_seconds(network.compute_seconds, network.upload_seconds[:, 0])
    assert completion_of(network, ALL)[0] == pytest.approx(expected) == pytest.approx(7.0)


def test_sharing_is_never_slower_than_turns() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        upload = rng.uniform(0.5, 2.0, 8)
        begins, carries = rng.uniform(0, 2, 8), rng.uniform(0.05, 0.5)
        ends = finish_seconds(begins, upload, np.ones((1, 8), bool), np.array([carries]))
        assert ends.max() <= completion_seconds(begins, upload) * (1 + 1e-12)


def test_each_is_sent_its_own_model() -> None:
    assert broadcast_down_seconds(shared([0.0, 0.0], [0.0, 0.0]), ALL).tolist() == [1.0, 0.0]
    assert broadcast_down_seconds(shared([0.0, 0.0], [1.0, 1.0]), ALL).tolist() == pytest.approx([3.0, 0.0])


def test_who_is_late_on_a_shared_pipe() -> None:
    """All three are done at 3, 5 and 7 s if nobody shares at the same time, else later."""
    assert late_clients(shared([2.0, 2.0]), ALL, 6.5).tolist() == [False, False, True]
    assert late_clients(shared([0.0, 0.0]), ALL, 4.5).tolist() == [False, False, True]


def test_aggregators_share_the_way_to_the_server_in_censyn() -> None:
    """Both are ready after 3 and 4 s; one link carries a model in 4 s, which it takes each alone."""
    network = shared([0.0, 0.0], crosses=np.ones((1, 2), bool), trunk=np.array([4.0]))
    labels = np.array([0, 1, -1])
    assert event_seconds(network, labels, "censyn", 1).tolist() == pytest.approx([10.0, 11.0])
    assert event_seconds(network, labels, "cenasy", 1).tolist() == pytest.approx([7.0, 8.0])  # counted alone
    assert pattern_transfer_seconds(network, "censyn").tolist() == pytest.approx([8.0, 8.0])
    apart = shared([0.0, 0.0])
    assert event_seconds(apart, labels, "censyn", 1).tolist() == pytest.approx([7.0, 8.0])


def test_the_way_back_from_the_server_has_a_rate_of_its_own() -> None:
    """Two models of 4 s each go up through one pipe, and of 2 s each down."""
    network = shared([0.0, 0.0], [0.0, 0.0], crosses=np.ones((1, 2), bool), trunk=np.array([4.0]))
    assert network.sharing is not None
    network = replace(network, sharing=replace(network.sharing, trunk_down_seconds=np.array([2.0])))
    assert pattern_transfer_seconds(network, "censyn").tolist() == pytest.approx([12.0, 12.0])
