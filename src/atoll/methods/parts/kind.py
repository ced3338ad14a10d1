"""What a method needs besides its function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MethodKind:
    """A method that changes more than a schedule; for others their function alone stands in the table.

    Attributes:
        make: makes the `Method` from what it asks for by parameter name.
        population: makes the population that trains from the clients' (`population`); None: it is the clients'.
        module: returns the factory that replaces `model.name`'s, from that name (`name`); None: it is not replaced.
        why_one_place: why it can have neither faults nor a fleet, as the end of a sentence; empty if it can.
        rounds_are_local_steps: whether a round is one local step index (FedUC's t), not a piece of work.
        untested: what of a client's model the server's lacks, as the subject of a sentence: a warning that the test
            accuracy is without it, where no probe measures the clients' own models.
    """

    make: Callable[..., Any]
    population: Callable[..., Any] | None = None
    module: Callable[..., Any] | None = None
    why_one_place: str = ""
    rounds_are_local_steps: bool = False
    untested: str = ""

    @property
    def parts(self) -> tuple[Callable[..., Any], ...]:
        """The functions whose parameters are settings of ``[method]``."""
        return tuple(part for part in (self.make, self.population, self.module) if part is not None)


def kind_of(made: "Callable[..., Any] | MethodKind") -> MethodKind:
    """Return a method's kind; a bare function is one that needs nothing else."""
    return made if isinstance(made, MethodKind) else MethodKind(made)
