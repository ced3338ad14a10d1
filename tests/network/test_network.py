"""Networks: hand-worked numbers, files, and what is refused in which words."""

import inspect
import math
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from atoll import Experiment, InputError, make_runs
from atoll.network.completion import completion_of, completion_seconds, event_seconds
from atoll.network.mobility import Trace, random_waypoint
from atoll.network.network import Network
from atoll.network.network_files import matrix_network
from atoll.network.topology import (
    TOPOLOGIES,
    complete,
    edges,
    erdos_renyi,
    grid,
    neighbours_of,
    regular,
    require_connected,
    ring,
    star,
)
from atoll.network.wireless import Radio, draw_watts, grid_positions, place_clients, rate, watts_of, wireless_network
from atoll.settings.plugins import call
from atoll.support.arrays import Floats

MODEL_BYTES = 2.56 * 2**20


def a_network(**changes: Any) -> Network:
    rng = np.random.default_rng(0)
    aggregators_xy, server_xy = grid_positions(2, 3)
    given: dict[str, Any] = {
        "clients_xy": place_clients(5, 40.0, rng),
        "aggregators_xy": aggregators_xy,
        "server_xy": server_xy,
        "compute_seconds": rng.uniform(1, 2, 5),
        "watts": draw_watts(5, rng),
        "model_bytes": MODEL_BYTES,
        "topology": grid(2, 3),
    }
    return wireless_network(**given | changes)


def test_aggregators_send_with_their_own_power() -> None:
    one = {"clients_xy": np.array([[3.0, 4.0]]), "aggregators_xy": np.zeros((1, 2)), "topology": grid(1, 1)}
    made = a_network(**one, compute_seconds=np.ones(1), watts=np.array([0.01]), model_bytes=1e6, downloads=True)
    assert made.upload_seconds[0, 0] == pytest.approx(8e6 / float(rate(5.0, 0.01, Radio())))
    assert made.download_seconds is not None
    assert made.download_seconds[0, 0] == pytest.approx(8e6 / float(rate(5.0, watts_of(33.0), Radio())))


def changed(values: Floats, place: Any, value: float) -> Floats:
    values = values.copy()
    values[place] = value
    return values


# --- radio -----------------------------------------------------------------------------------------------------------


def test_rate_by_hand() -> None:
    """50 mW over 10 m: the signal is 0.05 W x 1e-4 x 1e-4 = 5e-10 W over 1e-13 W of noise, a ratio of 5000."""
    assert rate(10.0, 0.05, Radio()) == pytest.approx(10e6 * math.log2(5001))
    # A ratio of 3 carries two bits a second and hertz.
    assert rate(1.0, 3.0, Radio(bandwidth_hz=1.0, noise_dbm=30.0, path_loss_db=0.0)) == pytest.approx(2)
    assert watts_of(33.0) == pytest.approx(1.995, abs=1e-3)


def test_a_network_equals_a_plain_loop_over_all_pairs() -> None:
    network, watts = a_network(), draw_watts(5, np.random.default_rng(1))
    network = a_network(watts=watts)

    def sending(first: Floats, second: Floats, power: float) -> float:
        snr = power * 1e-4 * math.dist(first, second) ** -4 / 1e-13
        return 8 * MODEL_BYTES / (10e6 * math.log2(1 + snr))

    assert network.clients_xy is not None
    assert network.aggregators_xy is not None
    assert network.server_xy is not None
    for j, place in enumerate(network.aggregators_xy):
        for i, client in enumerate(network.clients_xy):
            assert network.upload_seconds[i, j] == pytest.approx(sending(client, place, watts[i]), rel=1e-12)
        assert network.transfer_seconds[j] == pytest.approx(sending(place, network.server_xy, 10**0.3), rel=1e-12)
        for k, other in enumerate(network.aggregators_xy):
            expected = 0 if j == k else sending(place, other, 10**0.3)
            assert network.exchange_seconds[j, k] == pytest.approx(expected, rel=1e-12)


def test_many_clients_are_as_few() -> None:
    """So many that they are worked on in blocks; each has its own position and power in whichever block it is."""
    clients, rng = 500_000, np.random.default_rng(2)
    given = {"clients_xy": place_clients(clients, 40.0, rng), "watts": draw_watts(clients, rng)}
    upload = a_network(compute_seconds=np.ones(clients), **given).upload_seconds
    some = rng.integers(0, clients, 5)
    few = a_network(**{name: rows[some] for name, rows in given.items()})
    assert upload[some] == pytest.approx(few.upload_seconds, rel=1e-12)
    given["clients_xy"][-1] = grid_positions(2, 3)[0][5]
    with pytest.raises(InputError, match=r"client 499999 and aggregator 5 are both at \(33\.3.*, 30\.0\); they"):
        a_network(compute_seconds=np.ones(clients), **given)


def test_grid_positions() -> None:
    aggregators_xy, server_xy = grid_positions(4, 4)
    assert aggregators_xy[[0, 1, 4, 15]].tolist() == [[5, 5], [15, 5], [5, 15], [35, 35]]
    assert server_xy.tolist() == [10, 10]
    nearest = np.hypot(*(aggregators_xy - server_xy).T).argsort(kind="stable")[:4]
    assert sorted(nearest) == [0, 1, 4, 5]  # the paper's cells 1, 2, 5 and 6
    assert neighbours_of(grid(4, 4))[5] == (1, 4, 6, 9)  # the paper's aggregator 6: 2, 5, 7 and 10
    wide, _ = grid_positions(1, 4, 8.0)
    assert wide.tolist() == [[1, 4], [3, 4], [5, 4], [7, 4]]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (5, 1), (2, 3)])
def test_the_server_is_never_at_an_aggregator(rows: int, columns: int) -> None:
    aggregators_xy, server_xy = grid_positions(rows, columns)
    assert np.hypot(*(aggregators_xy - server_xy).T).min() > 1
    assert a_network(aggregators_xy=aggregators_xy, server_xy=server_xy, topology=ring(rows * columns)).clients == 5


def test_drawn_clients_are_in_range_and_repeatable() -> None:
    places, again = (place_clients(1000, 40.0, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(places, again)
    assert 0 <= places.min() < 1
    assert 39 < places.max() <= 40
    watts = draw_watts(1000, np.random.default_rng(3))
    assert 0.05 <= watts.min() < 0.051
    assert 0.099 < watts.max() <= 0.1


@pytest.mark.slow
def test_a_large_network_fits_in_memory() -> None:
    """100,000 clients x 1,000 aggregators: 800 MB of result; the peak of everything stays below 2 GB."""
    import tracemalloc

    rng = np.random.default_rng(0)
    aggregators_xy, server_xy = grid_positions(25, 40)
    clients_xy, watts, compute = place_clients(100_000, 40.0, rng), draw_watts(100_000, rng), np.ones(100_000)
    tracemalloc.start()
    network = wireless_network(clients_xy, aggregators_xy, server_xy, compute, watts, MODEL_BYTES, grid(25, 40))
    completion_of(network, rng.integers(0, 1000, 100_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5e9


GOOD = np.full(5, 0.05)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"clients_xy": changed(np.eye(5, 2), (3, 1), np.nan)},
            "client 3 is at (0.0, nan), but positions must be finite",
        ),
        (
            {"aggregators_xy": changed(np.eye(6, 2), (2, 0), np.inf)},
            "aggregator 2 is at (inf, 0.0), but positions must",
        ),
        ({"server_xy": np.array([0, np.nan])}, "server 0 is at (0.0, nan), but"),
        ({"clients_xy": np.ones((5, 3))}, "the client positions have the shape (5, 3), which must be (5, 2)"),
        ({"compute_seconds": changed(GOOD, 1, -1)}, "client 1 computes for -1.0 s; it must be positive and finite"),
        ({"compute_seconds": changed(GOOD, 4, np.nan)}, "client 4 computes for nan s; it must be positive and finite"),
        ({"compute_seconds": np.ones(4)}, "what each client computes for has the shape (4,), which must be (5,)"),
        ({"watts": changed(GOOD, 2, 0)}, "client 2 sends with 0.0 W; it must be positive and finite"),
        ({"watts": changed(GOOD, 0, np.inf)}, "client 0 sends with inf W; it must be positive and finite"),
        ({"server_xy": grid_positions(2, 3)[0][4]}, "aggregator 4 and the server are both at (20.0, 30.0); they must"),
        ({"aggregators_xy": np.ones((6, 2))}, "aggregator 0 and aggregator 1 are both at (1.0, 1.0); they"),
        ({"model_bytes": 0}, "network.model_bytes = 0: must be a finite number greater than 0"),
        ({"topology": grid(2, 2)}, "network.topology: the graph has 4 nodes, but there are 6 aggregators"),
        ({"clients_xy": np.full((5, 2), 1e200)}, "network: upload_seconds[0, 0] = inf, but seconds must be finite"),
    ],
)
def test_bad_wireless_networks(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        a_network(**changes)
    assert sentence in str(caught.value)


def test_bad_radio_settings() -> None:
    with pytest.raises(InputError, match=r"network\.bandwidth_hz = 0: must be a finite number greater than 0"):
        Radio(bandwidth_hz=0)
    with pytest.raises(
        InputError, match=r"network\.noise_dbm = nan: must be a finite number of at least -300 and at most 300"
    ):
        Radio(noise_dbm=math.nan)
    with pytest.raises(InputError, match=r"the distance 0\.0 m has no rate"):
        rate(np.array([1.0, 0.0]), 1.0, Radio())
    with pytest.raises(InputError, match=r"network\.grid = \[0, 4\]: must be two positive whole numbers"):
        grid_positions(0, 4)
    with pytest.raises(InputError, match=r"network\.side_metres = -1: must be a finite number greater than 0"):
        place_clients(3, -1, np.random.default_rng(0))
    with pytest.raises(InputError, match=r"network\.client_milliwatts = \[0, 100\.0\]: must be two positive"):
        draw_watts(3, np.random.default_rng(0), 0)


# --- virtual time ----------------------------------------------------------------------------------------------------


def test_completion_of_the_papers_figure_3() -> None:
    """Clients 2, 4, 1, 3 upload in this order; 1 waits for 4's upload to end (FedUC, Fig. 3 and its text)."""
    compute, upload = [3.0, 1.0, 6.0, 2.0], [1.0, 0.5, 1.0, 1.5]
    # 2: 1 + 0.5 = 1.5; 4: 2 + 1.5 = 3.5; 1: 3.5 + 1 = 4.5; 3: 6 + 1 = 7
    assert completion_seconds(compute, upload) == 7.0
    assert completion_seconds([], []) == 0.0


def test_event_seconds_by_hand() -> None:
    network = matrix_network(
        [1.0, 1.0, 4.0], [[1, 9, 9], [2, 9, 9], [9, 1, 9]], [0.5, 0.25, 8.0], [[0, 1, 2], [3, 0, 4], [5, 6, 0]],
        [[1, 2], [0], [0]],
    )  # fmt: skip
    labels = np.array([0, 0, 1])
    assert completion_of(network, labels).tolist() == [4, 5, 0]
    assert event_seconds(network, labels, "censyn", 2).tolist() == [8.5, 10.25, 0]
    assert event_seconds(network, labels, "decasy", 2).tolist() == [10, 13, 0]  # the slowest of 1 and 2; then 3
    with pytest.raises(InputError, match="2 labels for 3 clients"):
        completion_of(network, labels[:2])
    with pytest.raises(InputError, match="labels must be from -1 to 2"):
        completion_of(network, np.array([0, 3, 0]))


# --- topologies ------------------------------------------------------------------------------------------------------


def test_topologies_by_hand() -> None:
    assert neighbours_of(grid(2, 3)) == ((1, 3), (0, 2, 4), (1, 5), (0, 4), (1, 3, 5), (2, 4))
    assert neighbours_of(star(4)) == ((1, 2, 3), (0,), (0,), (0,))
    assert neighbours_of(complete(3)) == ((1, 2), (0, 2), (0, 1))
    assert neighbours_of(edges(4, [[3, 0], [0, 3], [1, 2]])) == ((3,), (2,), (1,), (0,))
    assert neighbours_of(erdos_renyi(3, 1.0, np.random.default_rng(0))) == neighbours_of(complete(3))
    assert neighbours_of(regular(5, 4, np.random.default_rng(0))) == neighbours_of(complete(5))


def test_the_smallest_topologies() -> None:
    rng = np.random.default_rng(0)
    for one in (grid(1, 1), ring(1), star(1), complete(1), edges(1, []), regular(1, 0, rng), erdos_renyi(1, 0.5, rng)):
        assert neighbours_of(one) == ((),)
        require_connected(one)
    for two in (grid(1, 2), ring(2), star(2), complete(2), edges(2, [[1, 0]]), regular(2, 1, rng)):
        assert neighbours_of(two) == ((1,), (0,))


@pytest.mark.parametrize(("name", "options"), [("regular", {"degree": 4}), ("erdos-renyi", {"probability": 0.2})])
def test_random_topologies_follow_their_generator(name: str, options: dict[str, Any]) -> None:
    def drawn(seed: int) -> tuple[tuple[int, ...], ...]:
        given = {"aggregators": 20, "rows": 4, "columns": 5, "rng": np.random.default_rng(seed)}
        return neighbours_of(call("network.topology", TOPOLOGIES[name], {**given, **options}))

    assert drawn(1) == drawn(1) != drawn(2)
    if name == "erdos-renyi":
        links = [sum(map(len, drawn(seed))) / 2 for seed in range(200)]
        assert np.mean(links) == pytest.approx(0.2 * 190, abs=2)


def test_a_single_aggregator_needs_no_neighbours() -> None:
    one = {"method": {"name": "hierarchical"}, "clustering": {"clusters": 1}, "network": {"topology": "regular"}}
    (settings,) = make_runs(one, changes=["network.degree=0", "data.clients=4", "data.samples=20"])
    assert Experiment(settings).conditions.networks[0].neighbours == ((),)


def test_every_topology_can_be_called_by_name(tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text("# a path\n0 1\n\n1,2   # the middle\n2 3\n4 3\n3 5\n")
    given = {"aggregators": 6, "rows": 2, "columns": 3, "rng": np.random.default_rng(0)}
    options = {"degree": 2, "probability": 0.5, "edges": str(file)}
    for name, rule in TOPOLOGIES.items():
        wanted = {key: value for key, value in options.items() if key in inspect.signature(rule).parameters}
        assert len(neighbours_of(call("network.topology", rule, {**given, **wanted}))) == 6, name
    assert neighbours_of(edges(6, str(file))) == ((1,), (0, 2), (1, 3), (2, 4, 5), (3,), (3,))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda rng: grid(0, 3), "network.grid = [0, 3]: must be two positive whole numbers"),
        (lambda rng: ring(0), "clustering.clusters = 0: must be at least 1"),
        (lambda rng: regular(4, 4, rng), "network.degree = 4: must be from 0 to 3, the number of other aggregators"),
        (lambda rng: regular(5, 3, rng), "network.degree = 3: must be even, since the number of aggregators is 5"),
        (
            lambda rng: erdos_renyi(4, 1.5, rng),
            "network.probability = 1.5: must be a finite number of at least 0 and at most 1",
        ),
        (
            lambda rng: erdos_renyi(4, math.nan, rng),
            "network.probability = nan: must be a finite number of at least 0 and at most 1",
        ),
        (lambda rng: edges(3, [[0, 1], [1, 3]]), "network.edges: [1, 3] names aggregator 3, but they are 0 to 2"),
        (lambda rng: edges(3, [[0, -1]]), "network.edges: [0, -1] names aggregator -1, but they are 0 to 2"),
        (lambda rng: edges(3, [[1, 1]]), "network.edges: [1, 1] joins aggregator 1 with itself"),
        (lambda rng: edges(3, [[0, 1, 2]]), "network.edges: [0, 1, 2] must be two aggregators"),
        (lambda rng: neighbours_of(nx.path_graph(["a", "b"])), "network.topology: the graph has the node 'a'"),
        (lambda rng: neighbours_of(nx.Graph([(0, 1), (1, 1)])), "network.topology: the graph joins aggregator 1 with"),
        (
            lambda rng: require_connected(edges(4, [[0, 1], [1, 3]])),
            "network.topology: aggregator 2 has no path to the",
        ),
        (lambda rng: require_connected(edges(14, [])), "aggregator 0 has no path"),
        (
            lambda rng: require_connected(edges(14, [[j, j + 1] for j in range(13) if j != 6])),
            "aggregators 0, 1, 2, 3, 4 and 2 more have no path to the others, but the decentralised patterns need",
        ),
    ],
)
def test_bad_topologies(make: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        make(np.random.default_rng(0))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "number", "line"),
    [("0 1\n1 x\n", 2, "1 x"), ("0 1 2\n", 1, "0 1 2"), ("0\n", 1, "0"), ("0 1\n\n-1 0", 3, "-1 0")],
)
def test_bad_edge_files(tmp_path: Path, text: str, number: int, line: str) -> None:
    file = str(tmp_path / "links.txt")
    Path(file).write_text(text)
    with pytest.raises(InputError) as caught:
        edges(3, file)
    fault = f"line {number} is {line!r}; it must be two aggregators' numbers"
    assert str(caught.value) == f"network.edges = {file!r}: {fault}"


def test_edge_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"network\.edges = '.*absent\.txt': cannot be read"):
        edges(3, str(tmp_path / "absent.txt"))


# --- seconds given ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"upload_seconds": [[1, 2], [3, -4]]}, "upload_seconds[1, 1] = -4.0, but seconds must be finite"),
        ({"upload_seconds": [[1, 2], [math.nan, 4]]}, "upload_seconds[1, 0] = nan, but seconds must be finite"),
        ({"upload_seconds": [1, 2]}, "upload_seconds has the shape (2,), which must be (clients, aggregators)"),
        ({"upload_seconds": [[1, 2], [3]]}, "upload_seconds must be numbers in rows of equal length"),
        ({"compute_seconds": [1, 2, 3]}, "upload_seconds has the shape (2, 2), which must be (3, 2)"),
        ({"compute_seconds": [1, math.inf]}, "compute_seconds[1] = inf, but seconds must be finite"),
        ({"transfer_seconds": [1, 2, 3]}, "upload_seconds has the shape (2, 2), which must be (2, 3)"),
        ({"exchange_seconds": [[0, 1]]}, "exchange_seconds has the shape (1, 2), which must be (2, 2)"),
        ({"neighbours": [[1]]}, "neighbours of 1 aggregators, but there are 2"),
        ({"neighbours": [[1], [2]]}, "aggregator 1 has a neighbour outside 0 to 1"),
        ({"neighbours": [[0], []]}, "the neighbours of aggregator 0 must be other aggregators, ascending"),
        ({"neighbours": [[1, 1], [0]]}, "the neighbours of aggregator 0 must be other aggregators, ascending"),
        ({"neighbours": [[1], []]}, "aggregator 0 has the neighbour 1, but not the other way round"),
        ({"upload_seconds": np.empty((2, 0))}, "there are no aggregators; at least 1 is needed"),
    ],
)
def test_bad_matrices(changes: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"compute_seconds": [1, 2], "upload_seconds": [[1, 2], [3, 4]]}
    with pytest.raises(InputError) as caught:
        matrix_network(**given | changes)
    assert f"network: {sentence}" in str(caught.value)


def test_matrices_make_a_network() -> None:
    network = matrix_network([[1], [2]], [[1, 2], [3, 4]], [[5, 6]], [[0, 1], [2, 0]], [[1], [0]])
    assert (network.clients, network.aggregators) == (2, 2)
    assert network.compute_seconds.tolist() == [1, 2]
    assert network.transfer_seconds.tolist() == [5, 6]
    alone = matrix_network([1, 2], [[1], [3]])
    assert alone.neighbours == ((),)
    assert alone.transfer_seconds.tolist() == [0]


# --- moving clients ---------------------------------------------------------------------------------------------------


def test_a_trace_needs_first_positions_and_has_no_negative_rounds() -> None:
    nothing = np.empty(0, np.int64)
    with pytest.raises(InputError, match="the trace has no position of client 0 at round 0"):
        Trace(1, nothing, nothing, np.empty((0, 2)))
    zero = np.zeros(1, np.int64)
    with pytest.raises(InputError, match="the trace has no position of client 1 at round 0"):
        Trace(2, zero, zero, np.zeros((1, 2)))
    one = Trace(1, zero, zero, np.zeros((1, 2)))
    with pytest.raises(InputError, match="the trace has no round -1"):
        one.positions(-1)


def test_a_random_walk_equals_a_plain_one() -> None:
    """One client, step by step: straight to a drawn point, on arrival to the next, the rest of the round's metres."""
    rng = np.random.default_rng(7)
    x, y = 3.0, 4.0
    target = rng.uniform(0, 10, 2)
    expected = [(x, y)]
    for _ in range(1, 40):
        left = 4.0
        while math.hypot(target[0] - x, target[1] - y) <= left:
            left -= math.hypot(target[0] - x, target[1] - y)
            x, y = target
            target = rng.uniform(0, 10, 2)
        angle = math.atan2(target[1] - y, target[0] - x)
        x, y = x + left * math.cos(angle), y + left * math.sin(angle)
        expected.append((x, y))
    trace = random_waypoint(np.array([[3.0, 4.0]]), 10.0, 4.0, 40, 1, np.random.default_rng(7))
    assert trace.xy == pytest.approx(np.array(expected), abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"side_metres": 0}, "network.side_metres = 0: must be a finite number greater than 0"),
        ({"metres_per_round": 11}, "network.metres_per_round = 11: must be from 0 to the side, 10 m"),
        ({"metres_per_round": math.nan}, "network.metres_per_round = nan: must be from 0 to the side, 10 m"),
        ({"rounds": 0}, "rounds = 0: must be at least 1"),
        ({"every": 0}, "network.every = 0: must be at least 1"),
        ({"clients_xy": np.array([[1.0, 11.0]])}, "network: client 0 is at (1.0, 11.0), outside the square of 10 m"),
        ({"clients_xy": np.array([[np.nan, 1.0]])}, "network: client 0 is at (nan, 1.0), but positions must be finite"),
    ],
)
def test_bad_random_walks(changes: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {
        "clients_xy": np.ones((1, 2)), "side_metres": 10, "metres_per_round": 1, "rounds": 5, "every": 1,
        "rng": np.random.default_rng(0),
    }  # fmt: skip
    with pytest.raises(InputError) as caught:
        random_waypoint(**given | changes)
    assert str(caught.value) == sentence
