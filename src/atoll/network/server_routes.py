"""Routes from aggregators to the server and back: their seconds and prices, what they share, and regions' trees."""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import networkx as nx
import numpy as np

from atoll.network.link_nodes import LinkedNodes
from atoll.network.links import FREE, Way
from atoll.network.regions import Regions
from atoll.network.sharing import Sharing

Hop = tuple[str, str]


def join(ways: Mapping[Hop, Way], hops: Sequence[Hop]) -> Way:
    """Return several links in turn as one."""
    return Way(*(sum(getattr(ways[hop], name) for hop in hops) for name in ("latency", "carries", "price")))


def ways_to_server(
    nodes: LinkedNodes, ways: Mapping[Hop, Way], hops: Sequence[Sequence[Hop]], server: str
) -> tuple[list[Way], list[Way]]:
    """Return each aggregator's way to the server and back, through the server's pipe; all free without hops."""
    pipe = nodes.pipe(server)
    there = [join(ways, mine) for mine in hops] or [FREE] * len(nodes.aggregators)
    back = [join(ways, [(b, a) for a, b in mine]) for mine in hops] or there
    return [way.through(pipe.up) for way in there], [way.through(pipe.back) for way in back]


def make_sharing(
    nodes: LinkedNodes, ways: Mapping[Hop, Way], hops: Sequence[Sequence[Hop]], server: str, share: float
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


def make_regions(
    graph: "nx.DiGraph[str]", nodes: LinkedNodes, ways: Mapping[Hop, Way], server: str, is_counted: bool
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
