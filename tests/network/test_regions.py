"""Regions that average on the way to the server: seconds and prices by hand, and against sending alone."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import Experiment, InputError, make_runs
from atoll.network.links import Link, Way
from atoll.network.network import Network
from atoll.network.routes import linked_network
from atoll.network.transfers import merged_seconds, pattern_transfer_seconds
from atoll.planner.plan_costs import merge_prices, price_of


def link(lower: str, upper: str, up: float, down: float, latency: float = 0.0, price: float = 0.0) -> Link:
    return Link(f"{lower}-{upper}", lower, upper, Way(latency, up, price), Way(latency, down, 2 * price))


def network_of(*inner: Link, averages: bool = True, prices: bool = False) -> Network:
    """Return the network of these links, with a client at each of the aggregators a, b, and so on."""
    aggregators = sorted({each.lower for each in inner if len(each.lower) == 1 and each.lower != "*"})
    names = [f"client-{name}" for name in aggregators]
    own = [link(f"client-{name}", name, 1.0, 0.5) for name in aggregators]
    return linked_network(
        *("links.csv", [*own, *inner], names, "server", np.ones(len(names))), has_prices=prices, averages=averages
    )


TREE = (  # a and b meet in east, which meets c in hub; d sends to the server itself
    link("a", "east", 1.0, 0.5, latency=0.25, price=1.0),
    link("b", "east", 2.0, 1.0, price=2.0),
    link("east", "hub", 3.0, 1.0, price=8.0),
    link("c", "hub", 1.0, 1.0, price=3.0),
    link("hub", "server", 4.0, 2.0, price=60.0),
    link("d", "server", 5.0, 4.5, price=4.0),
)
ALL = np.ones(4, bool)


def test_a_region_sends_once_all_below_are_in() -> None:
    """East has a at 11.25 and b at 12, hub has them at 15 and c at 21: the server has d at 14, and the rest at 25."""
    network = network_of(*TREE)
    ready = np.array([10.0, 10.0, 20.0, 9.0])
    assert network.regions is not None
    assert network.regions.received(ready, ALL).tolist() == [25.0, 25.0, 25.0, 14.0]
    assert network.regions.returned() == 4.5  # to d; to hub in 2, east in 3, b in 4
    assert merged_seconds(network, "censyn", ready, ALL).tolist() == [29.5, 29.5, 29.5, 18.5]
    assert pattern_transfer_seconds(network, "censyn").tolist() == [9.0 + 4.5] * 3 + [5.0 + 4.5]


def test_who_has_no_clients_is_not_waited_for() -> None:
    network = network_of(*TREE)
    assert network.regions is not None
    sends = np.array([True, False, False, True])
    ready = np.array([10.0, 90.0, 90.0, 9.0])
    assert network.regions.received(ready, sends).tolist() == [10 + 1.25 + 3 + 4, 90.0, 90.0, 14.0]


def test_regions_share_the_pipe_to_the_server() -> None:
    """East's average and c's model both begin after 2 s, and share what carries one in 3 s."""
    inner = [link("a", "east", 2.0, 1.0), link("east", "server", 1.0, 1.0), link("c", "server", 1.0, 1.0)]
    network = network_of(*inner, link("*", "server", 3.0, 2.0))
    assert network.regions is not None
    assert network.regions.received(np.array([0.0, 2.0]), np.ones(2, bool)).tolist() == pytest.approx([8.0, 8.0])
    assert network.regions.returned() == pytest.approx(4.0 + 1.0)


def test_the_latency_of_the_servers_pipe_counts_in_both_directions() -> None:
    regions = network_of(link("a", "server", 1.0, 1.0), link("*", "server", 3.0, 2.0, latency=10.0)).regions
    assert regions is not None
    assert regions.received(np.zeros(1), np.ones(1, bool)).tolist() == [13.0]
    assert regions.returned() == 12.0


def test_an_aggregator_on_the_way_averages_too() -> None:
    network = network_of(link("a", "b", 2.0, 1.0), link("b", "server", 3.0, 1.0))
    assert network.regions is not None
    assert network.regions.received(np.array([5.0, 1.0]), np.ones(2, bool)).tolist() == [10.0, 10.0]


@given(st.data())
def test_averaging_takes_as_long_as_if_nobody_else_sent(data: st.DataObject) -> None:
    """Whoever is last has every link for itself: without a pipe it ends with ``max(ready + transfer alone)``."""
    seconds = st.integers(0, 900).map(lambda number: number / 100)
    aggregators, regions = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    path = [*(f"region-{k}" for k in range(regions)), "server"]
    inner = [link(lower, upper, data.draw(seconds), data.draw(seconds)) for lower, upper in pairwise(path)]
    for place, name in enumerate("abcde"[:aggregators]):
        upper = data.draw(st.sampled_from(path[:-1])) if place else "region-0"
        inner.append(link(name, upper, data.draw(seconds), 1.0, data.draw(seconds)))
    averaging, passing = network_of(*inner), network_of(*inner, averages=False)
    ready = np.array([data.draw(seconds) for _ in range(averaging.aggregators)])
    sends = np.ones(averaging.aggregators, bool)
    back = averaging.return_seconds
    assert back is not None
    ends = merged_seconds(averaging, "censyn", ready, sends)
    assert ends.max() == pytest.approx((ready + averaging.transfer_seconds).max() + back.max())
    assert ends.max() <= merged_seconds(passing, "censyn", ready, sends).max() * (1 + 1e-9)


def test_other_patterns_pass_each_model_on() -> None:
    averaging, passing = network_of(*TREE), network_of(*TREE, averages=False)
    for pattern in ("cenasy", "decasy"):
        assert pattern_transfer_seconds(averaging, pattern).tolist() == (
            pattern_transfer_seconds(passing, pattern).tolist()
        )


def test_prices_by_hand() -> None:
    """A model up costs what the link says, and one back twice that; east's and hub's links are paid once for all."""
    network = network_of(*TREE, prices=True)
    labels = np.arange(4)
    paid = merge_prices(network, labels, has_server=True)
    assert paid is not None
    assert paid.tolist() == pytest.approx([3 + 12 + 60, 6 + 12 + 60, 9 + 60, 12])
    alone = merge_prices(network, np.where(labels == 1, 0, labels), has_server=True)  # b has no clients
    assert alone is not None
    assert alone.tolist() == pytest.approx([3 + 24 + 90, 0, 9 + 90, 12])
    passed = merge_prices(network_of(*TREE, averages=False, prices=True), labels, has_server=True)
    assert passed is not None
    assert passed.tolist() == pytest.approx([3 * 69, 3 * 70, 3 * 63, 12])


FILE = """from,to,up_seconds,up_price
0,a,1,
1,b,1,
a,region,1,
b,region,2,
region,server,4,1000
"""


def experiment(folder: Path, *changes: str, links: str | None = FILE) -> Experiment:
    table: dict[str, Any] = {
        "rounds": 4,
        "data": {"dataset": "digits", "clients": 2, "samples": 20, "partition": "iid"},
        "model": {"name": "linear"},
        "local": {"steps": 1, "batch_size": 10},
        "clustering": {"method": "comaw", "clusters": 2},
        "network": {"seconds_per_sample": 0.05, "regions": "average"},
        "method": {"name": "hierarchical", "pattern": "censyn", "intra_rounds": 2},
    }
    if links is not None:
        (folder / "links.csv").write_text(links, encoding="utf-8")
        table["network"]["file"] = str(folder / "links.csv")
    (settings,) = make_runs(table, changes=list(changes))
    return Experiment(settings)


def test_a_schedule_with_regions_that_average(tmp_path: Path) -> None:
    """T' = 2 rounds of 2 s, then b's 2 s and the region's 4; passed on, both models share the region's link."""
    averaged = experiment(tmp_path)
    assert [event.seconds for event in averaged.method.schedule.events] == [10.0, 20.0]
    passed = experiment(tmp_path, "network.regions=pass")
    assert passed.method.schedule.events[0].seconds > 10.0
    price, every = price_of(averaged), price_of(passed)
    assert price is not None
    assert every is not None
    assert every.merge.sum() == pytest.approx(2 * price.merge.sum())
    for one, other in zip(averaged.method.schedule.events, passed.method.schedule.events, strict=True):
        assert (one.server, one.starts, one.models_up) == (other.server, other.starts, other.models_up)


def test_without_regions_nothing_changes(tmp_path: Path) -> None:
    direct = "from,to,up_seconds\n0,a,1\n1,b,1\na,server,1\nb,server,2\n*,server,0.5\n"
    both = [experiment(tmp_path, f"network.regions={each}", links=direct) for each in ("pass", "average")]
    one, other = ([event.seconds for event in each.method.schedule.events] for each in both)
    assert one == other == [6.0, 12.0]


def test_hierfavg_merges_as_censyn_does(tmp_path: Path) -> None:
    found = experiment(tmp_path, "method.name=hierfavg")
    assert found.method.schedule.events[0].seconds == 10.0


def test_a_pattern_that_is_not_named_needs_its_server_too(tmp_path: Path) -> None:
    links = FILE.replace("region,server,4,1000\n", "")
    with pytest.raises(InputError, match="no aggregator's link leads to 'server', which the central patterns need"):
        _ = experiment(tmp_path, "method.name=hierfavg", "network.regions=pass", links=links).conditions.networks


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"network.regions = 'average': needs network.file, whose links say where"):
        _ = experiment(tmp_path, links=None).conditions.networks
