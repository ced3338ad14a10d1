"""What secure sums require of cohorts and models."""

import numpy as np
from torch import nn

from atoll.aggregation.fixed_point import FixedPoint
from atoll.engine.method import Method
from atoll.support.arrays import Ids
from atoll.support.errors import InputError


def refuse_cohorts(method: Method, fixed: FixedPoint, sizes: Ids) -> None:
    """Reject cohorts too small to hide in, sums that may overflow, and weights unknown to nodes."""
    for event in method.schedule.events:
        if event.clusters is None or not len(event.cohort):
            continue
        counts = np.bincount(event.clusters)
        if 0 < (least := int(counts[counts > 0].min())) < fixed.least_nodes:
            raise InputError(
                f"secure.least_nodes = {fixed.least_nodes}: a cohort of event {event.index} has {least} "
                f"{'client' if least == 1 else 'clients'}, whose sum would hide little; raise method.fraction or lower "
                "clustering.clusters"
            )
        known = sizes[event.cohort] if fixed.by_samples else np.ones(len(event.cohort))
        if (event.weights != known).any():
            raise InputError(
                "secure.sums = true: clients are weighted neither equally nor by samples, so nodes do not know their "
                "weights; set method.weights = 'samples' or 'equal', and method.select = 'uniform'"
            )
    if why := fixed.why_overflow(float(sizes.sum()) if fixed.by_samples else len(sizes)):
        raise InputError(f"secure.sums = true: {why}")


def weighs_by_samples(method: Method, sizes: Ids) -> bool:
    """Return whether clients are weighted by their samples in all events, rather than equally."""
    return all((event.weights == sizes[event.cohort]).all() for event in method.schedule.events)


def refuse_module(module: nn.Module) -> None:
    """Reject a model with tensors that cannot be averaged."""
    if whole := [name for name, tensor in module.state_dict().items() if not tensor.is_floating_point()]:
        raise InputError(
            f"secure.sums = true: cannot be used with the model: {whole[0]!r} holds integers, which have no "
            "mean (normalise by groups or layers instead of batches)"
        )
