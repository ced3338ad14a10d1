"""Virtual time of transfers between clusters: to the server and back, or to neighbours (FedUC, Sec. V-B)."""

from itertools import chain

import numpy as np

from atoll.network.network import Network
from atoll.network.sharing import finish_seconds
from atoll.support.arrays import Floats, Mask


def merged_seconds(network: Network, pattern: str, ready: Floats, sends: Mask) -> Floats:
    """Return when each aggregator's transfer ends if its average is `ready` then, [aggregators].

    In CenSyn the aggregators that send share the links to the server if the network has any, or regions average.
    """
    if pattern != "censyn" or network.sharing is None:
        return ready + pattern_transfer_seconds(network, pattern)
    if network.regions is not None:
        return network.regions.received(ready, sends) + network.regions.returned()
    shared, ends = network.sharing, ready.copy()
    crosses = shared.crosses[:, sends]
    up = network.transfer_seconds[sends]
    ends[sends] = finish_seconds(ready[sends], up, crosses, shared.trunk_up_seconds)
    if network.return_seconds is None:  # downloads are free
        return ends
    begins = np.zeros(network.aggregators)
    returned = finish_seconds(begins, network.return_seconds, shared.crosses, shared.trunk_down_seconds)
    return ends + float(returned.max())  # the server sends its model to all aggregators at once


def paced_seconds(network: Network, seconds: Floats, pattern: str) -> Floats:
    """Return the events' seconds, [aggregators], so that clusters merge as often as `Network.frequencies` says.

    With frequencies and an asynchronous pattern, cluster j's event takes ``c / frequencies_j``, with the least c that
    leaves every cluster the time it needs: all but one wait before they merge. 0 stays 0.
    """
    if network.frequencies is None or not pattern.endswith("asy"):
        return seconds
    return np.where(seconds > 0, (network.frequencies * seconds).max() / network.frequencies, 0.0)


def pattern_transfer_seconds(network: Network, pattern: str) -> Floats:
    """Return an aggregator's transfer in an inter-cluster aggregation: to the server, or to all neighbours.

    Where downloads are not free, the server's model is sent back (`Network.return_seconds`): in CenSyn to all
    aggregators at the speed of the slowest link, in CenAsy to this one. For aggregators that share links, all send at
    once in CenSyn, and one alone in CenAsy.
    """
    if pattern.startswith("dec"):
        return broadcast_seconds(network)
    up, down = network.transfer_seconds, network.return_seconds
    if pattern == "censyn" and network.sharing is not None:
        return merged_seconds(network, pattern, np.zeros(len(up)), np.ones(len(up), bool))
    if down is None:
        return up
    return up + (down.max() if pattern == "censyn" else down)


def broadcast_seconds(network: Network) -> Floats:
    """Return the seconds until all neighbours have an aggregator's model, [aggregators]; 0 without neighbours."""
    senders = np.repeat(np.arange(network.aggregators), [len(near) for near in network.neighbours])
    hearers = np.fromiter(chain.from_iterable(network.neighbours), np.int64, len(senders))
    slowest = np.zeros(network.aggregators)
    np.maximum.at(slowest, senders, network.exchange_seconds[senders, hearers])
    return slowest
