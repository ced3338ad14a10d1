"""How much work a node has done, counted in its store, shown to its owner and limited by a budget."""

from collections.abc import Iterable
from dataclasses import dataclass

from atoll.fleet.agreed.messages import Count
from atoll.fleet.node.store import Store
from atoll.support.limits import StrictRecord

RUNS = 3
"""Without a limit by the owner, losses, and trainings beside private reports, are answered for so many whole runs."""


@dataclass(frozen=True)
class WorkBudget:
    """Limits on a node's answers for each of its clients, over all runs with the same client work; None: no limit.

    Attributes:
        losses: reported losses, each of one model on the client's data; None: unlimited.
        epsilon: privacy budget of a client over all runs (`epsilon_ledger`); None: unlimited.
    """

    trainings: int | None = None
    losses: int | None = None
    epsilon: float | None = None
    delta: float | None = None


class Tally(StrictRecord):
    """Work that a node has done for one client.

    Attributes:
        charged: how often the client's privacy ledger had been charged by then, so that no older one is taken for it.
    """

    trainings: Count = 0
    losses: Count = 0
    descriptions: Count = 0
    charged: Count = 0

    def plus(self, **more: int) -> "Tally":
        """Return the tally increased by these numbers."""
        return self.model_copy(update={name: getattr(self, name) + number for name, number in more.items()})

    def why_over(self, budget: WorkBudget, kinds: Iterable[str]) -> str:
        """Return which limit on these kinds of work is exceeded, with its setting; empty if none is."""
        for name in kinds:
            most, asked = getattr(budget, name, None), getattr(self, name)
            if most is not None and asked > most:
                return f"{name} would be {asked}, above most_{name} = {most}, which node.toml may raise"
        return ""


def read_tally(store: Store, client: int, digest: str) -> Tally:
    """Return a client's tally for the agreement with this digest."""
    kept = store.get(_key(client, digest))
    return Tally() if kept is None else Tally.model_validate_json(kept)


def write_tally(store: Store, client: int, digest: str, tally: Tally) -> None:
    """Store a client's tally."""
    store.put(_key(client, digest), tally.model_dump_json().encode())


def _key(client: int, digest: str) -> str:
    return f"tally-{client}-{digest[:16]}"
