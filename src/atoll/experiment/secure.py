"""From settings to secure sums."""

from dataclasses import replace

from torch import nn

from atoll.engine.engine import Method
from atoll.local.models import without
from atoll.local.weights import count_bytes
from atoll.secure.fixed import Averaged, FixedPoint, SumOfIntegers
from atoll.secure.requirements import refuse_cohorts, refuse_module, refuse_single_updates, weighs_by_samples
from atoll.settings.choices import method_kind
from atoll.settings.sections import Settings
from atoll.support.arrays import Ids
from atoll.support.errors import InputError

BYTES = 8
"""Of a number that is masked."""


def sum_securely(settings: Settings, method: Method, sizes: Ids, module: nn.Module) -> Method:
    """Return the method with clients' updates summed as whole numbers, which nodes of a fleet mask.

    Args:
        settings: all settings; without `secure.sums` the method is returned as it is.
        method: as it is without.
        sizes: samples of each client, [clients].
        module: the initial model.

    Raises:
        InputError: what needs more of single clients than their sum.
    """
    if not settings.secure.sums:
        return method
    _refuse_settings(settings)
    refuse_single_updates(method, _told(settings))
    refuse_module(module)
    fixed = _fixed_point(settings, method, sizes)
    return replace(method, combine=SumOfIntegers(fixed), release=Averaged(fixed))


def check_cohorts(method: Method, sizes: Ids) -> None:
    """Refuse cohorts that are too small to hide in, sums that may overflow, and weights that nodes do not know.

    Raises:
        InputError: names the setting.
    """
    if (fixed := secured(method)) is not None:
        refuse_cohorts(method, fixed, sizes)


def secured(method: Method) -> FixedPoint | None:
    """Return what updates are summed as; None where they are not summed securely."""
    return method.combine.fixed if isinstance(method.combine, SumOfIntegers) else None


def masked_share(settings: Settings, module: nn.Module) -> float:
    """Return the bytes of a masked update as a share of the model's; 1 where updates are not masked."""
    if not settings.secure.sums:
        return 1.0
    return masked_bytes(module, ()) / count_bytes(module.state_dict())


def masked_bytes(module: nn.Module, stays: tuple[str, ...]) -> int:
    """Return the bytes of a masked update."""
    return BYTES * sum(tensor.numel() for tensor in without(module.state_dict(), stays).values())


def _fixed_point(settings: Settings, method: Method, sizes: Ids) -> FixedPoint:
    wanted = dict(settings.secure)
    by_samples = settings.method.weights != "equal" and weighs_by_samples(method, sizes)
    return FixedPoint(**{key: value for key, value in wanted.items() if key != "sums"}, by_samples=by_samples)


def _told(settings: Settings) -> str:
    rule = settings.method.combine
    return f"method.combine = {rule!r}" if rule != "mean" else f"method.name = {settings.method.name!r}"


def _refuse_settings(settings: Settings) -> None:
    """Refuse what secure sums do not go with, by its settings."""
    if why := method_kind(settings).why_one_place:
        raise InputError(f"secure.sums = true: does not go with method.name = {settings.method.name!r}, {why}")
    if settings.travel.codec != "none":
        raise InputError(
            f"secure.sums = true: does not go with travel.codec = {settings.travel.codec!r}, since masked numbers look "
            "random, and coded ones cannot be summed"
        )
    if settings.privacy.trust != "none":
        raise InputError(
            f"secure.sums = true: does not go with privacy.trust = {settings.privacy.trust!r}: a server that clips "
            "must see single updates, and noise has no range; set privacy.trust = 'none'"
        )
