"""From named links to a network's seconds: the quickest routes from clients to aggregators, and on to the server.

A node receives a model whole before it passes it on, so a route takes as long as its links in turn. Nodes other than
clients, aggregators and the server, such as a region's, pass models on; with `averages` they average them first.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import networkx as nx
import numpy as np

from atoll.network.link_nodes import LinkedNodes, sort_out
from atoll.network.links import Link, Way
from atoll.network.network import Network, Power, Prices
from atoll.network.server_routes import Hop, join, make_regions, make_sharing, ways_to_server
from atoll.support.arrays import Floats
from atoll.support.errors import InputError


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
    routes = {(a, b): join(ways, list(pairwise(paths[a][b]))) for a in order for b in order}
    is_counted = all(link.down is not None for link in links)
    up, down = _to_aggregators(nodes, routes, upload_share, has_prices)
    hops = [list(pairwise(nx.dijkstra_path(graph, a, server))) for a in order] if has_server else []
    there, back = ways_to_server(nodes, ways, hops, server)
    between = [[routes[a, b] for b in order] for a in order]
    prices = None
    if up.prices is not None and down.prices is not None:
        transfer, returned, exchange = (_table(part, "price") for part in (there, back, between))
        prices = Prices(up.prices, down.prices * is_counted, transfer, returned * is_counted, exchange)
    return Network(
        compute_seconds=compute_seconds,
        upload_seconds=up.seconds,
        transfer_seconds=_table(there, "seconds"),
        exchange_seconds=_table(between, "seconds"),
        neighbours=_neighbours(order, ways),
        download_seconds=down.seconds if is_counted else None,
        down_transfer_seconds=_table(back, "seconds") if is_counted else None,
        sharing=make_sharing(nodes, ways, hops, server, upload_share),
        regions=make_regions(graph, nodes, ways, server, is_counted) if averages and has_server else None,
        power=power,
        prices=prices,
        client_names=tuple(names),
        aggregator_names=order,
    )


def _table(ways: Sequence[Way] | Sequence[Sequence[Way]], name: str) -> Floats:
    """Return this attribute of ways, or of rows of ways."""
    return np.array([_table(way, name) if isinstance(way, list) else getattr(way, name) for way in ways])


def _graph(path: str, nodes: LinkedNodes, ways: Mapping[Hop, Way], server: str | None) -> "nx.DiGraph[str]":
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


def _neighbours(order: Sequence[str], ways: Mapping[Hop, Way]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(k for k, b in enumerate(order) if b != a and ((a, b) in ways or (b, a) in ways)) for a in order)


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
    nodes: LinkedNodes, routes: Mapping[Hop, Way], share: float, has_prices: bool
) -> tuple[_Quickest, _Quickest]:
    """Return the routes up and down between clients and aggregators, by each client's links and on from there."""
    order = nodes.aggregators
    between = [[routes[a, b] for b in order] for a in order]
    latency, carries, price = (_table(between, name) for name in ("latency", "carries", "price"))
    pipes, place = [nodes.pipe(name) for name in order], {name: j for j, name in enumerate(order)}
    up, down = (_Quickest((len(nodes.own), len(order)), has_prices) for _ in range(2))
    for client, link in ((client, link) for client, links in enumerate(nodes.own) for link in links):
        if (j := place.get(link.upper)) is None:
            continue  # straight to the server
        way, back, pipe = link.up, link.back, pipes[j]
        seconds = latency[j] + way.latency + share * (carries[j] + max(way.carries, pipe.up.carries))
        up.offer(client, seconds, share * (price[j] + way.price + pipe.up.price))
        seconds = latency[:, j] + back.latency + carries[:, j] + max(back.carries, pipe.back.carries)
        down.offer(client, seconds, price[:, j] + back.price + pipe.back.price)
    # All clients of an aggregator send through its pipe, whatever their route.
    up.seconds = np.maximum(up.seconds, share * np.array([pipe.up.carries for pipe in pipes]))
    down.seconds = np.maximum(down.seconds, np.array([pipe.back.carries for pipe in pipes]))
    return up, down
