"""What trainings and merges cost besides time: clients' energy, and the prices of the links that models cross.

Energy is power times seconds of computing, sending and receiving; waiting uses none.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.network.network import Network
from atoll.support.arrays import Floats


def training_joules(network: Network, labels: npt.NDArray[Any]) -> Floats | None:
    """Return each client's energy for one local training with its download and upload, [clients]; None if unknown.

    A transfer counts for as long as it takes alone: sharing a link sends no more bits. `labels` holds each client's
    aggregator, or -1 for a client left out, which uses nothing.

    >>> from atoll.network.network import Power
    >>> one, no = np.ones(1), np.zeros(1)
    >>> network = Network(2 * one, one[None], no, no[None], ((),), power=Power(3 * one, 5 * one, no))
    >>> training_joules(network, np.zeros(1, int))
    array([11.])
    """
    if (power := network.power) is None:
        return None
    joules, own = np.zeros(network.clients), np.flatnonzero(labels >= 0)
    down = 0.0 if network.download_seconds is None else network.download_seconds[own, labels[own]]
    joules[own] = (
        power.computing[own] * network.compute_seconds[own]
        + power.sending[own] * network.upload_seconds[own, labels[own]]
        + power.receiving[own] * down
    )
    return joules


def training_prices(network: Network, labels: npt.NDArray[Any]) -> Floats | None:
    """Return the price of each client's download and upload for one training, [clients]; None if unknown.

    `labels` holds each client's aggregator, or -1 for a client left out, which costs nothing.
    """
    if network.prices is None:
        return None
    own = np.flatnonzero(labels >= 0)
    paid = np.zeros(network.clients)
    paid[own] = network.prices.upload[own, labels[own]] + network.prices.download[own, labels[own]]
    return paid


def merge_prices(network: Network, labels: npt.NDArray[Any], has_server: bool) -> Floats | None:
    """Return the price of each aggregator's part in a merge, [aggregators]; None if unknown.

    This is the way to the server and back, shared where regions average, or, without a server, a model to each
    neighbour. `labels` are as for `training_prices`.
    """
    if network.prices is None:
        return None
    if has_server and network.regions is not None:
        return network.regions.paid(np.bincount(labels[labels >= 0], minlength=network.aggregators) > 0)
    if has_server:
        return network.prices.transfer + network.prices.back
    near = network.closed_neighbourhoods - np.eye(network.aggregators)
    return np.asarray((near * network.prices.exchange).sum(axis=1))
