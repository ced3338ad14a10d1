"""What must hold for the accounting to be true; what is not proven is refused, and the sentence says why."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from atoll.aggregation.mean import average_gradients, average_models
from atoll.engine.assignment import as_scheduled, least_loss
from atoll.engine.engine import Method
from atoll.privacy.mechanism import Mechanism
from atoll.support.errors import InputError


def refuse_unproven(method: Method, mechanism: Mechanism, told: str) -> None:
    """Refuse a method of which it is not proven how far one client can move what is released.

    Args:
        method: as it is without privacy, with the faults of its clients.
        mechanism: what is hidden, and how.
        told: the method as settings name it.

    Raises:
        InputError: one sentence that says why.
    """
    if why := _why_unproven(method):
        raise InputError(f"privacy.trust = {mechanism.trust!r}: does not go with {told}: {why}")
    if method.assign is least_loss:
        _require_hidden_choice(method, mechanism)


def _why_unproven(method: Method) -> str:
    """Return why sensitivity is not bounded, an empty text if it is."""
    if method.combine not in (average_models, average_gradients):
        return (
            "noise hides a client in a sum of clipped updates, and its rule combines them otherwise (robust rules move "
            "by an unknown length when one client does)"
        )
    if method.keeps_state:
        return "its clients keep a state between tasks, which carries what one release was not charged for into others"
    if method.labels is not None or method.regroup is not None:
        return "it learns its clusters from updates before there is noise in them"
    if method.assign not in (as_scheduled, least_loss):
        return "who trains hangs on losses, which are clients' data"
    if method.trainer is not None:
        return "it trains clients in its own way, and what they send is not proven to be one update"
    if method.screening is not None:
        return "results that are left out tell of clients' data (faults.tolerate, faults.max_update_norm, collusion)"
    if method.shared:
        return "layers that clusters share are weighed by how many clients chose each cluster, without noise"
    if method.restarts > 1:
        return "method.restarts above 1 choose a start by clients' losses, without noise"
    if any(
        mix.updates for event in method.schedule.events for mix in (event.server, *dict(event.starts).values()) if mix
    ):
        return "its server adds single clients' updates"
    return ""


def _require_hidden_choice(method: Method, mechanism: Mechanism) -> None:
    """Refuse clients that choose their cluster where the choice would be seen."""
    if mechanism.trust == "aggregator":
        raise InputError(
            "privacy.trust = 'aggregator': a client that finds its cluster itself would tell its choice to others; use "
            "'server' or 'client'"
        )
    if mechanism.is_local and mechanism.identity_epsilon is None:
        raise InputError(
            "privacy.identity_epsilon is not set, but clients that find their clusters tell the server which: with "
            "privacy.trust = 'client' the choice must be hidden too"
        )
    counts = method.combine is average_models or method.rule.carry_moments or mechanism.quantile is not None
    if mechanism.trust == "server" and counts and mechanism.count_noise is None:
        raise InputError(
            "privacy.count_noise is not set, but a cluster's mean is over the clients that found it, whose number must "
            "have noise too; method.option = 'gradients' needs no such number where no momentum travels"
        )


def refuse_module(module: nn.Module, mechanism: Mechanism) -> None:
    """Refuse a model that would tell of clients' data in numbers that noise cannot hide, or would break.

    Raises:
        InputError: names the layer or tensor.
    """
    told = f"privacy.trust = {mechanism.trust!r}: does not go with the model"
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            raise InputError(
                f"{told}: layer {name!r} ({type(layer).__name__}) keeps running statistics of clients' data; use one "
                "without, such as GroupNorm"
            )
    if whole := [name for name, tensor in module.state_dict().items() if not tensor.is_floating_point()]:
        raise InputError(f"{told}: {whole[0]!r} holds whole numbers, to which no noise can be added")
    every, once = (dict(module.named_parameters(remove_duplicate=same)) for same in (False, True))
    if tied := every.keys() - once.keys():
        raise InputError(f"{told}: {min(tied)!r} is the same tensor as another, and would have noise of its own")
