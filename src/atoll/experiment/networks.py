"""From settings to networks: positions, speeds and links."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np
import numpy.typing as npt

from atoll.experiment.network_clients import NetworkClients, require_count
from atoll.methods.papers.hierarchical import CENTRAL, SYNCHRONOUS
from atoll.network.links import LinksFile
from atoll.network.mobility import Trace, random_waypoint, read_trace
from atoll.network.network import Network
from atoll.network.network_files import read_aggregators
from atoll.network.topology import TOPOLOGIES, neighbours_of
from atoll.network.transfers import pattern_transfer_seconds
from atoll.network.wireless import Radio, grid_positions, place_clients, wireless_network
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call, resolve
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, SettingWarning, reading
from atoll.support.seeds import generator

if TYPE_CHECKING:
    import networkx as nx

MOVES = 100  # sets of positions in a run whose clients move without reclustering


def make_networks(
    settings: Settings, sizes: npt.NDArray[np.int64], model_bytes: int, upload_share: float
) -> dict[int, Network]:
    """Return the network from round 0 on, and, if clients move, from each round that changes something.

    A column `samples` of `network.clients_file` replaces clients' `sizes`; they upload `upload_share` of a model.
    """
    wanted, known = settings.network, NetworkClients(settings, len(sizes), are_placed=True)
    compute_seconds = known.speeds * known.samples(sizes)
    _check_timing(settings)
    if known.links is not None:
        return {0: _paced(settings, _from_links(settings, known.links, compute_seconds, model_bytes, upload_share))}
    graph = _topology(settings)
    aggregators_xy, server_xy = _aggregators(settings)
    watts = known.watts
    radio = Radio(**{each.name: wanted.get(each.name) for each in fields(Radio)})

    def at(clients_xy: Floats) -> Network:
        return wireless_network(
            *(clients_xy, aggregators_xy, server_xy, compute_seconds, watts, model_bytes, graph, radio),
            downloads=wanted.downloads,
            upload_share=upload_share,
        )

    return {round_: _paced(settings, at(xy)) for round_, xy in _positions(settings, known).items()}


def is_same_network(one: Settings, other: Settings) -> bool:
    """Return whether `make_networks` makes the same network from both, for the same clients and model.

    If clients move it also depends on the rounds, and times from files and frequencies depend on the pattern.
    """
    wanted = one.network
    if wanted != other.network or one.clustering.clusters != other.clustering.clusters:
        return False
    if one.rounds != other.rounds and (wanted.trace_file is not None or wanted.metres_per_round is not None):
        return False
    is_any_pattern = wanted.file is None and wanted.frequencies is None
    return is_any_pattern or one.method.get("pattern") == other.method.get("pattern")


def is_clustered_anew(settings: Settings, round_: int) -> bool:
    """Return whether clients are reclustered at this round of `make_networks`."""
    every = settings.network.recluster_every
    return round_ == 0 or (every is not None and round_ % every == 0)


def grid_of(settings: Settings) -> tuple[int, int]:
    """Return the aggregators' rows and columns: from the settings, otherwise as square as possible."""
    clusters, grid = settings.clustering.clusters, settings.network.grid
    if grid is None:
        rows = max(r for r in range(1, int(clusters**0.5) + 1) if clusters % r == 0)
        return rows, clusters // rows
    if grid[0] * grid[1] != clusters:
        raise InputError(f"network.grid = {grid}: must hold clustering.clusters = {clusters} aggregators")
    return grid[0], grid[1]


def _aggregators(settings: Settings) -> tuple[Floats, Floats]:
    """Return the positions of the aggregators and the server: from the file, or on a grid."""
    wanted = settings.network
    if wanted.aggregators_file is None:
        return grid_positions(*grid_of(settings), wanted.side_metres)
    if wanted.grid is not None:
        raise InputError("network.grid: cannot be used with network.aggregators_file; give one of them")
    with reading("network.aggregators_file"):
        places = read_aggregators(wanted.aggregators_file)
    _require_aggregators(settings, "aggregators_file", len(places))
    centre = places.mean(axis=0)
    while (places == centre).all(axis=1).any():  # moved off an aggregator that stands there
        centre = centre + 1
    return places, centre


def _require_aggregators(settings: Settings, name: str, found: int) -> None:
    if found != settings.clustering.clusters:
        told = f"network.{name} = {getattr(settings.network, name)!r}: has {found} aggregators"
        raise InputError(f"{told}, but clustering.clusters = {settings.clustering.clusters}")


def _positions(settings: Settings, known: NetworkClients) -> dict[int, Floats]:
    """Return the clients' positions, by the round from which they apply."""
    wanted = settings.network
    trace = _trace(settings, known)
    if trace is None:
        if wanted.recluster_every is not None:
            told = f"network.recluster_every = {wanted.recluster_every}:"
            raise InputError(f"{told} needs clients that move; set network.trace_file or network.metres_per_round")
        return {0: _first_positions(settings, known)}
    anew = range(0, settings.rounds, wanted.recluster_every or settings.rounds)
    changes = sorted({*anew, *trace.rounds.tolist()})
    return {round_: trace.positions(round_) for round_ in changes if round_ < settings.rounds}


def _trace(settings: Settings, known: NetworkClients) -> Trace | None:
    """Return how the clients move: by a file or by random waypoints; None: they do not."""
    wanted = settings.network
    if wanted.trace_file is not None:
        if wanted.metres_per_round is not None:
            raise InputError("network.metres_per_round: cannot be used with network.trace_file; give one of them")
        with reading("network.trace_file"):
            trace = read_trace(wanted.trace_file)
        return require_count("network.trace_file", wanted.trace_file, trace, known.clients)
    if wanted.metres_per_round is None:
        return None
    first = _first_positions(settings, known)
    every = wanted.recluster_every or max(1, settings.rounds // MOVES)
    rng = generator(settings.seed, "moves")
    return random_waypoint(first, wanted.side_metres, wanted.metres_per_round, settings.rounds, every, rng)


def _first_positions(settings: Settings, known: NetworkClients) -> Floats:
    if known.table is not None and known.table.clients_xy is not None:
        return known.table.clients_xy
    return place_clients(known.clients, settings.network.side_metres, generator(settings.seed, "positions"))


def _topology(settings: Settings) -> "nx.Graph[int]":
    import networkx as nx  # loads slowly

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
        told = f"network.topology = {wanted.topology!r}: the graph has {len(graph)} nodes,"
        raise InputError(f"{told} but there are clustering.clusters = {settings.clustering.clusters} aggregators")
    return graph


def _check_timing(settings: Settings) -> None:
    """Reject settings of the clock that contradict each other, or that the pattern does not use."""
    wanted, pattern = settings.network, settings.method.get("pattern")
    if wanted.file is not None:
        for name in ("downloads", "trace_file", "metres_per_round", "recluster_every", "aggregators_file"):
            if getattr(wanted, name):
                why = "says what is counted" if name == "downloads" else "has no positions"
                raise InputError(f"network.{name}: cannot be used with network.file, which {why}")
    elif wanted.regions == "average":
        raise InputError("network.regions = 'average': needs network.file, whose links say where regions are")
    if wanted.frequencies is None:
        return
    if isinstance(wanted.frequencies, list) and wanted.file is not None:
        told = f"network.frequencies = {wanted.frequencies}: cannot be used with network.file,"
        raise InputError(f"{told} whose times say how often aggregators merge; give one of them")
    if pattern is None or pattern in SYNCHRONOUS:
        told = "network.frequencies: needs an asynchronous pattern, method.pattern = 'cenasy' or 'decasy';"
        raise InputError(f"{told} it is {pattern!r}")


def _paced(settings: Settings, network: Network) -> Network:
    """Return the network with the frequencies from the settings."""
    given, pattern = settings.network.frequencies, settings.method.get("pattern")
    if given is None or (given == "transfer" and network.aggregators == 1):
        return network
    if given == "transfer":
        if not (seconds := pattern_transfer_seconds(network, pattern)).all():
            told = f"a transfer of aggregator {seconds.argmin()} takes no time; set network.frequencies to numbers"
            raise InputError(f"network.frequencies = 'transfer': {told}")
        return replace(network, frequencies=1 / seconds)
    return replace(network, frequencies=np.array(given))


def _from_links(
    settings: Settings, file: LinksFile, compute_seconds: Floats, model_bytes: int, upload_share: float
) -> Network:
    """Make the network of a file of links; without links between aggregators, those of the topology are used."""
    from atoll.network.routes import linked_network  # NetworkX loads slowly

    wanted, pattern, table = settings.network, settings.method.get("pattern"), file.table
    assert wanted.file is not None
    names = None if table is None else table.names
    with reading("network.file"):
        network = linked_network(
            wanted.file,
            file.links(model_bytes),
            names or [str(k) for k in range(len(compute_seconds))],
            file.server,
            compute_seconds,
            upload_share,
            None if table is None else table.power,
            needs_server=pattern in CENTRAL and asks_for(method_kind(settings).make, "network"),
            has_prices=file.has_prices,
            averages=wanted.regions == "average" and pattern == "censyn",
        )
    _require_aggregators(settings, "file", network.aggregators)
    if any(network.neighbours):
        return network
    if pattern is not None and pattern not in CENTRAL and network.aggregators > 1:
        told = f"no link between aggregators is given, so {pattern} assumes that those of network.topology ="
        ways = f"{wanted.topology!r} exchange models over the file's other links"
        warn(f"network.file = {wanted.file!r}: {told} {ways}", SettingWarning, 2)
    return replace(network, neighbours=neighbours_of(_topology(settings)))
