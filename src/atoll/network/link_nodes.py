"""The nodes that links name: clients, aggregators, and those that pass models on."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from atoll.network.links import ALL, FREE, Link
from atoll.support.errors import InputError

_NO_PIPE = Link("", ALL, "", FREE, None)


@dataclass(frozen=True, eq=False)
class LinkedNodes:
    """The nodes that links name, and whose links they are.

    Attributes:
        aggregators: in the order in which clients' links name them.
        own: each client's links, [clients].
        inner: the links between all other nodes.
        pipes: by a node's name, what all that send to it share.
    """

    aggregators: tuple[str, ...]
    own: list[list[Link]]
    inner: list[Link]
    pipes: Mapping[str, Link]

    def pipe(self, name: str) -> Link:
        """Return what all that send to a node share; a free link if there is nothing."""
        return self.pipes.get(name, _NO_PIPE)


def sort_out(path: str, links: Sequence[Link], names: Sequence[str], server: str) -> LinkedNodes:
    """Return the nodes of these links, given the clients' names."""
    _require_pairs(links, set(names))
    pipes = {link.upper: link for link in links if link.lower == ALL}
    by_lower: dict[str, list[Link]] = {name: [] for name in names}
    inner = [link for link in links if link.lower != ALL and link.lower not in by_lower]
    for link in links:
        if link.lower != ALL and link.lower in by_lower:
            by_lower[link.lower].append(link)
    own = [by_lower[name] for name in names]
    for name, mine in zip(names, own, strict=True):
        if not any(link.upper != server for link in mine):
            raise InputError(f"{path}: client {name!r} has no link to an aggregator")
    aggregators = tuple(dict.fromkeys(link.upper for mine in own for link in mine if link.upper != server))
    for link in pipes.values():
        if link.upper not in (*aggregators, server):
            raise InputError(
                f"{link.where}: 'to' is {link.upper!r}; a link from '*' must lead to an aggregator, for all its "
                "clients, or to the server, for all aggregators"
            )
    _require_known(links, inner, {*names, *aggregators, server, ALL})
    return LinkedNodes(aggregators, own, inner, pipes)


def _require_pairs(links: Sequence[Link], clients: Collection[str]) -> None:
    """Refuse links that end at a client, and two links between the same nodes."""
    joined = set[frozenset[str]]()
    for link in links:
        if link.upper in clients:
            raise InputError(f"{link.where}: 'to' is the client {link.upper!r}; a client's links must begin at it")
        if frozenset((link.lower, link.upper)) in joined:
            raise InputError(f"{link.where}: {link.lower!r} and {link.upper!r} are already linked")
        joined.add(frozenset((link.lower, link.upper)))


def _require_known(links: Sequence[Link], inner: Sequence[Link], known: set[str]) -> None:
    """Refuse a node without a role: usually a client that is spelt differently elsewhere."""
    ends = [node for link in inner for node in (link.lower, link.upper)]
    above = {link.upper for link in inner}
    for link in links:
        for node in (link.lower, link.upper):
            if node not in known and (ends.count(node) < 2 or node not in above):
                raise InputError(
                    f"{link.where}: unknown id {node!r}: it is not a client, and no route from a client or aggregator "
                    "passes through it"
                )
