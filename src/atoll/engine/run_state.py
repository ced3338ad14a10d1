"""The state of a run, the states that its clients keep from task to task, and the outcome of an event."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll.aggregation.usual_norms import Norms
from atoll.local.models import Model
from atoll.schedules.events import Event
from atoll.support.arrays import Ids


@dataclass(frozen=True, eq=False)
class State:
    """Everything that a run needs to continue.

    Models are never changed in place, so clusters may share one.

    Attributes:
        events_done: events that are over.
        server: the server's model; None: there is no server.
        starts: the model that each cluster's clients start from.
        published: each cluster's latest average; its first start until it has one.
        refused: number of rejected results so far, by reason (`screening.REASONS`).
        server_state: the state of the method's server rule; None: none yet.
        clients: each client's state from its last task whose result was combined, if trainers keep state.
        labels: each client's cluster, int64 [clients], if clusters are learned; -1: none yet.
        norms: norms of the latest accepted updates and their clients, if usual norms are learned.
        usual: those norms as they were when each cluster got its start, so that limits do not depend on which other
            events were trained meanwhile; empty if no norms are learned.
    """

    events_done: int
    server: Model | None
    starts: tuple[Model, ...]
    published: tuple[Model, ...]
    refused: Mapping[str, int] = field(default_factory=dict)
    server_state: Model | None = None
    clients: Mapping[int, Model] = field(default_factory=dict)
    labels: Ids | None = None
    norms: Norms = ()
    usual: tuple[Norms, ...] = ()


@dataclass(frozen=True, eq=False)
class Step:
    """The outcome of one event.

    Attributes:
        event: the schedule's row; with who answered, if clients may fail to.
        state: the state after it.
        clusters: the cluster that each cohort client trained in.
        loss: mean local training loss over the cohort, weighted by samples; None if no result was combined.
    """

    event: Event
    state: State
    clusters: Ids
    loss: float | None


class ClientStates(Mapping[int, Model]):
    """Client states that are stored elsewhere than in a plain dict; never changed in place."""

    @abstractmethod
    def __or__(self, newer: Mapping[int, Model]) -> "ClientStates":
        """Return these states, with those of the same clients replaced by newer ones."""


def with_newer(states: Mapping[int, Model], newer: Mapping[int, Model]) -> Mapping[int, Model]:
    """Return the states, with those of the same clients replaced by newer ones."""
    return states | newer if isinstance(states, ClientStates) else {**states, **newer}
