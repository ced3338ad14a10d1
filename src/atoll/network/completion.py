"""Virtual time inside a cluster, then of the transfer between clusters (FedUC, Sec. V-B).

In a cluster one client uploads at a time, as FedUC has it, or all side by side where the network says what they share.
"""

import math
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.network.network import Network
from atoll.network.sharing import Sharing, finish_seconds
from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.errors import InputError

_CENTRAL = {"censyn": True, "cenasy": True, "decsyn": False, "decasy": False}


def completion_seconds(compute_seconds: npt.ArrayLike, upload_seconds: npt.ArrayLike) -> float:
    """Return the seconds until all clients of one cluster have uploaded, one after the other (eq. 50).

    Clients upload in the order in which they finish computing, which is the best order (Theorem 5); of equals the
    first goes first. Both arguments are [clients of the cluster]; without clients it takes 0 s.

    >>> completion_seconds([1.0, 0.5], [2.0, 0.1])
    3.0
    """
    compute, upload = np.asarray(compute_seconds, np.float64), np.asarray(upload_seconds, np.float64)
    seconds = 0.0
    order = np.argsort(compute, kind="stable")
    for computed, uploading in zip(compute[order].tolist(), upload[order].tolist(), strict=True):
        seconds = max(seconds, computed) + uploading
    return seconds


def cluster_seconds(network: Network, members: Ids, aggregator: int) -> float:
    """Return the seconds until all these clients, if they were the aggregator's, have uploaded."""
    compute, upload = network.compute_seconds[members], network.upload_seconds[members, aggregator]
    if network.sharing is None:
        return completion_seconds(compute, upload)
    return float(_side_by_side(compute, upload, network.sharing.up_seconds[aggregator]).max(initial=0))


def _side_by_side(begins: Floats, alone: Floats, carries: float) -> Floats:
    """Return when each of some clients is done, that all send through what carries one of them in so many seconds."""
    return finish_seconds(begins, alone, np.ones((1, len(begins)), bool), np.array([carries]))


def _uploaded(network: Network, sharing: Sharing, labels: npt.NDArray[Any]) -> Floats:
    """Return when each client that shares with others of its cluster has uploaded, [clients]; 0 for one left out."""
    ends = np.zeros(len(labels))
    for j in np.unique(labels[labels >= 0]).tolist():
        own = np.flatnonzero(labels == j)
        compute, upload = network.compute_seconds[own], network.upload_seconds[own, j]
        ends[own] = _side_by_side(compute, upload, sharing.up_seconds[j])
    return ends


def completion_of(network: Network, labels: npt.NDArray[Any]) -> Floats:
    """Return `cluster_seconds` of all clusters, to the bit, [aggregators]; 0 without clients.

    `labels` [clients] holds each client's aggregator, or -1 for a client left out.

    Raises:
        InputError: labels of another length, or outside the range.
    """
    check_labels(network, labels)
    clients = np.flatnonzero(labels >= 0)
    if network.sharing is not None:
        longest = np.zeros(network.aggregators)
        np.maximum.at(longest, labels[clients], _uploaded(network, network.sharing, labels)[clients])
        return longest
    clusters = labels[clients].astype(np.int64)
    sizes = np.bincount(clusters, minlength=network.aggregators)
    order = np.lexsort((network.compute_seconds[clients], clusters))  # stable: of equals the lower index is first
    clients, clusters = clients[order], clusters[order]
    ranks = np.arange(len(clients)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # All clusters advance together, one client each at a step. With the large clusters first, those that still have
    # a client are a prefix, so that a step is two operations on slices.
    large_first = np.argsort(-sizes, kind="stable")
    place = np.empty_like(large_first)
    place[large_first] = np.arange(len(sizes))
    steps = np.lexsort((place[clusters], ranks))
    clients, clusters = clients[steps], clusters[steps]
    compute, upload = network.compute_seconds[clients], network.upload_seconds[clients, clusters]
    ends = np.cumsum(np.bincount(ranks)) if len(ranks) else np.empty(0, np.int64)
    seconds = np.zeros(len(sizes))
    begin = 0
    for end in ends.tolist():
        going = seconds[: end - begin]
        np.maximum(going, compute[begin:end], out=going)
        going += upload[begin:end]
        begin = end
    return seconds[place]


def late_clients(network: Network, labels: npt.NDArray[Any], deadline_seconds: float) -> Mask:
    """Return which clients have not uploaded by the deadline, in the order of `completion_seconds`, [clients].

    An upload that would not finish by then is not begun, and the next client may upload instead. Clients that send side
    by side all send until then.
    """
    check_labels(network, labels)
    if network.sharing is not None:
        return _uploaded(network, network.sharing, labels) > deadline_seconds
    late = np.zeros(len(labels), bool)
    busy = np.zeros(network.aggregators)
    for client in np.argsort(network.compute_seconds, kind="stable"):
        cluster = labels[client]
        if cluster >= 0:
            end = max(busy[cluster], network.compute_seconds[client]) + network.upload_seconds[client, cluster]
            late[client] = end > deadline_seconds
            busy[cluster] = busy[cluster] if late[client] else end
    return late


def fastest_seconds(network: Network, labels: npt.NDArray[Any]) -> float:
    """Return the least seconds that a client needs to compute and upload to its cluster, if it is alone there."""
    own = np.flatnonzero(labels >= 0)
    return float((network.compute_seconds[own] + network.upload_seconds[own, labels[own]]).min(initial=math.inf))


def event_seconds(
    network: Network,
    labels: npt.NDArray[Any],
    pattern: str,
    intra_rounds: int,
    deadline_seconds: float = math.inf,
) -> Floats:
    """Return how long a cluster's work between two inter-cluster aggregations takes, [aggregators].

    It is T' times the completion, each after the model's download if that is not free (`broadcast_down_seconds`), then
    the model's transfer (`merged_seconds`): in the central patterns to the server, in the decentralised ones to the
    neighbours, all of which hear one broadcast at the speed of the slowest link. An aggregator without clients never
    works: 0. An aggregator without neighbours has no transfer. With clients that are late (`late_clients`) the deadline
    replaces the completion. With given frequencies clusters wait (`paced_seconds`).

    Raises:
        InputError: an unknown pattern, `intra_rounds` below 1, or labels as in `completion_of`.
    """
    _check_pattern(pattern)
    if intra_rounds < 1:
        raise InputError(f"method.intra_rounds = {intra_rounds}: must be at least 1")
    completion = completion_of(network, labels)
    if completion.max(initial=0) > deadline_seconds:  # else nobody is late
        completion[labels[late_clients(network, labels, deadline_seconds)]] = deadline_seconds
    sizes = np.bincount(labels[labels >= 0], minlength=network.aggregators)
    seconds = intra_rounds * (completion + broadcast_down_seconds(network, labels))
    seconds = merged_seconds(network, pattern, seconds, sizes > 0)
    return paced_seconds(network, np.where(sizes > 0, seconds, 0.0), pattern)


def merged_seconds(network: Network, pattern: str, ready: Floats, sends: Mask) -> Floats:
    """Return when each aggregator's work has also been transferred, if its average is `ready` then, [aggregators].

    In CenSyn the aggregators that send share the links to the server, if the network says which, or regions average.

    Raises:
        InputError: an unknown pattern.
    """
    if pattern != "censyn" or network.sharing is None:
        return ready + pattern_transfer_seconds(network, pattern)
    if network.regions is not None:
        return network.regions.received(ready, sends) + network.regions.returned()
    shared, ends = network.sharing, ready.copy()
    crosses = shared.crosses[:, sends]
    up = network.transfer_seconds[sends]
    ends[sends] = finish_seconds(ready[sends], up, crosses, shared.trunk_up_seconds)
    return ends + _sent_down(network, shared)


def _sent_down(network: Network, shared: Sharing) -> float:
    """Return the seconds in which the server sends its model to all aggregators at once; 0 where downloads are free."""
    if network.return_seconds is None:
        return 0.0
    begins = np.zeros(network.aggregators)
    ends = finish_seconds(begins, network.return_seconds, shared.crosses, shared.trunk_down_seconds)
    return float(ends.max())


def paced_seconds(network: Network, seconds: Floats, pattern: str) -> Floats:
    """Return the events' seconds, [aggregators], so that clusters merge as often as `Network.frequencies` says.

    Where these are given and the pattern is asynchronous, cluster j's event takes ``c / frequencies_j``, with the least
    c that leaves every cluster the time that it needs: all but one wait before they merge. 0 stays 0.
    """
    if network.frequencies is None or not pattern.endswith("asy"):
        return seconds
    return np.where(seconds > 0, (network.frequencies * seconds).max() / network.frequencies, 0.0)


def download_seconds(network: Network, members: Ids, aggregator: int) -> float:
    """Return the seconds until all these clients, if they were the aggregator's, have its model; 0 if it is free."""
    if network.download_seconds is None:
        return 0.0
    alone = network.download_seconds[members, aggregator]
    if network.sharing is None:
        return float(alone.max(initial=0))
    return float(_side_by_side(np.zeros(len(alone)), alone, network.sharing.down_seconds[aggregator]).max(initial=0))


def broadcast_down_seconds(network: Network, labels: npt.NDArray[Any]) -> Floats:
    """Return the seconds until all of a cluster's clients have its aggregator's model, [aggregators]; 0 if it is free.

    One broadcast reaches them all, at the speed of the slowest link; where clients share what they receive through,
    each is sent its own.
    """
    slowest = np.zeros(network.aggregators)
    own = np.flatnonzero(labels >= 0)
    if network.sharing is not None:
        for j in np.unique(labels[own]).tolist():
            slowest[j] = download_seconds(network, np.flatnonzero(labels == j), j)
    elif network.download_seconds is not None:
        np.maximum.at(slowest, labels[own], network.download_seconds[own, labels[own]])
    return slowest


def pattern_transfer_seconds(network: Network, pattern: str) -> Floats:
    """Return an aggregator's transfer in an inter-cluster aggregation: to the server, or to all neighbours.

    Where downloads are not free, the server's model comes back, `Network.return_seconds`: in CenSyn to all aggregators
    at the speed of the slowest link, in CenAsy to this one. Aggregators that share links are counted as if all sent at
    once in CenSyn, and nobody else in CenAsy.

    Raises:
        InputError: an unknown pattern.
    """
    _check_pattern(pattern)
    if not _CENTRAL[pattern]:
        return broadcast_seconds(network)
    up, down = network.transfer_seconds, network.return_seconds
    if pattern == "censyn" and network.sharing is not None:
        return merged_seconds(network, pattern, np.zeros(len(up)), np.ones(len(up), bool))
    if down is None:
        return up
    return up + (down.max() if pattern == "censyn" else down)


def broadcast_seconds(network: Network) -> Floats:
    """Return the seconds until all neighbours have heard an aggregator's model, [aggregators]; 0 without neighbours."""
    senders = np.repeat(np.arange(network.aggregators), [len(near) for near in network.neighbours])
    hearers = np.fromiter(chain.from_iterable(network.neighbours), np.int64, len(senders))
    slowest = np.zeros(network.aggregators)
    np.maximum.at(slowest, senders, network.exchange_seconds[senders, hearers])
    return slowest


def _check_pattern(pattern: str) -> None:
    if pattern not in _CENTRAL:
        raise InputError(f"method.pattern = {pattern!r}: must be one of {', '.join(_CENTRAL)}")


def check_labels(network: Network, labels: npt.NDArray[Any]) -> None:
    """Refuse labels that are not one a client, or outside the range.

    Raises:
        InputError: says what they must be.
    """
    if labels.shape != (network.clients,):
        raise InputError(f"clustering: {len(labels)} labels for {network.clients} clients; there must be one a client")
    if len(labels) and not -1 <= labels.min() <= labels.max() < network.aggregators:
        raise InputError(f"clustering: labels must be from -1 to {network.aggregators - 1}")
