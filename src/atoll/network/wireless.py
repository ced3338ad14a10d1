"""Networks from positions: Shannon rates with path loss, on a grid of cells (FedUC, Sec. VI-A)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field

from atoll.network.computed_rows import ComputedRows
from atoll.network.network import Network, check_positions
from atoll.network.topology import neighbours_of
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.limits import Positive, PositiveFloat
from atoll.support.requiring import checked, require, require_fields

if TYPE_CHECKING:
    import networkx as nx

_HELD = 1 << 27  # client-aggregator pairs whose seconds are held: 1 GB
_Decibels = Annotated[float, Field(ge=-300, le=300, allow_inf_nan=False)]  # beyond these, powers overflow


@dataclass(frozen=True)
class Radio:
    """The channel of all uploads; the defaults are the paper's (Sec. VI-A).

    Attributes:
        bandwidth_hz: B.
        noise_dbm: the receiver's noise power, sigma^2.
        path_loss_db: h0, the gain at 1 m.
        path_loss_exponent: the gain falls with this power of the distance.
        aggregator_dbm: the aggregators' transmission power.
    """

    bandwidth_hz: PositiveFloat = 10e6
    noise_dbm: _Decibels = -100.0
    path_loss_db: _Decibels = -40.0
    path_loss_exponent: PositiveFloat = 4.0
    aggregator_dbm: _Decibels = 33.0

    def __post_init__(self) -> None:
        """Refuse a bandwidth or exponent that is not positive, and powers beyond 300 decibels."""
        require_fields(self, "network.")


def watts_of(dbm: float) -> float:
    """Return the watts of a power in dBm; 30 dBm are 1 W."""
    return float(10 ** (dbm / 10 - 3))


def rate(distance_metres: npt.ArrayLike, watts: npt.ArrayLike, radio: Radio) -> Floats:
    """Return bits per second over a distance: r = B log2(1 + p h0 dist^-4 / sigma^2); arguments broadcast."""
    distance = np.asarray(distance_metres, np.float64)
    if distance.size and not distance.min() > 0:
        raise InputError(f"network: the distance {distance.min()} m has no rate; it must be positive")
    gain = 10 ** (radio.path_loss_db / 10) / watts_of(radio.noise_dbm)
    with np.errstate(over="ignore", under="ignore"):  # at absurd distances the rate is 0 or infinite
        snr = distance**-radio.path_loss_exponent * (gain * np.asarray(watts, np.float64))
        # log1p, since far away the signal-to-noise ratio is tiny compared with 1.
        return np.asarray(np.log1p(snr) * (radio.bandwidth_hz / math.log(2)))


@checked("network.{}", rows=int, columns=int)
def grid_positions(rows: int, columns: int, side_metres: PositiveFloat = 40.0) -> tuple[Floats, Floats]:
    """Return the aggregators' positions [aggregators, 2] and the server's [2], metres, in a square cut into cells.

    Aggregators are at the cells' centres, numbered row by row. The server is where the first two cells of the first two
    rows meet. With a single row or column this point is on the square's edge, still away from every centre.
    """
    if min(rows, columns) < 1:
        raise InputError(f"network.grid = {[rows, columns]}: must be two positive whole numbers")
    width, height = side_metres / columns, side_metres / rows
    x, y = np.meshgrid((np.arange(columns) + 0.5) * width, (np.arange(rows) + 0.5) * height)
    return np.column_stack([x.ravel(), y.ravel()]), np.array([width, height])


@checked("network.{}", clients=Positive)
def place_clients(clients: int, side_metres: PositiveFloat, rng: np.random.Generator) -> Floats:
    """Draw positions uniformly in the square, [clients, 2] metres."""
    return rng.uniform(0, side_metres, (clients, 2))


@checked("network.{}", clients=Positive)
def draw_watts(
    clients: int, rng: np.random.Generator, low_milliwatts: float = 50.0, high_milliwatts: float = 100.0
) -> Floats:
    """Draw the clients' powers uniformly between two limits in milliwatts, [clients] watts."""
    if not 0 < low_milliwatts <= high_milliwatts < np.inf:
        raise InputError(
            f"network.client_milliwatts = {[low_milliwatts, high_milliwatts]}: must be two positive numbers, ascending"
        )
    return rng.uniform(low_milliwatts, high_milliwatts, clients) / 1000


def wireless_network(
    clients_xy: Floats,
    aggregators_xy: Floats,
    server_xy: Floats,
    compute_seconds: Floats,
    watts: Floats,
    model_bytes: float,
    topology: "nx.Graph[int]",
    radio: Radio = Radio(),
    downloads: bool = False,
    upload_share: float = 1.0,
) -> Network:
    """Return the network in which a model of `model_bytes` is sent over the radio channel.

    Args:
        clients_xy: positions in metres, [clients, 2].
        aggregators_xy: the same, [aggregators, 2].
        server_xy: the same, [2].
        compute_seconds: L^c_i = zeta_i d_i, [clients].
        watts: each client's transmission power, [clients].
        model_bytes: size of a model.
        topology: which aggregators are neighbours; nodes 0 to M - 1.
        radio: the channel.
        downloads: whether downloads take time, at the aggregators' power; otherwise they are free.
        upload_share: what clients upload, as a share of a model's bytes.

    Raises:
        InputError: names the client or aggregator with an invalid position, speed or power, or two nodes at one place.
    """
    check_positions("client", clients_xy, len(clients_xy))
    check_positions("aggregator", aggregators_xy, len(aggregators_xy))
    check_positions("server", server_xy[None], 1)
    _check_clients("computes for", "s", compute_seconds, len(clients_xy))
    _check_clients("sends with", "W", watts, len(clients_xy))
    require("network.model_bytes", model_bytes, PositiveFloat)
    if len(topology) != len(aggregators_xy):
        told = f"network.topology: the graph has {len(topology)} nodes"
        raise InputError(f"{told}, but there are {len(aggregators_xy)} aggregators")
    bits, sending = 8 * model_bytes, watts_of(radio.aggregator_dbm)
    to_server = _distances("aggregator", aggregators_xy, "server", server_xy[None])[:, 0]
    between = _distances("aggregator", aggregators_xy, "aggregator", aggregators_xy)
    with np.errstate(divide="ignore"):  # a rate of 0 gives infinite seconds, which a network refuses
        exchange = bits / rate(between, sending, radio)
        transfer = bits / rate(to_server, sending, radio)
    np.fill_diagonal(exchange, 0)
    sent_down = np.full(len(clients_xy), sending)
    return Network(
        compute_seconds=compute_seconds,
        upload_seconds=_link_seconds(clients_xy, aggregators_xy, watts, upload_share * bits, radio),
        transfer_seconds=transfer,
        exchange_seconds=exchange,
        neighbours=neighbours_of(topology),
        clients_xy=clients_xy,
        aggregators_xy=aggregators_xy,
        server_xy=server_xy,
        download_seconds=_link_seconds(clients_xy, aggregators_xy, sent_down, bits, radio) if downloads else None,
    )


def _link_seconds(clients_xy: Floats, aggregators_xy: Floats, watts: Floats, bits: float, radio: Radio) -> Floats:
    """Return the seconds of sending over each client's links at these `watts`, such as L^u_ij, [clients, aggregators].

    Computed in blocks of clients; more than `_HELD` of them are computed again from the positions when asked for.
    """

    def compute(clients: Ids, aggregators: Ids) -> Floats:
        distance = _distances("client", clients_xy[clients], "aggregator", aggregators_xy[aggregators], clients)
        with np.errstate(divide="ignore"):
            return np.asarray(bits / rate(distance, watts[clients, None], radio))

    found = ComputedRows((len(clients_xy), len(aggregators_xy)), compute)
    if math.prod(found.shape) <= _HELD:
        return np.asarray(found)
    if not math.isfinite(longest := max(float(rows.max()) for rows in found.blocks())):
        raise InputError(f"network: the longest upload or download takes {longest} s; it must be finite")
    return cast("Floats", found)


def _distances(kind: str, xy: Floats, other_kind: str, other_xy: Floats, numbers: Ids | None = None) -> Floats:
    """Return the distances between nodes, with these numbers, and others; 1 m instead of 0 from each to itself."""
    from scipy.spatial.distance import cdist

    distance = np.asarray(cdist(xy, other_xy))
    if xy is other_xy:
        np.fill_diagonal(distance, 1)
    if distance.size and not distance.min() > 0:
        node, other = (int(index) for index in np.unravel_index(np.argmin(distance), distance.shape))
        second = "the server" if other_kind == "server" else f"{other_kind} {other}"
        place = f"({xy[node, 0]}, {xy[node, 1]})"
        node = node if numbers is None else int(numbers[node])
        raise InputError(f"network: {kind} {node} and {second} are both at {place}; they must be apart")
    return distance


def _check_clients(what: str, unit: str, values: Floats, clients: int) -> None:
    if values.shape != (clients,):
        raise InputError(f"network: what each client {what} has the shape {values.shape}, which must be {(clients,)}")
    good = (values > 0) & (values < np.inf)
    if not good.all():
        client = int(np.argmin(good))
        raise InputError(f"network: client {client} {what} {values[client]} {unit}; it must be positive and finite")
