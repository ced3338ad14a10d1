"""Networks: positions, links and speeds, turned into seconds."""

from atoll.network.base import Network

__all__ = ["Network"]
