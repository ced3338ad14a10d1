"""Virtual time inside a cluster, and of the events made of it (FedUC, Sec. V-B).

In a cluster one client uploads at a time, as in FedUC, or all at once where the network says what they share.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.network.network import Network
from atoll.network.sharing import Sharing, side_by_side
from atoll.network.transfers import merged_seconds, paced_seconds
from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.errors import InputError


def completion_seconds(compute_seconds: npt.ArrayLike, upload_seconds: npt.ArrayLike) -> float:
    """Return the seconds until all clients of one cluster have uploaded, one after the other (eq. 50).

    Clients upload in the order in which they finish computing, which is optimal (Theorem 5); on ties the first goes
    first. Both arguments are [clients of the cluster]; without clients it takes 0 s.
    """
    compute, upload = np.asarray(compute_seconds, np.float64), np.asarray(upload_seconds, np.float64)
    seconds = 0.0
    order = np.argsort(compute, kind="stable")
    for computed, uploading in zip(compute[order].tolist(), upload[order].tolist(), strict=True):
        seconds = max(seconds, computed) + uploading
    return seconds


def cluster_seconds(network: Network, members: Ids, aggregator: int) -> float:
    """Return the seconds until all these clients would have uploaded to the aggregator."""
    compute, upload = network.compute_seconds[members], network.upload_seconds[members, aggregator]
    if network.sharing is None:
        return completion_seconds(compute, upload)
    return float(side_by_side(compute, upload, network.sharing.up_seconds[aggregator]).max(initial=0))


def _uploaded(network: Network, sharing: Sharing, labels: npt.NDArray[Any]) -> Floats:
    """Return when each client has uploaded where a cluster's clients share a link, [clients]; 0 for one left out."""
    ends = np.zeros(len(labels))
    for j in np.unique(labels[labels >= 0]).tolist():
        own = np.flatnonzero(labels == j)
        compute, upload = network.compute_seconds[own], network.upload_seconds[own, j]
        ends[own] = side_by_side(compute, upload, sharing.up_seconds[j])
    return ends


def completion_of(network: Network, labels: npt.NDArray[Any]) -> Floats:
    """Return `cluster_seconds` of all clusters, bit-identical, [aggregators]; 0 without clients.

    `labels` [clients] holds each client's aggregator, or -1 for a client left out.
    """
    check_labels(network, labels)
    clients = np.flatnonzero(labels >= 0)
    if network.sharing is not None:
        longest = np.zeros(network.aggregators)
        np.maximum.at(longest, labels[clients], _uploaded(network, network.sharing, labels)[clients])
        return longest
    clusters = labels[clients].astype(np.int64)
    compute, upload = network.compute_seconds[clients], network.upload_seconds[clients, clusters]
    return _in_turns(clusters, compute, upload, network.aggregators)


def _in_turns(clusters: Ids, compute: Floats, upload: Floats, count: int) -> Floats:
    """Return `completion_seconds` of `count` clusters, given each client's cluster and seconds, [clients] each.

    All clusters advance together, one client each at a step. With the large clusters first, those that still have
    a client are a prefix, so that a step is two operations on slices.
    """
    sizes = np.bincount(clusters, minlength=count)
    order = np.lexsort((compute, clusters))  # stable: on ties the lower index is first
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    large_first = np.argsort(-sizes, kind="stable")
    place = np.empty_like(large_first)
    place[large_first] = np.arange(len(sizes))
    order = order[np.lexsort((place[clusters[order]], ranks))]
    compute, upload = compute[order], upload[order]
    seconds = np.zeros(len(sizes))
    begin = 0
    for end in np.cumsum(np.bincount(ranks)).tolist():
        going = seconds[: end - begin]
        np.maximum(going, compute[begin:end], out=going)
        going += upload[begin:end]
        begin = end
    return seconds[place]


def late_clients(network: Network, labels: npt.NDArray[Any], deadline_seconds: float) -> Mask:
    """Return which clients have not uploaded by the deadline, in the order of `completion_seconds`, [clients].

    An upload that would end after the deadline is not begun, and the next client may upload instead. Clients that
    upload side by side all send until then.
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
    """Return the least seconds that any client, alone in its cluster, needs to compute and upload."""
    own = np.flatnonzero(labels >= 0)
    return float((network.compute_seconds[own] + network.upload_seconds[own, labels[own]]).min(initial=math.inf))


def event_seconds(
    network: Network, labels: npt.NDArray[Any], pattern: str, intra_rounds: int, deadline_seconds: float = math.inf
) -> Floats:
    """Return how long a cluster's work between two inter-cluster aggregations takes, [aggregators].

    This is T' times the completion, each after the model's download if that is not free (`broadcast_down_seconds`),
    then the transfer (`merged_seconds`): in the central patterns to the server, in the decentralised ones to the
    neighbours, which all receive one broadcast at the speed of the slowest link. Aggregators without clients do no
    work: 0. Aggregators without neighbours have no transfer. Where clients are late (`late_clients`) the deadline
    replaces the completion. With given frequencies clusters wait (`paced_seconds`).
    """
    completion = completion_of(network, labels)
    if completion.max(initial=0) > deadline_seconds:  # else no client is late
        completion[labels[late_clients(network, labels, deadline_seconds)]] = deadline_seconds
    sizes = np.bincount(labels[labels >= 0], minlength=network.aggregators)
    seconds = intra_rounds * (completion + broadcast_down_seconds(network, labels))
    seconds = merged_seconds(network, pattern, seconds, sizes > 0)
    return paced_seconds(network, np.where(sizes > 0, seconds, 0.0), pattern)


def download_seconds(network: Network, members: Ids, aggregator: int) -> float:
    """Return the seconds until all these clients would have the aggregator's model; 0 if downloads are free."""
    if network.download_seconds is None:
        return 0.0
    alone = network.download_seconds[members, aggregator]
    if network.sharing is None:
        return float(alone.max(initial=0))
    return float(side_by_side(np.zeros(len(alone)), alone, network.sharing.down_seconds[aggregator]).max(initial=0))


def broadcast_down_seconds(network: Network, labels: npt.NDArray[Any]) -> Floats:
    """Return the seconds until a cluster's clients all have its aggregator's model, [aggregators]; 0 if it is free.

    One broadcast reaches them all, at the speed of the slowest link; clients that share a link are sent one each.
    """
    slowest = np.zeros(network.aggregators)
    own = np.flatnonzero(labels >= 0)
    if network.sharing is not None:
        for j in np.unique(labels[own]).tolist():
            slowest[j] = download_seconds(network, np.flatnonzero(labels == j), j)
    elif network.download_seconds is not None:
        np.maximum.at(slowest, labels[own], network.download_seconds[own, labels[own]])
    return slowest


def check_labels(network: Network, labels: npt.NDArray[Any]) -> None:
    """Refuse labels that are out of range, or not one per client."""
    if labels.shape != (network.clients,):
        raise InputError(f"clustering: {len(labels)} labels for {network.clients} clients; must be one per client")
    if len(labels) and not -1 <= labels.min() <= labels.max() < network.aggregators:
        raise InputError(f"clustering: labels must be from -1 to {network.aggregators - 1}")
