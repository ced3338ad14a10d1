"""Energy that clients use: power times seconds of computing, sending and receiving; waiting uses none."""

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
