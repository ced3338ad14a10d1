"""Topologies: which aggregators exchange models in the decentralised patterns.

Each function returns an undirected graph over the aggregators 0 to M - 1, or raises InputError if the settings allow
none. A single aggregator always gives a graph without edges.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from atoll.support.errors import InputError, refusing
from atoll.support.limits import Count, Probability
from atoll.support.requiring import checked
from atoll.support.untrusted import read_bytes

if TYPE_CHECKING:
    import networkx as nx

_checked = checked("network.{}", degree=Count)

_SHOWN = 5  # aggregators named in an error
_DIGITS = 18  # of a number in a file; no aggregator's has more


@_checked
def grid(rows: int, columns: int) -> "nx.Graph[int]":
    """Link each cell of a grid to those above, below, left and right; cells are numbered row by row."""
    if min(rows, columns) < 1:
        raise InputError(f"network.grid = {[rows, columns]}: must be two positive whole numbers")
    cells = np.arange(rows * columns).reshape(rows, columns)
    across = zip(cells[:, :-1].ravel().tolist(), cells[:, 1:].ravel().tolist(), strict=True)
    down = zip(cells[:-1].ravel().tolist(), cells[1:].ravel().tolist(), strict=True)
    return _graph(rows * columns, [*across, *down])


@_checked
def ring(aggregators: int) -> "nx.Graph[int]":
    """Link each aggregator to the next one, and the last to the first; two have one link."""
    return _graph(aggregators, ((j, (j + 1) % aggregators) for j in range(aggregators if aggregators > 1 else 0)))


@_checked
def star(aggregators: int) -> "nx.Graph[int]":
    """Link aggregator 0 to all others."""
    return _graph(aggregators, ((0, j) for j in range(1, aggregators)))


@_checked
def complete(aggregators: int) -> "nx.Graph[int]":
    """Link all aggregators to each other."""
    return _graph(aggregators, ((i, j) for j in range(aggregators) for i in range(j)))


@_checked
def regular(aggregators: int, degree: Count, rng: np.random.Generator) -> "nx.Graph[int]":
    """Draw a graph in which every aggregator has `degree` neighbours; it need not be connected.

    Args:
        degree: neighbours of each aggregator.
    """
    import networkx as nx

    told = f"network.degree = {degree}"
    if not 0 <= degree < max(aggregators, 1):
        raise InputError(f"{told}: must be from 0 to {aggregators - 1}, the number of other aggregators")
    if degree * aggregators % 2:
        raise InputError(f"{told}: must be even, since the number of aggregators is {aggregators}")
    fewer = min(degree, aggregators - 1 - degree)  # a dense graph is drawn as the links that it lacks, which is faster
    drawn = nx.random_regular_graph(fewer, aggregators, seed=int(rng.integers(2**32)))
    return _graph(aggregators, drawn.edges if fewer == degree else nx.complement(drawn).edges)


@_checked
def erdos_renyi(aggregators: int, probability: Probability, rng: np.random.Generator) -> "nx.Graph[int]":
    """Link each pair of aggregators with this probability, independently; the graph need not be connected.

    Args:
        probability: of an edge.
    """
    import networkx as nx

    return _graph(aggregators, nx.gnp_random_graph(aggregators, probability, seed=int(rng.integers(2**32))).edges)


@_checked
def edges(aggregators: int, edges: list[list[int]] | str) -> "nx.Graph[int]":
    """Link the pairs given as a list, or as a text file with two numbers per line; # begins a comment.

    Args:
        edges: pairs of aggregators, or a file with them.
    """
    given = f"network.edges = {str(edges)!r}" if isinstance(edges, str | Path) else "network.edges"
    pairs = _read_pairs(Path(edges), given) if isinstance(edges, str | Path) else [tuple(pair) for pair in edges]
    for pair in pairs:
        if len(pair) != 2:
            raise InputError(f"{given}: {list(pair)} must be two aggregators")
        for node in pair:
            if not 0 <= node < aggregators:
                raise InputError(f"{given}: {list(pair)} names aggregator {node}, but they are 0 to {aggregators - 1}")
        if pair[0] == pair[1]:
            raise InputError(f"{given}: {list(pair)} joins aggregator {pair[0]} with itself")
    return _graph(aggregators, ((first, second) for first, second in pairs))


TOPOLOGIES: MappingProxyType[str, Callable[..., "nx.Graph[int]"]] = MappingProxyType(
    {
        "grid": grid,
        "ring": ring,
        "star": star,
        "complete": complete,
        "regular": regular,
        "erdos-renyi": erdos_renyi,
        "edges": edges,
    }
)


def neighbours_of(graph: "nx.Graph[int]") -> tuple[tuple[int, ...], ...]:
    """Return each aggregator's neighbours, ascending."""
    if unknown := [node for node in graph if node not in range(len(graph))]:
        raise InputError(f"network.topology: the graph has the node {unknown[0]!r}; they must be 0 to {len(graph) - 1}")
    if loops := [node for node in graph if graph.has_edge(node, node)]:
        raise InputError(f"network.topology: the graph joins aggregator {loops[0]} with itself")
    return tuple(tuple(sorted(graph[j])) for j in range(len(graph)))


def graph_of(neighbours: Sequence[Sequence[int]]) -> "nx.Graph[int]":
    """Return the graph of a network's neighbours, the inverse of `neighbours_of`."""
    return _graph(len(neighbours), ((j, other) for j, near in enumerate(neighbours) for other in near))


def is_cut(neighbours: Sequence[Sequence[int]], kept: Iterable[int]) -> bool:
    """Return whether these aggregators, without the others, fall into parts that are not linked to each other.

    >>> is_cut([[1], [0, 2], [1]], [0, 2]), is_cut([[1], [0, 2], [1]], [0, 1])
    (True, False)
    """
    import networkx as nx

    part = graph_of(neighbours).subgraph(kept)
    return len(part) > 0 and not nx.is_connected(part)


def require_connected(graph: "nx.Graph[int]") -> None:
    """Refuse a disconnected graph, since what one part learns never reaches the others."""
    import networkx as nx

    parts = [sorted(part) for part in nx.connected_components(graph)]
    if len(parts) <= 1:
        return
    part = min(parts, key=lambda nodes: (len(nodes), nodes))
    named = ", ".join(map(str, part[:_SHOWN])) + (f" and {len(part) - _SHOWN} more" if len(part) > _SHOWN else "")
    which = f"aggregator {named} has" if len(part) == 1 else f"aggregators {named} have"
    raise InputError(
        f"network.topology: {which} no path to the others, but the decentralised patterns need a connected graph"
    )


def _graph(aggregators: int, pairs: Iterable[tuple[int, int]]) -> "nx.Graph[int]":
    import networkx as nx

    if aggregators < 1:
        raise InputError(f"clustering.clusters = {aggregators}: must be at least 1")
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(aggregators))  # in this order, whatever the edges' order
    graph.add_edges_from(pairs)
    return graph


def _read_pairs(path: Path, given: str) -> list[tuple[int, ...]]:
    with refusing(f"{given}: cannot be read", UnicodeDecodeError):
        lines = read_bytes(path).decode().splitlines()
    pairs = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isascii() and word.isdecimal() and len(word) <= _DIGITS for word in words):
            raise InputError(f"{given}: line {number} is {line.strip()[:40]!r}; it must be two aggregators' numbers")
        pairs.append(tuple(map(int, words)))
    return pairs
