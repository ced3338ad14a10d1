"""From links by name to a network's seconds: the quickest ways from clients to aggregators, and on to the server.

A node passes on what it has whole, so a way takes as long as its links in turn. Nodes that are no clients, no
aggregators and not the server, such as a region's, pass on; where they are asked to, they average first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import networkx as nx
import numpy as np

from atoll.network.links import ALL, Link, Way
from atoll.network.network import Network, Power, Prices
from atoll.network.regions import Regions
from atoll.network.sharing import Sharing
from atoll.support.arrays import Floats
from atoll.support.errors import InputError

_Hop = tuple[str, str]
_NOTHING = Way(0.0, 0.0)


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Who is who among links.

    Attributes:
        clients: their number, by name.
        aggregators: in the order in which clients' links name them.
        own: each client's links.
        inner: the links between all others.
        pipes: what all that send to a node do through, by its name.
    """

    clients: Mapping[str, int]
    aggregators: tuple[str, ...]
    own: list[list[Link]]
    inner: list[Link]
    pipes: Mapping[str, Link]


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
    """Return the network of these links, without neighbours where no two aggregators are linked.

    Args:
        path: of the file, for errors.
        links: as `LinksFile.links` returns them.
        names: of the clients, in order.
        server: its name; without a link to it there is none, and transfers are free.
        compute_seconds: of each client's training, [clients].
        upload_share: what a client uploads, as a share of a model.
        power: of the clients.
        needs_server: whether some link must lead to it.
        has_prices: whether links say what sending costs; of ways that are equally quick the first counts.
        averages: whether nodes on the way to the server average what they pass on.

    Raises:
        InputError: a client that reaches no aggregator, an id that nothing else names, or nodes that no path joins.
    """
    nodes = _sort_out(path, links, names, server)
    ways = _ways(nodes.inner)
    order, has_server = nodes.aggregators, any(server in hop for hop in ways)
    if needs_server and not has_server:
        raise InputError(f"{path}: no aggregator's link leads to {server!r}, which the central patterns need")
    graph = _graph(path, nodes, ways, server if has_server else None)
    is_counted = all(link.down is not None for link in links)
    routes = {(a, b): _join(ways, hops) for a, b, hops in _routes(graph, order)}
    up, down, *own_prices = _to_aggregators(nodes, routes, upload_share, has_prices)
    exchange = np.array([[routes[a, b].latency + routes[a, b].carries for b in order] for a in order])
    to_server = [nx.dijkstra_path(graph, a, server) for a in order] if has_server else []
    transfer, back, sharing, *inner_prices = _to_server(nodes, ways, to_server, server, upload_share)
    between = np.array([[routes[a, b].price for b in order] for a in order])
    near = [
        tuple(sorted(k for k, b in enumerate(order) if b != a and ((a, b) in ways or (b, a) in ways))) for a in order
    ]
    return Network(
        compute_seconds=compute_seconds,
        upload_seconds=up,
        transfer_seconds=transfer,
        exchange_seconds=exchange,
        neighbours=tuple(near),
        download_seconds=down if is_counted else None,
        down_transfer_seconds=back if is_counted else None,
        sharing=sharing,
        regions=_regions(graph, nodes, ways, server, is_counted) if averages and has_server else None,
        power=power,
        prices=_prices(own_prices, inner_prices, between, is_counted) if has_prices else None,
        client_names=tuple(names),
        aggregator_names=order,
    )


def _prices(own: Sequence[Floats], inner: Sequence[Floats], between: Floats, is_counted: bool) -> Prices:
    """Return all prices; downloads that are free have none."""
    (up, down), (there, back) = own, inner
    return Prices(up, down * is_counted, there, back * is_counted, between)


def _sort_out(path: str, links: Sequence[Link], names: Sequence[str], server: str) -> _Nodes:
    clients = {name: k for k, name in enumerate(names)}
    own, inner, pipes = [list[Link]() for _ in names], list[Link](), dict[str, Link]()
    joined = set[frozenset[str]]()
    for link in links:
        if link.upper in clients:
            raise InputError(f"{link.where}: 'to' is the client {link.upper!r}; links of clients go from them")
        if frozenset((link.lower, link.upper)) in joined:
            raise InputError(f"{link.where}: {link.lower!r} and {link.upper!r} are linked already; once is enough")
        joined.add(frozenset((link.lower, link.upper)))
        if link.lower == ALL:
            pipes[link.upper] = link  # of whom is known below
        elif link.lower in clients:
            own[clients[link.lower]].append(link)
        else:
            inner.append(link)
    for name, mine in zip(names, own, strict=True):
        if not any(link.upper != server for link in mine):
            raise InputError(f"{path}: client {name!r} reaches no aggregator; it needs a row from it to one")
    aggregators = tuple(dict.fromkeys(link.upper for mine in own for link in mine if link.upper != server))
    for link in pipes.values():
        if link.upper not in (*aggregators, server):
            raise InputError(
                f"{link.where}: {link.upper!r} is shared by nobody; '*' stands for all clients of an aggregator, or "
                "for all aggregators of the server"
            )
    _require_known(links, inner, {*clients, *aggregators, server, ALL})
    return _Nodes(clients, aggregators, own, inner, pipes)


def _require_known(links: Sequence[Link], inner: Sequence[Link], known: set[str]) -> None:
    """Refuse a node that is named once and is nobody: mostly a client that is spelt otherwise elsewhere."""
    ends = [node for link in inner for node in (link.lower, link.upper)]
    above = {link.upper for link in inner}
    for link in links:
        for node in (link.lower, link.upper):
            if node not in known and (ends.count(node) < 2 or node not in above):
                raise InputError(
                    f"{link.where}: unknown id {node!r}: it is no client's, and no client's or aggregator's way leads "
                    "over it"
                )


def _ways(inner: Sequence[Link]) -> dict[_Hop, Way]:
    """Return each direction of each link; one that nothing is said of takes as long as the other."""
    ways = {(link.lower, link.upper): link.up for link in inner}
    return ways | {(link.upper, link.lower): link.down or link.up for link in inner}


def _graph(path: str, nodes: _Nodes, ways: Mapping[_Hop, Way], server: str | None) -> "nx.DiGraph[str]":
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(nodes.aggregators)
    graph.add_weighted_edges_from((a, b, way.latency + way.carries) for (a, b), way in ways.items())
    first = server or nodes.aggregators[0]
    there = nx.node_connected_component(graph.to_undirected(), first)
    if lost := [name for name in nodes.aggregators if name not in there]:
        raise InputError(
            f"{path}: is in parts: aggregator {lost[0]!r} has no path to {first!r}; all aggregators, and the server if "
            "there is one, must be joined"
        )
    return graph


def _routes(graph: "nx.DiGraph[str]", order: Sequence[str]) -> list[tuple[str, str, list[_Hop]]]:
    """Return the quickest way from each aggregator to each, as hops."""
    found = []
    for a in order:
        paths = nx.single_source_dijkstra_path(graph, a)
        found += [(a, b, list(pairwise(paths[b]))) for b in order]
    return found


def _join(ways: Mapping[_Hop, Way], hops: Sequence[_Hop]) -> Way:
    """Return several links one after the other as one."""
    return Way(*(sum(getattr(ways[hop], name) for hop in hops) for name in ("latency", "carries", "price")))


def _to_aggregators(nodes: _Nodes, routes: Mapping[_Hop, Way], share: float, has_prices: bool) -> Iterator[Floats]:
    """Yield seconds up and down between each client and each aggregator, then prices, [clients, aggregators] each."""
    order = nodes.aggregators
    latency, carries, price = (
        np.array([[getattr(routes[a, b], name) for b in order] for a in order])
        for name in ("latency", "carries", "price")
    )
    pipes = [(pipe.up, pipe.down or _NOTHING) if (pipe := nodes.pipes.get(name)) else (_NOTHING,) * 2 for name in order]
    pipe_up, pipe_down = np.array([[way.carries for way in pipe] for pipe in pipes]).T
    place = {name: j for j, name in enumerate(order)}
    up, down = np.full((2, len(nodes.clients), len(order)), np.inf)
    up_price, down_price = np.zeros((2, *up.shape)) if has_prices else (None, None)

    def take(quickest: Floats, seconds: Floats, prices: Floats | None, price: Floats) -> None:
        if prices is not None:
            prices[:] = np.where(seconds < quickest, price, prices)
        np.minimum(quickest, seconds, out=quickest)

    for k, links in enumerate(nodes.own):
        for link in links:
            if (j := place.get(link.upper)) is None:
                continue  # straight to the server
            way, back = link.up, link.down or _NOTHING
            (shared, shared_back) = pipes[j]
            seconds = latency[j] + way.latency + share * (carries[j] + max(way.carries, shared.carries))
            paid = share * (price[j] + way.price + shared.price)
            take(up[k], seconds, None if up_price is None else up_price[k], paid)
            seconds = latency[:, j] + back.latency + carries[:, j] + max(back.carries, shared_back.carries)
            paid = price[:, j] + back.price + shared_back.price
            take(down[k], seconds, None if down_price is None else down_price[k], paid)
    yield np.maximum(up, share * pipe_up)  # whoever belongs to it sends through its pipe
    yield np.maximum(down, pipe_down)
    if up_price is not None and down_price is not None:
        yield from (up_price, down_price)


def _to_server(
    nodes: _Nodes, ways: Mapping[_Hop, Way], paths: Sequence[Sequence[str]], server: str, share: float
) -> tuple[Floats, Floats, Sharing, Floats, Floats]:
    """Return seconds of a model from each aggregator to the server and back, all that is shared, and both prices."""
    hops = [list(pairwise(path)) for path in paths]
    crossed = list(dict.fromkeys(chain.from_iterable(hops)))
    shape = (len(crossed), len(nodes.aggregators))
    crosses = np.array([[hop in mine for mine in hops] for hop in crossed], bool).reshape(shape)
    trunks = [(ways[a, b].carries, ways[b, a].carries) for a, b in crossed]
    several = crosses.sum(axis=1) > 1
    crosses, trunks = crosses[several], [trunk for trunk, kept in zip(trunks, several, strict=True) if kept]
    both = {name: (link.up, link.down or _NOTHING) for name, link in nodes.pipes.items()}
    pipes = {name: (up.carries, down.carries) for name, (up, down) in both.items()}
    if server in pipes and hops:
        crosses, trunks = np.vstack([crosses, np.ones((1, len(hops)), bool)]), [*trunks, pipes[server]]
    all_up, all_down = pipes.get(server, (0.0, 0.0))
    there = [_join(ways, mine) for mine in hops] or [_NOTHING] * len(nodes.aggregators)
    back = [_join(ways, [(b, a) for a, b in mine]) for mine in hops] or there
    own, table = np.array([pipes.get(name, (0.0, 0.0)) for name in nodes.aggregators]), np.array(trunks, float)
    sharing = Sharing(
        up_seconds=share * own[:, 0],
        down_seconds=own[:, 1],
        crosses=crosses.reshape(len(trunks), len(nodes.aggregators)),
        trunk_up_seconds=table.reshape(-1, 2)[:, 0],
        trunk_down_seconds=table.reshape(-1, 2)[:, 1],
    )
    up = np.array([way.latency + max(way.carries, all_up) for way in there])
    down = np.array([way.latency + max(way.carries, all_down) for way in back])
    shared, shared_back = both.get(server, (_NOTHING, _NOTHING))
    paid = np.array([way.price + shared.price for way in there])
    return up, down, sharing, paid, np.array([way.price + shared_back.price for way in back])


def _regions(
    graph: "nx.DiGraph[str]", nodes: _Nodes, ways: Mapping[_Hop, Way], server: str, is_counted: bool
) -> Regions:
    """Return the quickest ways to the server as a tree."""
    paths = nx.single_source_dijkstra_path(graph.reverse(copy=False), server)  # from one source: their links are a tree
    hops = {hop for name in nodes.aggregators for hop in pairwise(reversed(paths[name]))}
    above = dict(hops)
    order = [*nodes.aggregators, *sorted(above.keys() - set(nodes.aggregators))]
    pipe = nodes.pipes.get(server)
    pipe_up, pipe_down = (_NOTHING, _NOTHING) if pipe is None else (pipe.up, pipe.down or _NOTHING)

    def through(lower: str, upper: str, pipe: Way) -> Way:
        """Return a direction of the link above a node, with the server's pipe if it leads there."""
        way = ways[lower, upper]
        if server not in (lower, upper):
            return way
        return Way(way.latency, max(way.carries, pipe.carries), way.price + pipe.price)

    up = [through(name, above[name], pipe_up) for name in order]
    down = [through(above[name], name, pipe_down) if is_counted else _NOTHING for name in order]
    return Regions(
        above=np.array([order.index(above[name]) if above[name] != server else -1 for name in order]),
        upwards=np.array(sorted(range(len(order)), key=lambda k: -len(paths[order[k]]))),
        up_seconds=np.array([way.latency + way.carries for way in up]),
        down_seconds=np.array([way.latency + way.carries for way in down]),
        prices=np.array([there.price + back.price for there, back in zip(up, down, strict=True)]),
        pipe_up=pipe_up.carries,
        pipe_down=pipe_down.carries,
    )
