"""What secure sums do not go with: whatever needs more of single clients than their sum."""

import numpy as np
from torch import nn

from atoll.aggregation.mean import average_models
from atoll.engine.assignment import as_scheduled
from atoll.engine.engine import Method
from atoll.secure.fixed import FixedPoint
from atoll.support.arrays import Ids
from atoll.support.errors import InputError


def refuse_single_updates(method: Method, told: str) -> None:
    """Refuse a method that needs single clients' updates, states or losses.

    Args:
        method: as it is without secure sums, with the faults of its clients.
        told: the method as settings name it.

    Raises:
        InputError: one sentence that says why.
    """
    if why := _why_single(method):
        raise InputError(f"secure.sums = true: does not go with {told}: {why}")


def _why_single(method: Method) -> str:
    """Return why a sum of clients' updates is not enough; an empty text if it is."""
    if method.labels is not None or method.regroup is not None:
        return "it learns its clusters from single clients' updates"
    if method.assign is not as_scheduled:
        return "who trains, or in which cluster, hangs on losses that single clients tell"
    if method.combine is not average_models:
        return "its rule must see each client's model, of which nobody sees any"
    if method.keeps_state:
        return "its clients keep something of their own between tasks, which goes by what became of their last one"
    if method.rule.carry_moments:
        return "momentum travels with its models, for which there is no range"
    if method.trainer is not None:
        return "what its clients send is more than an update"
    if method.screening is not None:
        return "results are to be left out one by one (faults.tolerate, faults.max_update_norm, collusion)"
    mixes = (mix for event in method.schedule.events for mix in (event.server, *dict(event.starts).values()))
    if any(mix is not None and mix.updates for mix in mixes):
        return "its server adds single clients' updates"
    return ""


def refuse_cohorts(method: Method, fixed: FixedPoint, sizes: Ids) -> None:
    """Refuse cohorts that are too small to hide in, sums that may overflow, and weights that nodes do not know.

    Raises:
        InputError: names the setting.
    """
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
                "secure.sums = true: clients weigh otherwise than as their samples, or alike, which their nodes do not "
                "know; set method.weights = 'samples' or 'equal', and method.select = 'uniform'"
            )
    if why := fixed.why_overflow(float(sizes.sum()) if fixed.by_samples else len(sizes)):
        raise InputError(f"secure.sums = true: {why}")


def weighs_by_samples(method: Method, sizes: Ids) -> bool:
    """Return whether clients weigh as their samples in all events, not alike."""
    return all((event.weights == sizes[event.cohort]).all() for event in method.schedule.events)


def refuse_module(module: nn.Module) -> None:
    """Refuse a model with numbers that have no sum.

    Raises:
        InputError: names the tensor.
    """
    if whole := [name for name, tensor in module.state_dict().items() if not tensor.is_floating_point()]:
        raise InputError(
            f"secure.sums = true: does not go with the model: {whole[0]!r} holds whole numbers, of which there is no "
            "mean (normalise by groups or layers in the place of batches)"
        )
