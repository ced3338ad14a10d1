"""Requirements that methods place on the local rule and the model."""

from typing import TYPE_CHECKING

from atoll.local.rule import LocalRule, made_by, sgd
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def require_sgd(rule: LocalRule, why: str) -> None:
    """Reject any optimiser but plain SGD; `why` follows "must be 'sgd' with"."""
    if rule.optimizer is sgd:
        return
    made = made_by(rule)
    if not _is_plain_sgd(made, rule.lr):
        found = f"{type(made).__name__}{' with momentum' if made.defaults.get('momentum') else ''}"
        raise InputError(f"local.optimizer = {found}: must be 'sgd' with {why}")


def _is_plain_sgd(optimizer: "Optimizer", lr: float) -> bool:
    """Return whether the optimiser's step is exactly ``w <- w - lr * g``."""
    from torch.optim import SGD

    if type(optimizer) is not SGD or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    others = ("momentum", "weight_decay", "dampening", "nesterov", "maximize")
    return group["lr"] == lr and not any(group[key] for key in others)


def refuse_proximal(rule: LocalRule, why: str) -> None:
    """Reject a proximal term; `why` follows "cannot be used with"."""
    if rule.proximal:
        raise InputError(f"local.proximal = {rule.proximal:g}: cannot be used with {why}")


def refuse_epochs(rule: LocalRule, why: str) -> None:
    """Reject step counts that differ between clients; `why` follows "cannot be used with"."""
    if rule.epochs is not None:
        raise InputError(f"local.epochs = {rule.epochs:g}: cannot be used with {why}")


def refuse_statistics(module: "nn.Module | None", why: str) -> None:
    """Reject a model with running statistics; `why` follows "cannot be used with"."""
    from atoll.local.layers import keeping_statistics  # late: reading settings needs no PyTorch

    if module is not None and (kept := keeping_statistics(module)):
        raise InputError(f"model: {kept}, and cannot be used with {why}; use a layer without, such as GroupNorm")
