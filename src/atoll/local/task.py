"""What a client is asked to do, and what it sends back."""

from dataclasses import dataclass

from atoll.local.models import Model


@dataclass(frozen=True, eq=False)
class ClientTask:
    """One client's work: train from `start`. Its `key` names its random numbers.

    Attributes:
        drawn_as: replaces the event in the key, for work that began before the number of its event was known.
        state: what the client kept from its last task, where its trainer `keeps_state`; None: it had none yet.
    """

    event: int
    round: int
    repeat: int
    cluster: int
    client: int
    start: Model
    drawn_as: int | None = None
    state: Model | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """What the client's random numbers are derived from, besides the seed and a purpose."""
        return self.event if self.drawn_as is None else self.drawn_as, self.repeat, self.client


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """What a client sends back, its mean training loss on the way, and the state that it keeps for its next task."""

    model: Model
    loss: float
    state: Model | None = None
