"""Secure sums: updates become integers (`FixedPoint`), nodes of a fleet mask them, and their sum becomes a model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch

from atoll.aggregation.fixed_point import FixedPoint
from atoll.aggregation.mean import Weighted
from atoll.engine.cohorts import ClusterUpdate
from atoll.engine.stages import Need, Stage
from atoll.local.models import Form, Model
from atoll.schedules.events import Event
from atoll.secure.crypto import Numbers
from atoll.support.process import one_thread

MASKED = "masked"
"""The name under which masked numbers travel."""


@dataclass(frozen=True, eq=False)
class SumOfIntegers:
    """The combine rule that returns the weighted sum of updates as integers, from which `Averaged` makes a model.

    On a fleet, nodes and server compute the same sum without revealing any single update.
    """

    fixed: FixedPoint

    @one_thread()
    def __call__(self, models: Weighted, start: Model, cohort_weight: float) -> Model:
        """Return the sum."""
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
    """Makes clusters' models from sums (`engine.stages.Release`), divided by the weight of the clients in each."""

    fixed: FixedPoint

    def publish(
        self,
        event: Event,
        repeat: int,
        sent: Mapping[int, Model],
        combined: Mapping[int, ClusterUpdate],
        weights: Mapping[int, float],
    ) -> dict[int, Model]:
        """Return each cluster's next model; a cluster without a sum keeps its model."""
        moved = {p: self.fixed.moved(sent[p], combined[p].model, weight) for p, weight in weights.items()}
        return {cluster: moved.get(cluster, sent[cluster]) for cluster in combined}


def sum_securely(fixed: FixedPoint) -> Stage:
    """Return the stage that sums updates as integers, which nodes of a fleet mask.

    It has no client half: in simulation the combine rule converts updates to integers, on a fleet the node does
    (`fleet.node.secure_sum`).
    """
    told = "secure.sums = true"
    return Stage(
        name="masks",
        told=told,
        form=masked_form,
        combine=SumOfIntegers(fixed),
        release=Averaged(fixed),
        fixed=fixed,
        digest=asdict(fixed),
        needs=_NEEDS,
        lacks={Need.SINGLE_UPDATES: told, Need.NUMBERS: told},
    )


_NEEDS = {
    Need.NUMBERS: "masked numbers look random, and encoded ones cannot be summed",
    Need.BOUNDED: "noise has no range",
    Need.FIXED_CLUSTERS: "clusters would be learned from single clients' updates",
    Need.NO_LOSSES: "who trains, or in which cluster, depends on losses that single clients report",
    Need.MEAN_OF_MODELS: "this rule must see each client's model, which is hidden",
    Need.NO_STATE: "client states depend on what became of the client's last update, which is hidden",
    Need.NO_MOMENTS: "communicated momentum has no range",
    Need.PLAIN_TRAINING: "clients send more than an update",
    Need.NO_SCREENING: "results would be left out one by one",
    Need.MERGED_MODELS: "the server merges single clients' updates",
}


def masked_form(form: Form) -> Form:
    """Return the form of the masked numbers that replace a model of this form."""
    return {MASKED: (torch.Size([sum(shape.numel() for shape, _ in form.values())]), torch.int64)}


def flat(total: Model, form: Form) -> Numbers:
    """Return the integers of all tensors in the form's order, modulo 2^64, [numbers]."""
    return torch.cat([total[name].flatten().cpu() for name in form]).numpy().view(np.uint64)


def unflat(numbers: Numbers, form: Form) -> Model:
    """Return tensors of the form's shapes from integers modulo 2^64, as signed integers."""
    parts = torch.split(torch.from_numpy(numbers.view(np.int64)), [shape.numel() for shape, _ in form.values()])
    return {name: part.reshape(shape) for (name, (shape, _)), part in zip(form.items(), parts, strict=True)}
