"""A method's needs besides its function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MethodKind:
    """A method with special needs; others are listed by their function alone.

    Attributes:
        make: makes the `Method` from the arguments it requests by parameter name.
        population: maps the clients' population (`population`) to the one that trains; None: unchanged.
        together: makes the module that trains of several models, from a factory of one (`make`); None: one trains.
        why_one_place: why it supports neither faults nor a fleet, as the end of a sentence; empty if it does.
        steps_from_samples: whether combining takes clients' steps to follow from the samples that they count for.
        rounds_are_local_steps: whether a round is one local step index (FedUC's t).
        fixed_data: why clients' data must not change (`[drift]`), as the end of a sentence; empty if they may.
        sudden_data: why they must not change gradually (`drift.gradual_rounds`).
        untested: the part of clients' models that the server's lacks, as the subject of a sentence, to warn that test
            accuracy excludes it unless a metric measures the clients' own models.
    """

    make: Callable[..., Any]
    population: Callable[..., Any] | None = None
    together: Callable[..., Any] | None = None
    why_one_place: str = ""
    steps_from_samples: bool = False
    rounds_are_local_steps: bool = False
    fixed_data: str = ""
    sudden_data: str = ""
    untested: str = ""

    @property
    def parts(self) -> tuple[Callable[..., Any], ...]:
        """The functions whose parameters are settings of ``[method]``."""
        return tuple(part for part in (self.make, self.population, self.together) if part is not None)


def kind_of(made: "Callable[..., Any] | MethodKind") -> MethodKind:
    """Return a method's kind; a bare function has no special needs."""
    return made if isinstance(made, MethodKind) else MethodKind(made)
