"""What a network is: seconds of computing, uploading and transfer, and which aggregators are neighbours."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Network:
    """Clients, aggregators and, in the central patterns, a server; downloads are free.

    Attributes:
        compute_seconds: L^c_i, a client's local training between two intra-cluster aggregations, [clients].
        upload_seconds: L^u_ij, one upload of the model to each aggregator while nobody else sends, [clients, aggregators].
        transfer_seconds: an aggregator's upload of the model to the server, [aggregators].
        exchange_seconds: one upload of the model from an aggregator to another, [aggregators, aggregators]; 0 to itself.
        neighbours: the other aggregators that each one exchanges models with, ascending.
        clients_xy: positions in metres, [clients, 2], or None where seconds were given instead.
        aggregators_xy: the same, [aggregators, 2].
        server_xy: the same, [2].
    """

    compute_seconds: Floats
    upload_seconds: Floats
    transfer_seconds: Floats
    exchange_seconds: Floats
    neighbours: tuple[tuple[int, ...], ...]
    clients_xy: Floats | None = None
    aggregators_xy: Floats | None = None
    server_xy: Floats | None = None

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        return len(self.compute_seconds)

    @property
    def aggregators(self) -> int:
        """Number of aggregators, M."""
        return len(self.transfer_seconds)
