"""What a network is: seconds of computing, uploading and transfers, and which aggregators are neighbours."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from atoll.network.computed_rows import ComputedRows
from atoll.network.regions import Regions
from atoll.network.sharing import Sharing
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.limits import PositiveFloat
from atoll.support.requiring import require


@dataclass(frozen=True, eq=False)
class Power:
    """Power that clients draw while they work, watts, [clients] each."""

    computing: Floats
    sending: Floats
    receiving: Floats


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices of sending once, in the file's currency.

    Attributes:
        upload: an update from each client to each aggregator, [clients, aggregators].
        download: a model in return, [clients, aggregators].
        transfer: a model from each aggregator to the server, [aggregators].
        back: the server's model to each aggregator, [aggregators].
        exchange: a model from one aggregator to another, [aggregators, aggregators].
    """

    upload: Floats
    download: Floats
    transfer: Floats
    back: Floats
    exchange: Floats


@dataclass(frozen=True, eq=False)
class Network:
    """Clients, aggregators and, in the central patterns, a server.

    Attributes:
        compute_seconds: L^c_i, a client's local training between two intra-cluster aggregations, [clients].
        upload_seconds: L^u_ij, one upload of the model to each aggregator while no other client sends,
            [clients, aggregators]; those of many pairs are `ComputedRows`, as are downloads.
        transfer_seconds: one upload of the model from each aggregator to the server, [aggregators].
        exchange_seconds: one upload of the model from one aggregator to another, 0 to itself,
            [aggregators, aggregators].
        neighbours: the other aggregators that each one exchanges models with, ascending.
        clients_xy: positions in metres, [clients, 2]; None where seconds were given instead.
        aggregators_xy: the same, [aggregators, 2].
        server_xy: the same, [2].
        download_seconds: one download of the model from each aggregator to each client alone, [clients, aggregators];
            None: downloads are free, also those from the server.
        frequencies: how often aggregators merge in the asynchronous patterns, up to a common factor, [aggregators];
            faster ones wait. None: each at its own speed.
        down_transfer_seconds: the server's model to each aggregator, where downloads are not free, [aggregators];
            None: the same as up.
        sharing: links over which several send at once; None: an aggregator's clients send one after the other, and
            nothing else is shared.
        regions: in CenSyn, the tree of nodes that average on the way to the server; None: they pass each model on.
        power: of the clients; None: unknown.
        prices: of sending; None: unknown.
        client_names: the clients' names; None: their numbers.
        aggregator_names: the aggregators' names.

    Raises:
        InputError: if there is no aggregator, shapes do not agree, seconds are negative or not finite, positions not
            finite, frequencies not positive, or neighbours unknown, not ascending, or not mutual.
    """

    compute_seconds: Floats
    upload_seconds: Floats
    transfer_seconds: Floats
    exchange_seconds: Floats
    neighbours: tuple[tuple[int, ...], ...]
    clients_xy: Floats | None = None
    aggregators_xy: Floats | None = None
    server_xy: Floats | None = None
    download_seconds: Floats | None = None
    frequencies: Floats | None = None
    down_transfer_seconds: Floats | None = None
    sharing: Sharing | None = None
    regions: Regions | None = None
    power: Power | None = None
    prices: Prices | None = None
    client_names: tuple[str, ...] | None = None
    aggregator_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        clients, aggregators = self.clients, self.aggregators
        if aggregators < 1:
            raise InputError("network: there are no aggregators; at least 1 is needed")
        links = (clients, aggregators)
        _check_seconds("compute_seconds", self.compute_seconds, (clients,))
        _check_seconds("upload_seconds", self.upload_seconds, links)
        _check_seconds("transfer_seconds", self.transfer_seconds, (aggregators,))
        _check_seconds("exchange_seconds", self.exchange_seconds, (aggregators, aggregators))
        check_positions("client", self.clients_xy, clients)
        check_positions("aggregator", self.aggregators_xy, aggregators)
        check_positions("server", None if self.server_xy is None else self.server_xy[None], 1)
        _check_neighbours(self.neighbours, aggregators)
        _check_seconds("download_seconds", self.download_seconds, links)
        _check_seconds("down_transfer_seconds", self.down_transfer_seconds, (aggregators,))
        if self.frequencies is not None:
            if self.frequencies.shape != (aggregators,):
                told = f"network.frequencies = {self.frequencies.tolist()}"
                raise InputError(f"{told}: must be clustering.clusters = {aggregators} numbers")
            for frequency in self.frequencies.tolist():
                require("network.frequencies", frequency, PositiveFloat)

    @cached_property
    def closed_neighbourhoods(self) -> Floats:
        """1 where two aggregators are neighbours or the same one, else 0, [aggregators, aggregators]."""
        near = np.eye(self.aggregators)
        for aggregator, others in enumerate(self.neighbours):
            near[aggregator, list(others)] = 1
        return near

    def part(self, clients: Ids, computing: Floats, sending: Floats) -> "Network":
        """Return the network of these clients alone, with their times of computing and sending scaled, [clients]."""
        times = sending[:, None]
        up, down = self.upload_seconds[clients] * times, self.download_seconds
        down = None if down is None else down[clients] * times
        if self.sharing is not None:  # shared links are no faster than before
            up = np.maximum(up, self.sharing.up_seconds)
            down = None if down is None else np.maximum(down, self.sharing.down_seconds)
        return replace(
            self,
            compute_seconds=self.compute_seconds[clients] * computing,
            upload_seconds=up,
            download_seconds=down,
            clients_xy=None,
            power=None,
            prices=None,
            client_names=None,
        )

    @property
    def return_seconds(self) -> Floats | None:
        """Seconds of the server's model to each aggregator, [aggregators]; None where downloads are free."""
        if self.download_seconds is None or self.down_transfer_seconds is not None:
            return self.down_transfer_seconds
        return self.transfer_seconds

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        return len(self.compute_seconds)

    @property
    def aggregators(self) -> int:
        """Number of aggregators, M."""
        return len(self.transfer_seconds)


def check_positions(kind: str, xy: Floats | None, count: int) -> None:
    """Refuse positions that are not [count, 2] or not finite; errors call a node its `kind`."""
    if xy is None:
        return
    if xy.shape != (count, 2):
        raise InputError(f"network: the {kind} positions have the shape {xy.shape}, which must be {(count, 2)}")
    if not np.isfinite(xy).all():
        node = int(np.argmin(np.isfinite(xy).all(axis=1)))
        raise InputError(f"network: {kind} {node} is at ({xy[node, 0]}, {xy[node, 1]}), but positions must be finite")


def _check_seconds(name: str, seconds: Any, shape: tuple[int, ...]) -> None:
    if seconds is None:
        return
    if seconds.shape != shape:
        raise InputError(f"network: {name} has the shape {seconds.shape}, which must be {shape}")
    if isinstance(seconds, ComputedRows):  # whoever computes them has looked
        return
    # Minimum and maximum are NaN if any entry is, and need no temporary array.
    if seconds.size and not (seconds.min() >= 0 and seconds.max() < np.inf):
        place = np.unravel_index(np.argmin((seconds >= 0) & (seconds < np.inf)), shape)
        at = ", ".join(str(int(index)) for index in place)
        raise InputError(f"network: {name}[{at}] = {seconds[place]}, but seconds must be finite and at least 0")


def _check_neighbours(neighbours: tuple[tuple[int, ...], ...], aggregators: int) -> None:
    if len(neighbours) != aggregators:
        raise InputError(f"network: neighbours of {len(neighbours)} aggregators, but there are {aggregators}")
    sets = [set(near) for near in neighbours]
    for j, near in enumerate(neighbours):
        if near and not 0 <= min(near) <= max(near) < aggregators:
            raise InputError(f"network: aggregator {j} has a neighbour outside 0 to {aggregators - 1}")
        if j in sets[j] or any(first >= second for first, second in pairwise(near)):
            raise InputError(f"network: the neighbours of aggregator {j} must be other aggregators, ascending")
    for j, near in enumerate(neighbours):
        if lonely := [other for other in near if j not in sets[other]]:
            raise InputError(f"network: aggregator {j} has the neighbour {lonely[0]}, but not the other way round")
