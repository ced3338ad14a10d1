"""Updates as whole numbers: fixed point within a range that is known before training, so that no sum overflows."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from atoll.aggregation.mean import Weighted
from atoll.engine.cohorts import ClusterUpdate
from atoll.local.models import Form, Model
from atoll.schedules.events import Event
from atoll.secure.crypto import Numbers
from atoll.support.errors import RunError
from atoll.support.process import one_thread

MASKED = "masked"
"""The name under which masked numbers travel."""

MOST = 2**63
"""Sums must be smaller in size, or they would wrap around."""


class OutOfRange(RunError):
    """An update that the fixed point does not hold."""


@dataclass(frozen=True)
class FixedPoint:
    """What numbers of updates are as whole numbers, and what a secure sum asks for.

    Attributes:
        range: no number of an update is larger in size.
        fraction_bits: a number is rounded to a multiple of 2 to the minus this.
        threshold: share of a cohort's nodes that must answer in each step (`roster.threshold_of`).
        least_nodes: that a cohort must be on.
        by_samples: clients weigh as their samples; else alike.
    """

    range: float
    fraction_bits: int
    threshold: float
    least_nodes: int
    by_samples: bool

    @property
    def largest(self) -> int:
        """The size that no whole number of an update exceeds."""
        return int(self.range * 2**self.fraction_bits)

    @one_thread()
    def encode(self, model: Model, start: Model) -> Model:
        """Return what each tensor of a model has changed by, as whole numbers (int64).

        Raises:
            OutOfRange: a number is beyond the range, or not finite.
        """
        return {name: self._encoded(model[name].double() - start[name].double()) for name in start}

    @one_thread()
    def moved(self, start: Model, total: Mapping[str, torch.Tensor], weight: float) -> Model:
        """Return a model moved by the mean update, given the weighted sum of updates as whole numbers."""
        scale = 2.0**self.fraction_bits
        return {
            name: (tensor.double() + total[name].double() / scale / weight).to(tensor.dtype)
            for name, tensor in start.items()
        }

    def why_overflow(self, weight: float) -> str:
        """Return why clients of so much weight together may be too many for one sum; an empty text if they are not."""
        if weight * self.largest < MOST:
            return ""
        return (
            f"sums over clients that weigh {weight:g} together may overflow 63 bits; lower secure.range = "
            f"{self.range:g} or secure.fraction_bits = {self.fraction_bits}"
        )

    def _encoded(self, change: torch.Tensor) -> torch.Tensor:
        scaled = (change * 2.0**self.fraction_bits).round()
        if not bool((scaled.abs() <= self.largest).all()):
            raise OutOfRange(
                f"secure.range = {self.range:g}: an update has a number of size {float(change.abs().max()):.4g}, which "
                "is beyond it; raise it, or lower local.lr"
            )
        return scaled.to(torch.int64)


@dataclass(frozen=True, eq=False)
class SumOfIntegers:
    """The combine rule whose result is the weighted sum of updates as whole numbers; `Averaged` makes a model of it.

    On a fleet nodes and server make the same sum without anybody's knowing a single update.
    """

    fixed: FixedPoint

    @one_thread()
    def __call__(self, models: Weighted, start: Model, cohort_weight: float) -> Model:
        """Return the sum.

        Raises:
            OutOfRange: an update that the fixed point does not hold.
        """
        total: Model = {}
        for weight, model in models:
            update = self.fixed.encode(model, start)
            total = {
                name: total[name].add_(each, alpha=int(weight)) if total else each * int(weight)
                for name, each in update.items()
            }
        return total


@dataclass(frozen=True)
class Averaged:
    """Makes clusters' models of sums (`engine.release.Release`), divided by the weight of the clients in each."""

    fixed: FixedPoint

    def announce(self, event: Event) -> None:
        """Do nothing: a sum needs no note beforehand."""

    def publish(
        self,
        event: Event,
        repeat: int,
        sent: Mapping[int, Model],
        combined: Mapping[int, ClusterUpdate],
        weights: Mapping[int, float],
    ) -> dict[int, Model]:
        """Return each cluster's next model; of one from which no sum has come, the model that it had."""
        moved = {p: self.fixed.moved(sent[p], combined[p].model, weight) for p, weight in weights.items()}
        return {cluster: moved.get(cluster, sent[cluster]) for cluster in combined}


def masked_form(form: Form) -> Form:
    """Return the form of what a node sends in the place of a model of this form: all numbers in a row."""
    count = sum(shape.numel() for shape, _ in form.values())
    return {MASKED: (torch.Size([count]), torch.int64)}


def flat(total: Model, form: Form) -> Numbers:
    """Return whole numbers of all tensors in the form's order, modulo 2^64, [numbers]."""
    return torch.cat([total[name].flatten().cpu() for name in form]).numpy().view(np.uint64)


def unflat(numbers: Numbers, form: Form) -> Model:
    """Return tensors of the form's shapes from whole numbers modulo 2^64, as numbers of both signs."""
    parts = torch.split(torch.from_numpy(numbers.view(np.int64)), [shape.numel() for shape, _ in form.values()])
    return {name: part.reshape(shape) for (name, (shape, _)), part in zip(form.items(), parts, strict=True)}
