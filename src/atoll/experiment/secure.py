"""From settings to secure sums."""

from torch import nn

from atoll.aggregation.fixed_point import FixedPoint
from atoll.engine.engine import Method
from atoll.secure.fixed import sum_securely
from atoll.secure.requirements import refuse_module, weighs_by_samples
from atoll.settings.choices import method_kind
from atoll.settings.validation import Settings
from atoll.support.arrays import Ids
from atoll.support.errors import InputError


def masks_of(settings: Settings, method: Method, sizes: Ids, module: nn.Module) -> Method:
    """Return the method with clients' updates summed as integers, which nodes of a fleet mask."""
    if not settings.secure.sums:
        return method
    if why := method_kind(settings).why_one_place:
        raise InputError(f"secure.sums = true: cannot be used with method.name = {settings.method.name!r}, {why}")
    by_samples = settings.method.weights != "equal" and weighs_by_samples(method, sizes)
    fixed = FixedPoint(**{k: v for k, v in dict(settings.secure).items() if k != "sums"}, by_samples=by_samples)
    masked = method.with_stage(sum_securely(fixed))
    refuse_module(module)
    return masked
