"""From named links to a network's seconds: the quickest routes from clients to aggregators, and on to the server.

A node receives a model whole before it passes it on, so a route takes as long as its links in turn. Nodes other than
clients, aggregators and the server, such as a region's, pass models on; with `averages` they average them first.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import networkx as nx
import numpy as np

from atoll.network.link_nodes import LinkedNodes, sort_out
from atoll.network.links import FREE, Link, Way
from atoll.network.network import Network, Power, Prices
from atoll.network.regions import Regions
from atoll.network.sharing import Sharing
from atoll.support.arrays import Floats
from atoll.support.errors import InputError

_Hop = tuple[str, str]


def linked_network(
    path: str,
    links: Sequence[Link],
    names: Sequence[str],
    server: str,
    compute_seconds: Floats,
    upload_share: float = 1.0,
    power: Power | None = None,
    needs_server: bool = False,
    has_prices: bool = False,
    averages: bool = False,
) -> Network:
    """Return the network of these links; two aggregators are neighbours if they are linked.

    Without a link to the server there is none, and transfers are free. Of equally quick routes the first one's price
    counts. A client uploads `upload_share` of a model; if `averages`, nodes on the way to the server average what they
    pass on.
    """
    nodes = sort_out(path, links, names, server)
    ways = {(link.lower, link.upper): link.up for link in nodes.inner}
    ways |= {(link.upper, link.lower): link.down or link.up for link in nodes.inner}  # if not given, as long as up
    order, has_server = nodes.aggregators, any(server in hop for hop in ways)
    if needs_server and not has_server:
        raise InputError(f"{path}: no aggregator's link leads to {server!r}, which the central patterns need")
    graph = _graph(path, nodes, ways, server if has_server else None)
    paths = {a: nx.single_source_dijkstra_path(graph, a) for a in order}
    between = [[_join(ways, list(pairwise(paths[a][b]))) for b in order] for a in order]
    is_counted = all(link.down is not None for link in links)
    up, down = _to_aggregators(nodes, between, upload_share, has_prices)
    hops = [list(pairwise(nx.dijkstra_path(graph, a, server))) for a in order] if has_server else []
    there, back = _ways_to_server(nodes, ways, hops, server)
    prices = None
    if up.prices is not None and down.prices is not None:
        transfer, returned, exchange = (_table(part, "price") for part in (there, back, between))
        prices = Prices(up.prices, down.prices * is_counted, transfer, returned * is_counted, exchange)
    return Network(
        compute_seconds=compute_seconds,
        upload_seconds=up.seconds,
        transfer_seconds=_table(there, "seconds"),
        exchange_seconds=_table(between, "seconds"),
        neighbours=tuple(tuple(k for k, b in enumerate(order) if (a, b) in ways) for a in order),
        download_seconds=down.seconds if is_counted else None,
        down_transfer_seconds=_table(back, "seconds") if is_counted else None,
        sharing=_make_sharing(nodes, ways, hops, server, upload_share),
        regions=_make_regions(graph, nodes, ways, server, is_counted) if averages and has_server else None,
        power=power,
        prices=prices,
        client_names=tuple(names),
        aggregator_names=order,
    )


def _table(ways: Sequence[Way] | Sequence[Sequence[Way]], name: str) -> Floats:
    """Return this attribute of ways, or of rows of ways."""
    return np.array([_table(way, name) if isinstance(way, list) else getattr(way, name) for way in ways])


def _graph(path: str, nodes: LinkedNodes, ways: Mapping[_Hop, Way], server: str | None) -> "nx.DiGraph[str]":
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(nodes.aggregators)
    graph.add_weighted_edges_from((a, b, way.seconds) for (a, b), way in ways.items())
    first = server or nodes.aggregators[0]
    there = nx.node_connected_component(graph.to_undirected(), first)
    if lost := [name for name in nodes.aggregators if name not in there]:
        raise InputError(
            f"{path}: aggregator {lost[0]!r} has no path to {first!r}; all aggregators and the server must be connected"
        )
    return graph


class _Quickest:
    """The quickest routes between clients and aggregators: seconds and prices, [clients, aggregators] each."""

    def __init__(self, shape: tuple[int, int], has_prices: bool) -> None:
        self.seconds: Floats = np.full(shape, np.inf)
        self.prices = np.zeros(shape) if has_prices else None

    def offer(self, client: int, seconds: Floats, prices: Floats) -> None:
        """Take these routes of a client where they are quicker, [aggregators] each."""
        if self.prices is not None:
            np.copyto(self.prices[client], prices, where=seconds < self.seconds[client])
        np.minimum(self.seconds[client], seconds, out=self.seconds[client])


def _to_aggregators(
    nodes: LinkedNodes, between: Sequence[Sequence[Way]], share: float, has_prices: bool
) -> tuple[_Quickest, _Quickest]:
    """Return the routes up and down between clients and aggregators, by each client's links and on from there."""
    order = nodes.aggregators
    latency, carries, price = (_table(between, name) for name in ("latency", "carries", "price"))
    pipes, place = [nodes.pipe(name) for name in order], {name: j for j, name in enumerate(order)}
    up, down = (_Quickest((len(nodes.own), len(order)), has_prices) for _ in range(2))
    for client, link in ((client, link) for client, links in enumerate(nodes.own) for link in links):
        if (j := place.get(link.upper)) is None:
            continue  # straight to the server
        way, back = link.up.through(pipes[j].up), link.back.through(pipes[j].back)
        up.offer(client, latency[j] + way.latency + share * (carries[j] + way.carries), share * (price[j] + way.price))
        down.offer(client, latency[:, j] + carries[:, j] + back.seconds, price[:, j] + back.price)
    # All clients of an aggregator send through its pipe, whatever their route.
    up.seconds = np.maximum(up.seconds, share * np.array([pipe.up.carries for pipe in pipes]))
    down.seconds = np.maximum(down.seconds, np.array([pipe.back.carries for pipe in pipes]))
    return up, down


def _join(ways: Mapping[_Hop, Way], hops: Sequence[_Hop]) -> Way:
    """Return several links in turn as one."""
    return Way(*(sum(getattr(ways[hop], name) for hop in hops) for name in ("latency", "carries", "price")))


def _ways_to_server(
    nodes: LinkedNodes, ways: Mapping[_Hop, Way], hops: Sequence[Sequence[_Hop]], server: str
) -> tuple[list[Way], list[Way]]:
    """Return each aggregator's way to the server and back, through the server's pipe; all free without hops."""
    pipe = nodes.pipe(server)
    there = [_join(ways, mine) for mine in hops] or [FREE] * len(nodes.aggregators)
    back = [_join(ways, [(b, a) for a, b in mine]) for mine in hops] or there
    return [way.through(pipe.up) for way in there], [way.through(pipe.back) for way in back]


def _make_sharing(
    nodes: LinkedNodes, ways: Mapping[_Hop, Way], hops: Sequence[Sequence[_Hop]], server: str, share: float
) -> Sharing:
    """Return what several senders share: clients' pipes, links on several aggregators' ways, and the server's pipe."""
    shared = [hop for hop in dict.fromkeys(chain.from_iterable(hops)) if sum(hop in mine for mine in hops) > 1]
    crosses = [[hop in mine for mine in hops] for hop in shared]
    trunks = [(ways[a, b].carries, ways[b, a].carries) for a, b in shared]
    if server in nodes.pipes and hops:
        crosses.append([True] * len(hops))
        trunks.append((nodes.pipe(server).up.carries, nodes.pipe(server).back.carries))
    pipes, table = [nodes.pipe(name) for name in nodes.aggregators], np.array(trunks, float).reshape(-1, 2)
    return Sharing(
        up_seconds=share * np.array([pipe.up.carries for pipe in pipes]),
        down_seconds=np.array([pipe.back.carries for pipe in pipes]),
        crosses=np.array(crosses, bool).reshape(len(trunks), len(pipes)),
        trunk_up_seconds=table[:, 0],
        trunk_down_seconds=table[:, 1],
    )


def _make_regions(
    graph: "nx.DiGraph[str]", nodes: LinkedNodes, ways: Mapping[_Hop, Way], server: str, is_counted: bool
) -> Regions:
    """Return the quickest ways to the server as a tree; `is_counted`: whether downloads take time."""
    paths = nx.single_source_dijkstra_path(graph.reverse(copy=False), server)  # from one source, so links form a tree
    above = {lower: upper for name in nodes.aggregators for lower, upper in pairwise(reversed(paths[name]))}
    order = [*nodes.aggregators, *sorted(above.keys() - set(nodes.aggregators))]
    pipe = nodes.pipe(server)

    def direction(lower: str, upper: str, pipe: Way) -> Way:
        way = ways[lower, upper]
        return way.through(pipe) if server in (lower, upper) else way

    up = [direction(name, above[name], pipe.up) for name in order]
    down = [direction(above[name], name, pipe.back) if is_counted else FREE for name in order]
    return Regions(
        above=np.array([order.index(above[name]) if above[name] != server else -1 for name in order]),
        upwards=np.array(sorted(range(len(order)), key=lambda k: -len(paths[order[k]]))),
        up_seconds=np.array([way.seconds for way in up]),
        down_seconds=np.array([way.seconds for way in down]),
        prices=np.array([there.price + back.price for there, back in zip(up, down, strict=True)]),
        pipe_up=pipe.up.carries,
        pipe_down=pipe.back.carries,
    )
