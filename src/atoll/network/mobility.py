"""Mobility: clients' positions over the rounds, from a trace or random waypoints (FedUC, Remark 2)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atoll.network.column_files import POSITIONS, read_columns, whole_numbers
from atoll.network.network import check_positions
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.limits import PositiveFloat
from atoll.support.requiring import checked, require


@dataclass(frozen=True, eq=False)
class Trace:
    """Positions known at some rounds; in between, a client stays at its last known position.

    Attributes:
        clients: number of clients, N.
        rounds: round of each entry, ascending, [entries].
        movers: client of each entry, [entries].
        xy: its position then, metres, [entries, 2].

    Raises:
        InputError: if a client has no position at round 0.
    """

    clients: int
    rounds: Ids
    movers: Ids
    xy: Floats

    def __post_init__(self) -> None:
        """Refuse a trace without a client's first position."""
        placed = np.zeros(self.clients, bool)
        placed[self.movers[self.rounds == 0]] = True
        if not placed.all():
            raise InputError(f"network: the trace has no position of client {int(np.argmin(placed))} at round 0")

    def positions(self, round: int) -> Floats:
        """Return the clients' positions at this round, [clients, 2] metres."""
        if round < 0:
            raise InputError(f"network: the trace has no round {round}; rounds count from 0")
        known = int(np.searchsorted(self.rounds, round, side="right"))
        # Reading backwards, `unique` finds each client's last entry first.
        movers, newest = np.unique(self.movers[:known][::-1], return_index=True)
        xy = np.empty((self.clients, 2))
        xy[movers] = self.xy[:known][::-1][newest]
        return xy


def read_trace(path: str | Path) -> Trace:
    """Read a trace from a CSV file with a header, or a Parquet file; rows in any order.

    Columns: ``round`` (from 0), ``client`` (0 to N - 1), ``x`` and ``y`` (metres). Every client needs a row at round
    0, and has at most one row per round.
    """
    columns = read_columns(path, ("round", "client", *POSITIONS))
    rounds = whole_numbers(path, "round", columns["round"], least=0)
    movers = whole_numbers(path, "client", columns["client"], least=0)
    order = np.lexsort((movers, rounds))
    rounds, movers = rounds[order], movers[order]
    again = np.flatnonzero((rounds[1:] == rounds[:-1]) & (movers[1:] == movers[:-1]))
    if len(again):
        entry = int(again[0])
        rows = f"rows {order[entry] + 1} and {order[entry + 1] + 1}"
        raise InputError(f"{path}: {rows} both give a position of client {movers[entry]} at round {rounds[entry]}")
    clients = np.unique(movers[rounds == 0])
    gaps = np.flatnonzero(np.isin(np.arange(len(clients) + 1), clients, invert=True))
    if gaps[0] < movers.max() + 1:
        raise InputError(f"{path}: client {gaps[0]} has no position at round 0; every client needs one")
    return Trace(len(clients), rounds, movers, np.column_stack([columns["x"], columns["y"]])[order])


@checked("network.{}", rounds=int)
def random_waypoint(
    clients_xy: Floats, side_metres: float, metres_per_round: float, rounds: int, every: int, rng: np.random.Generator
) -> Trace:
    """Draw a trace of the random waypoint model, without pauses.

    Each client walks straight to a point drawn uniformly in the square, then at once to the next, `metres_per_round`
    in each round. Positions are recorded at every `every`-th round below `rounds`, and do not depend on `every`.

    Raises:
        InputError: if a client is outside the square, the speed exceeds its side, or `rounds` or `every` is below 1.
    """
    _check_walk(clients_xy, side_metres, metres_per_round, rounds, every)
    xy, clients = clients_xy.astype(np.float64), len(clients_xy)
    target = rng.uniform(0, side_metres, (clients, 2))
    recorded = [xy.copy()]
    for round in range(1, rounds):
        _walk(xy, target, metres_per_round, side_metres, rng)
        if round % every == 0:
            recorded.append(xy.copy())
    return Trace(
        clients=clients,
        rounds=np.repeat(np.arange(len(recorded)) * every, clients),
        movers=np.tile(np.arange(clients), len(recorded)),
        xy=np.concatenate(recorded),
    )


def _walk(xy: Floats, target: Floats, metres: float, side_metres: float, rng: np.random.Generator) -> None:
    """Move every client by this many metres, in place; those that arrive draw a new target and continue."""
    left = np.full(len(xy), metres)
    going = np.arange(len(xy))
    while len(going):
        way = target[going] - xy[going]
        length = np.hypot(way[:, 0], way[:, 1])
        arrives = length <= left[going]
        short = going[~arrives]
        xy[short] += way[~arrives] * (left[short] / length[~arrives])[:, None]
        going = going[arrives]
        xy[going] = target[going]
        left[going] -= length[arrives]
        target[going] = rng.uniform(0, side_metres, (len(going), 2))


def _check_walk(clients_xy: Floats, side_metres: float, metres_per_round: float, rounds: int, every: int) -> None:
    if not isinstance(clients_xy, np.ndarray):
        raise InputError(f"clients_xy: must be an array [clients, 2], it is {type(clients_xy).__name__!r}")
    require("network.side_metres", side_metres, PositiveFloat)
    if not 0 <= metres_per_round <= side_metres:
        raise InputError(f"network.metres_per_round = {metres_per_round}: must be from 0 to the side, {side_metres} m")
    for name, value in (("rounds", rounds), ("network.every", every)):
        if value < 1:
            raise InputError(f"{name} = {value}: must be at least 1")
    check_positions("client", clients_xy, len(clients_xy))
    outside = np.flatnonzero(((clients_xy < 0) | (clients_xy > side_metres)).any(axis=1))
    if len(outside):
        x, y = clients_xy[outside[0]].tolist()
        raise InputError(f"network: client {outside[0]} is at ({x}, {y}), outside the square of {side_metres} m")
