"""What methods ask of a local rule, refused in one sentence where it is not met."""

from atoll.local.rule import LocalRule
from atoll.support.errors import InputError


def require_sgd(rule: LocalRule, why: str) -> None:
    """Refuse another optimiser than plain SGD; `why` follows "must be 'sgd' with".

    Raises:
        InputError: names the optimiser.
    """
    import torch

    from atoll.local.dense import is_plain_sgd

    made = rule.optimizer([torch.nn.Parameter(torch.zeros(1))], rule.lr)
    if not is_plain_sgd(made, rule.lr):
        found = f"{type(made).__name__}{' with momentum' if made.defaults.get('momentum') else ''}"
        raise InputError(f"local.optimizer = {found}: must be 'sgd' with {why}")


def refuse_proximal(rule: LocalRule, why: str) -> None:
    """Refuse a proximal term; `why` follows "does not go with".

    Raises:
        InputError: names the setting.
    """
    if rule.proximal:
        raise InputError(f"local.proximal = {rule.proximal:g}: does not go with {why}")


def refuse_epochs(rule: LocalRule, why: str) -> None:
    """Refuse clients that take different numbers of steps; `why` follows "does not go with".

    Raises:
        InputError: names the setting.
    """
    if rule.epochs is not None:
        raise InputError(f"local.epochs = {rule.epochs:g}: does not go with {why}")
