"""Methods in which a part of the model stays with each client."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from atoll.engine.engine import Method
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from torch import nn


def keep_at_clients(
    method: Method,
    names: Collection[str],
    module: "nn.Module",
    told: str,
    trainer: Callable[..., Any] | None = None,
) -> Method:
    """Return the method with these tensors left out of what travels: each client keeps its own, as its state.

    Frozen parameters are everybody's and never change, so of them nobody keeps anything. Without names the method is
    returned as it is.

    Args:
        method: trains by `Trainer`, or already keeps a part (and then only frozen parameters may be added).
        names: of parameters and buffers of the module.
        module: the initial model.
        told: the setting that asks for it, for errors.
        trainer: trains the clients, made from what `PartTrainer` takes; None: `PartTrainer`.

    Raises:
        InputError: nothing is left that travels, or the method cannot part with any of it.
    """
    from atoll.local.travel import frozen, require_whole  # need PyTorch, which settings do not wait for
    from atoll.methods.parts.part_trainer import PartTrainer

    if not names:
        return method
    stays = tuple(name for name in module.state_dict() if name in names or name in method.stays)
    if not set(module.state_dict()).difference(stays, frozen(module)):
        raise InputError(f"{told}: all that is trained would stay at the clients; something must travel")
    require_whole(module, stays)
    if shared := set(method.shared).intersection(names):
        raise InputError(f"{told}: {min(shared)!r} would not travel, but clusters share it (method.shared_layers)")
    if set(names) <= set(frozen(module)) and (method.trainer is None or method.stays):
        return replace(method, stays=stays)
    if method.trainer is not None:
        raise InputError(f"{told}: does not go with a method that has a trainer of its own")
    if method.finds_clusters:
        raise InputError(
            f"{told}: does not go with a method whose clients find their clusters on the way, by models that lack "
            "what they keep"
        )
    if method.rule.carry_moments:
        raise InputError(f"{told}: does not go with a method whose optimiser's state travels with the model")
    return replace(method, stays=stays, trainer=partial(trainer or PartTrainer, stays=stays))
