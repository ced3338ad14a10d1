"""From settings to networks: where everyone is, how fast, and who is linked with whom."""

from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from atoll.experiment.choices import method_kind
from atoll.experiment.plugins import call, resolve
from atoll.experiment.settings import NetworkSettings, Settings
from atoll.experiment.signatures import asks_for
from atoll.methods.hierarchical import CENTRAL
from atoll.network.base import Network
from atoll.network.files import ClientTable, matrix_network, read_matrix, read_network_clients
from atoll.network.mobility import Trace, random_waypoint, read_trace
from atoll.network.topology import TOPOLOGIES, neighbours_of
from atoll.network.wireless import Radio, draw_watts, grid_positions, place_clients, wireless_network
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, reading
from atoll.support.seeds import generator

MOVES = 100  # positions in a run of clients that move but are not clustered anew


def make_networks(settings: Settings, sizes: npt.NDArray[np.int64], model_bytes: int) -> dict[int, Network]:
    """Return the network from round 0 on, and for clients that move also from each round that changes something on.

    Args:
        settings: `network` says whether positions, or seconds, are read from files or drawn from the seed.
        sizes: samples of each client, [clients]; a column `samples` of `network.clients_file` takes their place.
        model_bytes: size of what is uploaded.

    Raises:
        InputError: files that are faulty or do not fit, or numbers that make no network.
    """
    wanted, clients = settings.network, len(sizes)
    table = _read_table(wanted, clients)
    compute_seconds = _speeds(settings, table, clients) * _samples(table, sizes)
    graph = _topology(settings)
    if wanted.upload_file is not None:
        return {0: _from_files(settings, compute_seconds, neighbours_of(graph))}
    rows, columns = grid_of(settings)
    aggregators_xy, server_xy = grid_positions(rows, columns, wanted.side_metres)
    watts, radio = _powers(settings, table, clients), _radio(wanted)
    return {
        round_: wireless_network(
            clients_xy, aggregators_xy, server_xy, compute_seconds, watts, model_bytes, graph, radio
        )
        for round_, clients_xy in _positions(settings, table, clients).items()
    }


def is_clustered_anew(settings: Settings, round_: int) -> bool:
    """Return whether the clustering is made anew at this round of `make_networks`."""
    every = settings.network.recluster_every
    return round_ == 0 or (every is not None and round_ % every == 0)


def samples_of(settings: Settings, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return each client's samples: those that `network.clients_file` states, else those of the data."""
    return _samples(_read_table(settings.network, len(sizes)), sizes)


def speeds(settings: Settings, clients: int) -> Floats:
    """Return each client's seconds of training on one sample, zeta_i: of the file, drawn, or the same for all."""
    return _speeds(settings, _read_table(settings.network, clients), clients)


def grid_of(settings: Settings) -> tuple[int, int]:
    """Return rows and columns of the aggregators: those of the settings, else as square as can be."""
    clusters, grid = settings.clustering.clusters, settings.network.grid
    if grid is None:
        rows = max(r for r in range(1, int(clusters**0.5) + 1) if clusters % r == 0)
        return rows, clusters // rows
    if grid[0] * grid[1] != clusters:
        raise InputError(f"network.grid = {grid}: must hold clustering.clusters = {clusters} aggregators")
    return grid[0], grid[1]


def _read_table(wanted: NetworkSettings, clients: int) -> ClientTable | None:
    if wanted.clients_file is None:
        return None
    places_them = wanted.upload_file is None and wanted.trace_file is None
    with reading("network.clients_file"):
        table = read_network_clients(wanted.clients_file, ("x", "y") if places_them else ())
    if table.clients != clients:
        raise InputError(
            f"network.clients_file = {wanted.clients_file!r}: has {table.clients} clients, but data.clients = {clients}"
        )
    return table


def _samples(table: ClientTable | None, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return sizes if table is None or table.samples is None else table.samples


def _speeds(settings: Settings, table: ClientTable | None, clients: int) -> Floats:
    if table is not None and table.seconds_per_sample is not None:
        return table.seconds_per_sample
    wanted = settings.network.seconds_per_sample
    if not isinstance(wanted, list):
        return np.full(clients, float(wanted))
    return generator(settings.seed, "speeds").uniform(*_ascending("network.seconds_per_sample", wanted), clients)


def _powers(settings: Settings, table: ClientTable | None, clients: int) -> Floats:
    if table is not None and table.watts is not None:
        return table.watts
    low, high = _ascending("network.client_milliwatts", settings.network.client_milliwatts)
    return draw_watts(clients, generator(settings.seed, "powers"), low, high)


def _radio(wanted: NetworkSettings) -> Radio:
    return Radio(
        bandwidth_hz=wanted.bandwidth_hz,
        noise_dbm=wanted.noise_dbm,
        path_loss_db=wanted.path_loss_db,
        path_loss_exponent=wanted.path_loss_exponent,
        aggregator_dbm=wanted.aggregator_dbm,
    )


def _positions(settings: Settings, table: ClientTable | None, clients: int) -> dict[int, Floats]:
    """Return the clients' positions by the round from which they hold."""
    wanted = settings.network
    trace = _trace(settings, table, clients)
    if trace is None:
        if wanted.recluster_every is not None:
            raise InputError(
                f"network.recluster_every = {wanted.recluster_every}: needs clients that move; set network.trace_file "
                "or network.metres_per_round"
            )
        return {0: _first_positions(settings, table, clients)}
    anew = range(0, settings.rounds, wanted.recluster_every or settings.rounds)
    changes = sorted({*anew, *trace.rounds.tolist()})
    return {round_: trace.positions(round_) for round_ in changes if round_ < settings.rounds}


def _trace(settings: Settings, table: ClientTable | None, clients: int) -> Trace | None:
    """Return how the clients move: as a file says, by random waypoints, or not at all."""
    wanted = settings.network
    if wanted.trace_file is not None:
        if wanted.metres_per_round is not None:
            raise InputError("network.metres_per_round: does not go with network.trace_file; give one of them")
        with reading("network.trace_file"):
            trace = read_trace(wanted.trace_file)
        if trace.clients != clients:
            raise InputError(
                f"network.trace_file = {wanted.trace_file!r}: has {trace.clients} clients, but data.clients = {clients}"
            )
        return trace
    if wanted.metres_per_round is None:
        return None
    first = _first_positions(settings, table, clients)
    every = wanted.recluster_every or max(1, settings.rounds // MOVES)
    rng = generator(settings.seed, "moves")
    return random_waypoint(first, wanted.side_metres, wanted.metres_per_round, settings.rounds, every, rng)


def _first_positions(settings: Settings, table: ClientTable | None, clients: int) -> Floats:
    if table is not None and table.clients_xy is not None:
        return table.clients_xy
    return place_clients(clients, settings.network.side_metres, generator(settings.seed, "positions"))


def _topology(settings: Settings) -> "nx.Graph[int]":
    wanted = settings.network
    rule = resolve("network.topology", wanted.topology, TOPOLOGIES)
    given: dict[str, Any] = {
        **dict(wanted),
        "aggregators": settings.clustering.clusters,
        "rng": generator(settings.seed, "topology"),
    }
    if asks_for(rule, "rows"):
        given["rows"], given["columns"] = grid_of(settings)
    graph = call("network.topology", rule, given, wanted.model_extra)
    if not isinstance(graph, nx.Graph):
        got = "nothing" if graph is None else repr(type(graph).__name__)
        raise InputError(f"network.topology = {wanted.topology!r}: must return a networkx.Graph, it returned {got}")
    if len(graph) != settings.clustering.clusters:
        raise InputError(
            f"network.topology = {wanted.topology!r}: the graph has {len(graph)} nodes, but there are "
            f"clustering.clusters = {settings.clustering.clusters} aggregators"
        )
    return graph


def _from_files(settings: Settings, compute_seconds: Floats, neighbours: tuple[tuple[int, ...], ...]) -> Network:
    """Make a network of seconds that were measured elsewhere."""
    wanted, clients, clusters = settings.network, len(compute_seconds), settings.clustering.clusters
    for name in ("trace_file", "metres_per_round", "recluster_every"):
        if getattr(wanted, name) is not None:
            raise InputError(f"network.{name}: does not go with network.upload_file, whose seconds know no positions")
    vectors = ((clusters,), (1, clusters), (clusters, 1))
    upload = _read_seconds(wanted, "upload_file", "data.clients x clustering.clusters", ((clients, clusters),))
    transfer = _read_seconds(wanted, "transfer_file", "clustering.clusters", vectors)
    exchange = _read_seconds(
        wanted, "exchange_file", "clustering.clusters x clustering.clusters", ((clusters, clusters),)
    )
    assert upload is not None
    pattern = settings.method.get("pattern")
    if pattern and asks_for(method_kind(settings).make, "network"):
        needed = "transfer_file" if pattern in CENTRAL else "exchange_file"
        if getattr(wanted, needed) is None:
            raise InputError(
                f"network.{needed} is not set, but network.upload_file with method.pattern = {pattern!r} needs it"
            )
    return matrix_network(compute_seconds, upload, transfer, exchange, neighbours)


def _read_seconds(
    wanted: NetworkSettings, name: str, meaning: str, shapes: tuple[tuple[int, ...], ...]
) -> Floats | None:
    """Read a file of seconds that has one of these shapes, of which the first is told; None if it is not set."""
    path = getattr(wanted, name)
    if path is None:
        return None
    with reading(f"network.{name}"):
        seconds = read_matrix(path)
    if seconds.shape not in shapes:
        found, needed = (" x ".join(map(str, shape)) for shape in (seconds.shape, shapes[0]))
        raise InputError(f"network.{name} = {path!r}: has {found} numbers; must be {meaning} = {needed}")
    return seconds


def _ascending(name: str, ends: list[float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise InputError(f"{name} = {ends}: must be two numbers, the lower first")
    return ends[0], ends[1]
