"""The states that clients keep from task to task."""

from abc import abstractmethod
from collections.abc import Mapping

from atoll.local.models import Model


class ClientStates(Mapping[int, Model]):
    """Client states that are stored elsewhere than in a plain dict; never changed in place."""

    @abstractmethod
    def __or__(self, newer: Mapping[int, Model]) -> "ClientStates":
        """Return these states, with those of the same clients replaced by newer ones."""


def with_newer(states: Mapping[int, Model], newer: Mapping[int, Model]) -> Mapping[int, Model]:
    """Return the states, with those of the same clients replaced by newer ones."""
    return states | newer if isinstance(states, ClientStates) else {**states, **newer}
