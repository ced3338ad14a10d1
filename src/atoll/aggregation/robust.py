"""Robust combine rules, for clusters in which some clients may send anything.

A rule is a value: a factory such as ``trimmed_mean(0.2)`` returns a `Combine`; arguments outside their types' limits
raise InputError. All floating-point tensors are treated alike, including the optimiser's moments (``parameter@slot``);
others (counters) are those of the first model, as in `mean`. All rules except norm clipping hold every model of the
cohort at once.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

from pydantic import Field

from atoll.aggregation.mean import Combine, average_models
from atoll.support.limits import Count, Positive, PositiveFloat
from atoll.support.requiring import checked

_checked = checked("method.{}")


def always_mean() -> Combine:
    """Return the weighted mean, which a single client can move anywhere."""
    return average_models


def median() -> Combine:
    """Return the weighted median of each coordinate (Yin et al. 2018).

    Half of the weight is at or below it, and half at or above; if two values share the middle, it is their mean. Equal
    weights give the ordinary median.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 900.0, 2.0)]
    >>> median()(models, {}, 3.0)
    {'w': tensor([2.])}
    """
    from atoll.aggregation.reductions import by_coordinate, middle

    return partial(by_coordinate, middle)


@_checked
def trimmed_mean(trim: Annotated[float, Field(ge=0, lt=0.5)]) -> Combine:
    """Return the weighted mean of each coordinate without its lowest and highest values (Yin et al. 2018).

    The share `trim` of the cohort's weight is trimmed at each end, with part of a client's weight where needed. So 0
    is the mean, bit-identical, and the rule approaches the median as `trim` approaches 1/2.

    Args:
        trim: share of the weight that is trimmed at each end.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 900.0, 2.0, 4.0)]
    >>> trimmed_mean(0.25)(models, {}, 4.0)
    {'w': tensor([3.])}
    """
    from atoll.aggregation.reductions import by_coordinate, trimmed

    return partial(by_coordinate, partial(trimmed, trim=trim)) if trim else average_models


@_checked
def norm_clipping(clip_norm: PositiveFloat) -> Combine:
    """Return the mean of updates that are scaled down to the norm `clip_norm` if they are longer (Sun et al. 2019).

    ``w + sum_k p_k min(1, clip_norm / |w_k - w|) (w_k - w)``, where w is the model that clients were sent and |.| is
    `update_norm`. One model is held at a time.

    Args:
        clip_norm: largest Euclidean norm of an update.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 900.0)]
    >>> norm_clipping(2.0)(models, {"w": torch.tensor([0.0])}, 2.0)
    {'w': tensor([1.5000])}
    """
    from atoll.aggregation.reductions import mean_of_clipped

    return partial(mean_of_clipped, clip_norm)


@_checked
def krum(byzantine: Count) -> Combine:
    """Return the client's model that is nearest to its n - f - 2 nearest others (Blanchard et al. 2017).

    Nearest by the sum of squared distances; f is `byzantine`. The guarantee needs n >= 2 f + 3; with fewer results,
    since some did not arrive, at least one neighbour counts. Ties go to the least sum of distances to all, then to the
    shorter update, so that the clients' order does not matter. Weights are ignored.

    Args:
        byzantine: clients of a cohort that may send anything, f.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 1.1, 1.4, 900.0, 1.2)]
    >>> krum(1)(models, {"w": torch.tensor([0.0])}, 5.0)
    {'w': tensor([1.1000])}
    """
    from atoll.aggregation.whole_models import nearest_to_others

    return partial(nearest_to_others, byzantine)


@_checked
def multi_krum(byzantine: Count, keep: Positive | None = None) -> Combine:
    """Return the mean of the `keep` models with the lowest Krum scores (Blanchard et al. 2017).

    The scores are those of `krum`, each over all clients. Weights are ignored. The guarantee needs n >= 2 f + 3 and
    `keep` at most n - f - 2 (El Mhamdi et al. 2018); fewer results than `keep` are all kept.

    Args:
        byzantine: clients of a cohort that may send anything, f.
        keep: number of models averaged, m; unset: n - f - 2.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 1.5, 900.0, 1.25, 1.25)]
    >>> multi_krum(1, keep=3)(models, {"w": torch.tensor([0.0])}, 5.0)
    {'w': tensor([1.3333])}
    """
    from atoll.aggregation.whole_models import mean_of_the_nearest

    return partial(mean_of_the_nearest, byzantine, keep)


@_checked
def bulyan(byzantine: Count) -> Combine:
    """Return the mean of each coordinate's values nearest to their median, among models chosen by Krum (Bulyan).

    El Mhamdi et al. 2018: Krum chooses a model, which is set aside, and again among the rest, until there are
    theta = n - 2 f. Of each coordinate's theta values the theta - 2 f nearest to their median are averaged. The
    guarantee needs n >= 4 f + 3; with fewer than f + 3 models left, Krum counts one neighbour. Weights are ignored.

    Args:
        byzantine: clients of a cohort that may send anything, f.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 1.5, 900.0, 1.25, 1.75, 2.0, 1.5)]
    >>> bulyan(1)(models, {"w": torch.tensor([0.0])}, 7.0)
    {'w': tensor([1.4167])}
    """
    from atoll.aggregation.whole_models import bulyan_of

    return partial(bulyan_of, byzantine)


@_checked
def geometric_median(iterations: Positive = 100, smoothing: PositiveFloat = 1e-6) -> Combine:
    """Return the model with the least weighted sum of distances to the clients' models (RFA, Pillutla et al. 2022).

    Smoothed Weiszfeld steps ``z <- sum_k b_k w_k / sum_k b_k`` with ``b_k = p_k / max(smoothing, |w_k - z|)`` start at
    the median of each coordinate and end once one is shorter than `smoothing`. |.| is over parameters; moments are
    averaged with the same b_k. Models that are not finite are left out. More than half of the weight must be honest.

    Args:
        iterations: largest number of steps.
        smoothing: least distance used for a client, nu.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor(at)}) for at in ((0.0, 1.0), (0.0, -1.0), (900.0, 0.0))]
    >>> geometric_median()(models, {}, 3.0)
    {'w': tensor([0.577..., 0.0000])}
    """
    from atoll.aggregation.whole_models import geometric_median_of

    return partial(geometric_median_of, iterations, smoothing)


@_checked
def centred_clipping(clip_norm: PositiveFloat, iterations: Positive = 3) -> Combine:
    """Return the centre after steps to the mean of the models clipped around it (Karimireddy et al. 2021).

    ``v <- v + sum_k p_k min(1, clip_norm / |w_k - v|) (w_k - v)``, where |.| is `update_norm`. v starts at the last
    aggregate, here the model that clients were sent, so no state is kept between events, and one step is
    `norm_clipping`. The paper aggregates the clients' momentum; so does this rule if momentum is communicated.

    Args:
        clip_norm: largest Euclidean distance from the centre, tau.
        iterations: number of steps.

    >>> import torch
    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (2.0, 2.0, 900.0)]
    >>> centred_clipping(1.0, iterations=2)(models, {"w": torch.tensor([0.0])}, 3.0)
    {'w': tensor([2.])}
    """
    from atoll.aggregation.whole_models import centred_clipping_of

    return partial(centred_clipping_of, clip_norm, iterations)


def lora_product() -> Combine:
    """Return the mean, with LoRA's factors averaged as their product (FlexLoRA; Bai et al. 2024, 2402.11505).

    The mean of B and that of A are not the factors of the mean of ``B A``. Here they are, as well as their rank allows:
    by its singular values, ``U S V^T``, B becomes ``U S`` and A ``V^T``, whose rows have length 1.

    >>> import torch
    >>> names = "q.lora_A.default.weight", "q.lora_B.default.weight"
    >>> models = [(1.0, dict.fromkeys(names, torch.tensor([[x]]))) for x in (1.0, 3.0)]
    >>> a, b = lora_product()(models, {}, 2.0).values()
    >>> round(float(b @ a), 6)  # (1 * 1 + 3 * 3) / 2, and not 2 * 2
    5.0
    """
    from atoll.aggregation.lora_product import mean_of_products

    return mean_of_products


ROBUST: dict[str, Callable[..., Combine]] = {
    "mean": always_mean,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "geometric-median": geometric_median,
    "norm-clipping": norm_clipping,
    "centred-clipping": centred_clipping,
    "krum": krum,
    "multi-krum": multi_krum,
    "bulyan": bulyan,
    "lora-product": lora_product,
}

TIMES_BYZANTINE: dict[str, int] = {"krum": 2, "multi-krum": 2, "bulyan": 4}
"""Rules whose guarantee needs this many times `byzantine` clients in a cohort, plus three."""
