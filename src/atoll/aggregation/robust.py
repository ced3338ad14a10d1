"""Robust combine rules: what a cluster's model becomes when some of its clients may send anything.

A rule is a value: a factory such as ``trimmed_mean(0.2)`` returns a `Combine`. Every floating-point tensor is treated
alike, the optimiser's moments (``parameter@slot``) too; others (counters) are those of the first model, as in
`combine.mean`. All rules but norm clipping need every model of the cohort at once, and hold them.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

from pydantic import Field

from atoll.aggregation.mean import Combine, average_models
from atoll.support.errors import InputError
from atoll.support.limits import Count, PositiveFloat


def always_mean() -> Combine:
    """Return the weighted mean, which one client alone can move anywhere."""
    return average_models


def median() -> Combine:
    """Return the weighted median of each coordinate (Yin et al. 2018).

    Half of the weight is at or below it, and half at or above; where two values share the middle, their mean. Equal
    weights give the ordinary median.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 900.0, 2.0)]
    >>> median()(models, {}, 3.0)
    {'w': tensor([2.])}
    """
    from atoll.aggregation.reductions import by_coordinate, middle

    return partial(by_coordinate, middle)


def trimmed_mean(trim: Annotated[float, Field(ge=0, lt=0.5)]) -> Combine:
    """Return the weighted mean of each coordinate without its lowest and highest values (Yin et al. 2018).

    The share `trim` of the cohort's weight is cut off at each end, the last client at an end in part where it does not
    fit. So 0 is the mean, to the bit, and the rule goes to the median as `trim` goes to 1/2.

    Args:
        trim: share of the weight that is cut off at each end.

    Raises:
        InputError: `trim` is not in [0, 0.5).

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 900.0, 2.0, 4.0)]
    >>> trimmed_mean(0.25)(models, {}, 4.0)
    {'w': tensor([3.])}
    """
    if not 0 <= trim < 0.5:
        raise InputError(f"method.trim = {trim}: must be at least 0 and less than 0.5")
    from atoll.aggregation.reductions import by_coordinate, trimmed

    return partial(by_coordinate, partial(trimmed, trim=trim)) if trim else average_models


def norm_clipping(clip_norm: PositiveFloat) -> Combine:
    """Return the mean of updates that are scaled down to the norm `clip_norm` where they are longer (Sun et al. 2019).

    ``w + sum_k p_k min(1, clip_norm / |w_k - w|) (w_k - w)``, w being the model that clients were sent and |.| what
    `update_norm` says. One model is held at a time.

    Args:
        clip_norm: the longest update, as a Euclidean norm.

    Raises:
        InputError: `clip_norm` is not positive.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 900.0)]
    >>> norm_clipping(2.0)(models, {"w": torch.tensor([0.0])}, 2.0)
    {'w': tensor([1.5000])}
    """
    if not clip_norm > 0:
        raise InputError(f"method.clip_norm = {clip_norm}: must be greater than 0")
    from atoll.aggregation.reductions import mean_of_clipped

    return partial(mean_of_clipped, clip_norm)


def krum(byzantine: Count) -> Combine:
    """Return the one client's model that is nearest to its n - f - 2 nearest others (Blanchard et al. 2017).

    Nearest in the sum of squared distances, f being `byzantine`. It holds if n >= 2 f + 3; with fewer results, since
    some did not arrive, one neighbour at least is counted. Ties go to the least sum of distances to all, then to the
    shorter update, so that the order of the clients changes nothing. Weights have no say.

    Args:
        byzantine: clients of a cohort that may send anything, f.

    Raises:
        InputError: `byzantine` is negative.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 1.1, 1.4, 900.0, 1.2)]
    >>> krum(1)(models, {"w": torch.tensor([0.0])}, 5.0)
    {'w': tensor([1.1000])}
    """
    if byzantine < 0:
        raise InputError(f"method.byzantine = {byzantine}: must be at least 0")
    from atoll.aggregation.reductions import nearest_to_others

    return partial(nearest_to_others, byzantine)


ROBUST: dict[str, Callable[..., Combine]] = {
    "mean": always_mean,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "norm-clipping": norm_clipping,
    "krum": krum,
}
