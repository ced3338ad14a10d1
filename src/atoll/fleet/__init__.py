"""Clients on other machines: what a fleet is, what is sent, and how replies are checked."""

from atoll.fleet.base import Failure, Fleet, Properties, Reason

__all__ = ["Failure", "Fleet", "Properties", "Reason"]
