"""What a node has done so far, counted in its store: for its owner to see, and to be kept within a budget."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from atoll.fleet.agreed.messages import Count
from atoll.fleet.node.store import Store

RUNS = 3
"""Of how many whole runs the losses are answered where the owner sets no limit."""


@dataclass(frozen=True)
class WorkBudget:
    """How much a node answers of each of its clients, in all runs in which their work is the same.

    Attributes:
        trainings: tasks of training; None: any number.
        losses: numbers, each the mean loss of one model on the client's data; None: any number.
        epsilon: what all that is told of a client may cost it, in all runs together (`spending`); None: anything.
        delta: the probability that it may be exceeded with.
    """

    trainings: int | None = None
    losses: int | None = None
    epsilon: float | None = None
    delta: float = 1e-5


class Tally(BaseModel):
    """What a node has done so far for one client.

    Attributes:
        trainings: how often it trained.
        losses: how many models it measured.
        descriptions: how often it told of itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    trainings: Count = 0
    losses: Count = 0
    descriptions: Count = 0

    def plus(self, trainings: int = 0, losses: int = 0, descriptions: int = 0) -> "Tally":
        """Return the tally with so many more of each."""
        return Tally(
            trainings=self.trainings + trainings,
            losses=self.losses + losses,
            descriptions=self.descriptions + descriptions,
        )

    def why_over(self, budget: WorkBudget) -> str:
        """Return what is over the budget, and by which setting; an empty text if nothing is."""
        for name in ("trainings", "losses"):
            most, asked = getattr(budget, name), getattr(self, name)
            if most is not None and asked > most:
                return f"{name} would be {asked}, above most_{name} = {most} of node.toml"
        return ""


def read_tally(store: Store, client: int, digest: str) -> Tally:
    """Return what was done so far for a client in experiments whose agreement has this digest."""
    kept = store.get(_key(client, digest))
    return Tally() if kept is None else Tally.model_validate_json(kept)


def write_tally(store: Store, client: int, digest: str, tally: Tally) -> None:
    """Keep what was done so far for a client."""
    store.put(_key(client, digest), tally.model_dump_json().encode())


def _key(client: int, digest: str) -> str:
    return f"tally-{client}-{digest[:16]}"
