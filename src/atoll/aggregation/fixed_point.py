"""Fixed point: updates as whole numbers within a range that is known before training, so that no sum overflows."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atoll.local.models import Model
from atoll.support.errors import RunError
from atoll.support.process import one_thread

MOST = 2**63
"""Sums must be smaller in magnitude, or they would wrap around."""


class OutOfRange(RunError):
    """An update that does not fit into the fixed-point range."""


@dataclass(frozen=True)
class FixedPoint:
    """How updates are encoded as whole numbers, and the requirements of a secure sum.

    Attributes:
        range: the largest magnitude of a number in an update.
        fraction_bits: numbers are rounded to multiples of 2 to the minus this.
        threshold: share of a cohort's nodes that must reply in each step (`roster.threshold_of`).
        least_nodes: the smallest number of nodes in a cohort.
        by_samples: whether clients are weighted by their samples; if not, equally.
    """

    range: float
    fraction_bits: int
    threshold: float
    least_nodes: int
    by_samples: bool

    @property
    def largest(self) -> int:
        """The largest magnitude of a whole number in an update."""
        return int(self.range * 2**self.fraction_bits)

    @one_thread()
    def encode(self, model: Model, start: Model) -> Model:
        """Return the change of each tensor of a model, as whole numbers (int64)."""
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
        """Return why one sum over clients of this total weight may overflow; empty if it cannot."""
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
