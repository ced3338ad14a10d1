"""Screening: which clients' results are rejected before the rest are combined."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from atoll.local.models import Model, form_of, without_moments
from atoll.local.task import ClientUpdate
from atoll.support.arrays import Ids
from atoll.support.limits import PositiveFloat
from atoll.support.requiring import require

UsualNorms = Literal["refuse", "note", "off"]
Reason = Literal["wrong_form", "not_finite", "too_large", "unusual"]
REASONS: tuple[Reason, ...] = ("wrong_form", "not_finite", "too_large", "unusual")


@dataclass(frozen=True)
class Screening:
    """Conditions for results to be combined; they are checked one by one, whatever the combine rule.

    Attributes:
        tolerate: whether results of another form, not finite or absurdly large (`weights.is_bounded`) are left out;
            otherwise those of another form or not finite are an error.
        max_update_norm: the largest accepted norm of an update; None: any.
        usual_norms: refuse: updates that are much longer than those before them, and than others of their event, are
            left out as "unusual" (`usual_norms.limit_of`); note: norms are only remembered; off: nor are they.
        moment_scale: how many times moments count in usual norms; the learning rate makes them as large as updates.
    """

    tolerate: bool = True
    max_update_norm: float | None = None
    usual_norms: UsualNorms = "off"
    moment_scale: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an invalid norm, or rule for usual ones."""
        require("faults.max_update_norm", self.max_update_norm, PositiveFloat | None)
        require("faults.usual_norms", self.usual_norms, UsualNorms)

    @property
    def learns_norms(self) -> bool:
        """Whether norms of accepted updates are remembered."""
        return self.usual_norms != "off"

    @property
    def judges_alone(self) -> bool:
        """Whether each result is judged without the others, so that it can be where the client trains."""
        return not self.learns_norms and type(self).sent is Screening.sent

    def sent(self, clients: Ids, start: Model, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Return what these clients send, one by one, given what they trained: the same, unless they collude."""
        return updates

    def why_refused(self, update: ClientUpdate, start: Model) -> Reason | None:
        """Return why a result is rejected, or None if it is accepted."""
        from atoll.aggregation.reductions import update_norm  # here, since methods' settings do not need PyTorch
        from atoll.local.weights import is_bounded, is_finite

        if self.tolerate and not _has_form(update.model, start):
            return "wrong_form"
        if self.tolerate and not all(is_finite(each, update.loss) for each in (update.model, update.state or {})):
            return "not_finite"
        if self.tolerate and not is_bounded(update.model, update.loss):
            return "too_large"
        if self.max_update_norm is not None and not update_norm(update.model, start) <= self.max_update_norm:
            return "too_large"
        return None

    def usual_norm(self, update: ClientUpdate, start: Model) -> float:
        """Return the norm that is compared with usual ones; moments count, since they move the next models."""
        from atoll.aggregation.reductions import update_norm

        return update_norm(update.model, start, self.moment_scale)


def _has_form(model: Model, start: Model) -> bool:
    """Return whether names, shapes and types are those that were sent; moments are checked if any were sent."""
    carried = any("@" in name for name in start)
    own, sent = form_of(model), form_of(start)
    return own == sent if carried else without_moments(own) == without_moments(sent)
