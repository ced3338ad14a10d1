"""What privacy accounting requires; anything without a proof is rejected, and the message says why."""

from torch import nn

from atoll.engine.stages import Need
from atoll.local.layers import keeping_statistics
from atoll.privacy.mechanism import Mechanism
from atoll.support.errors import InputError

_ONE_UPDATE = "it is not proven that a client sends no more than one update"
PROVEN = {
    Need.MEAN: "noise hides a client in a sum of clipped updates, but this rule combines them otherwise (one client "
    "changes the result of a robust rule by an unknown amount)",
    Need.NO_STATE: "state that clients keep between tasks carries information from one release into others, which are "
    "not charged for it",
    Need.FIXED_CLUSTERS: "clusters would be learned from updates without noise",
    Need.NO_DRAWING: "who trains depends on losses, which are clients' data",
    Need.PLAIN_TRAINING: _ONE_UPDATE,
    Need.NO_SCREENING: "single results are looked at, or left out, without noise",
    Need.OWN_LAYERS: "layers that clusters share are weighted by how many clients chose each cluster, without noise",
    Need.ONE_START: "the best of several starts is chosen by clients' losses, without noise",
    Need.MERGED_MODELS: "the server merges single clients' updates",
}
"""What every mechanism requires, and why."""

BY_SERVER = {
    Need.SINGLE_UPDATES: "a server that clips must see single updates",
    Need.KNOWN_CODE: "your own function may mix one client's update with another's",
}
"""What a server that clips updates and adds the noise requires as well."""

BY_CLIENTS = {
    Need.HONEST: "clients that attack would neither clip their updates nor add noise",
    Need.NUMBERS: "noise cannot be added to encoded updates",
}
"""What clients that clip and add noise themselves require as well."""


def require_hidden_choice(mechanism: Mechanism, counts: bool) -> None:
    """Reject clients that choose their cluster if others would see the choice.

    `counts`: whether a cluster's update is divided by the number of clients that chose it.
    """
    if mechanism.trust == "aggregator":
        raise InputError(
            "privacy.trust = 'aggregator': a client that finds its own cluster would reveal its choice to others; use "
            "'server' or 'client'"
        )
    if mechanism.is_local and mechanism.identity_epsilon is None:
        raise InputError(
            "privacy.identity_epsilon is not set, but clients that find their clusters report them to the server: "
            "privacy.trust = 'client' must hide this choice too"
        )
    counts = counts or mechanism.quantile is not None
    if mechanism.trust == "server" and counts and mechanism.count_noise is None:
        raise InputError(
            "privacy.count_noise is not set, but a cluster's mean is over the clients that found it, and their number "
            "needs noise too; method.option = 'gradients' without momentum needs no such number"
        )


def refuse_module(module: nn.Module, mechanism: Mechanism) -> None:
    """Reject a model that noise would break, or with tensors that would reveal clients' data despite it."""
    told = f"privacy.trust = {mechanism.trust!r}: cannot be used with the model"
    if kept := keeping_statistics(module):
        raise InputError(f"{told}: {kept} of clients' data; use one without, such as GroupNorm")
    if whole := [name for name, tensor in module.state_dict().items() if not tensor.is_floating_point()]:
        raise InputError(f"{told}: {whole[0]!r} holds integers, to which no noise can be added")
    every, once = (dict(module.named_parameters(remove_duplicate=same)) for same in (False, True))
    if tied := [name for name, tensor in every.items() if name not in once and tensor.requires_grad]:
        raise InputError(f"{told}: {tied[0]!r} is the same tensor as another, but would get separate noise")
