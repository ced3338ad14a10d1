"""Networks: positions, links and speeds, turned into seconds."""

from atoll.network.base import Network
from atoll.network.completion import (
    broadcast_seconds,
    completion_of,
    completion_seconds,
    event_seconds,
    pattern_transfer_seconds,
)
from atoll.network.files import ClientTable, matrix_network, read_matrix, read_network_clients
from atoll.network.mobility import Trace, random_waypoint, read_trace
from atoll.network.topology import TOPOLOGIES, graph_of, is_cut, neighbours_of, require_connected
from atoll.network.wireless import Radio, draw_watts, grid_positions, place_clients, rate, watts_of, wireless_network

__all__ = [
    "TOPOLOGIES",
    "ClientTable",
    "Network",
    "Radio",
    "Trace",
    "broadcast_seconds",
    "completion_of",
    "completion_seconds",
    "draw_watts",
    "event_seconds",
    "graph_of",
    "grid_positions",
    "is_cut",
    "matrix_network",
    "neighbours_of",
    "pattern_transfer_seconds",
    "place_clients",
    "random_waypoint",
    "rate",
    "read_matrix",
    "read_network_clients",
    "read_trace",
    "require_connected",
    "watts_of",
    "wireless_network",
]
