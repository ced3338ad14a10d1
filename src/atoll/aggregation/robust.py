"""Robust combine rules: what a cluster's model becomes when some of its clients may send anything.

A rule is a value: a factory such as ``trimmed_mean(0.2)`` returns a `Combine`. Every floating-point tensor is treated
alike, the optimiser's moments (``parameter@slot``) too; others (counters) are those of the first model, as in
`combine.mean`. All rules but norm clipping need every model of the cohort at once, and hold them.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll.aggregation.mean import Combine, Weighted, average_models, mean
from atoll.local.models import Model
from atoll.support.errors import InputError
from atoll.support.limits import Count, PositiveFloat
from atoll.support.process import one_thread

CUT = 1 << 16  # coordinates that are sorted at a time, so that a sort takes little memory beside the models

Reduce = Callable[[Tensor, Tensor], Tensor]
"""Values [coordinates, clients], ascending, and their weights -> one value a coordinate."""


def always_mean() -> Combine:
    """Return the weighted mean, which one client alone can move anywhere."""
    return average_models


def median() -> Combine:
    """Return the weighted median of each coordinate (Yin et al. 2018).

    Half of the weight is at or below it, and half at or above; where two values share the middle, their mean. Equal
    weights give the ordinary median.

    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 900.0, 2.0)]
    >>> median()(models, {}, 3.0)
    {'w': tensor([2.])}
    """
    return partial(_by_coordinate, _middle)


def trimmed_mean(trim: Annotated[float, Field(ge=0, lt=0.5)]) -> Combine:
    """Return the weighted mean of each coordinate without its lowest and highest values (Yin et al. 2018).

    The share `trim` of the cohort's weight is cut off at each end, the last client at an end in part where it does not
    fit. So 0 is the mean, to the bit, and the rule goes to the median as `trim` goes to 1/2.

    Args:
        trim: share of the weight that is cut off at each end.

    Raises:
        InputError: `trim` is not in [0, 0.5).

    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 900.0, 2.0, 4.0)]
    >>> trimmed_mean(0.25)(models, {}, 4.0)
    {'w': tensor([3.])}
    """
    if not 0 <= trim < 0.5:
        raise InputError(f"method.trim = {trim}: must be at least 0 and less than 0.5")
    return partial(_by_coordinate, partial(_trimmed, trim=trim)) if trim else average_models


def norm_clipping(clip_norm: PositiveFloat) -> Combine:
    """Return the mean of updates that are scaled down to the norm `clip_norm` where they are longer (Sun et al. 2019).

    ``w + sum_k p_k min(1, clip_norm / |w_k - w|) (w_k - w)``, w being the model that clients were sent and |.| what
    `update_norm` says. One model is held at a time.

    Args:
        clip_norm: the longest update, as a Euclidean norm.

    Raises:
        InputError: `clip_norm` is not positive.

    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 900.0)]
    >>> norm_clipping(2.0)(models, {"w": torch.tensor([0.0])}, 2.0)
    {'w': tensor([1.5000])}
    """
    if not clip_norm > 0:
        raise InputError(f"method.clip_norm = {clip_norm}: must be greater than 0")
    return partial(_mean_of_clipped, clip_norm)


def krum(byzantine: Count) -> Combine:
    """Return the one client's model that is nearest to its n - f - 2 nearest others (Blanchard et al. 2017).

    Nearest in the sum of squared distances, f being `byzantine`. It holds if n >= 2 f + 3; with fewer results, since
    some did not arrive, one neighbour at least is counted. Ties go to the least sum of distances to all, then to the
    shorter update, so that the order of the clients changes nothing. Weights have no say.

    Args:
        byzantine: clients of a cohort that may send anything, f.

    Raises:
        InputError: `byzantine` is negative.

    >>> models = [(1.0, {"w": torch.tensor([x])}) for x in (1.0, 1.1, 1.4, 900.0, 1.2)]
    >>> krum(1)(models, {"w": torch.tensor([0.0])}, 5.0)
    {'w': tensor([1.1000])}
    """
    if byzantine < 0:
        raise InputError(f"method.byzantine = {byzantine}: must be at least 0")
    return partial(_nearest_to_others, byzantine)


ROBUST: dict[str, Callable[..., Combine]] = {
    "mean": always_mean,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "norm-clipping": norm_clipping,
    "krum": krum,
}


@one_thread()
def update_norm(model: Model, start: Model) -> float:
    """Return the Euclidean length of ``model - start`` over all floating-point tensors but moments.

    >>> update_norm({"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([0.0, 0.0])})
    5.0
    """
    squares = [
        (tensor.double() - start[name].double()).square().sum()
        for name, tensor in model.items()
        if tensor.is_floating_point() and "@" not in name
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


@one_thread()
def _by_coordinate(reduce: Reduce, models: Weighted, start: Model, cohort_weight: float) -> Model:
    pairs = list(models)
    first = pairs[0][1]
    weights = torch.tensor([weight for weight, _ in pairs], dtype=torch.float64)
    return {
        name: _reduce([model[name] for _, model in pairs], weights, reduce) if tensor.is_floating_point() else tensor
        for name, tensor in first.items()
    }


def _reduce(tensors: Sequence[Tensor], weights: Tensor, reduce: Reduce) -> Tensor:
    """Reduce tensors of one shape to one, coordinate by coordinate."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    result = torch.empty_like(flat[0])
    for low in range(0, len(result), CUT):
        values, order = torch.stack([each[low : low + CUT] for each in flat], dim=1).sort(dim=1)
        result[low : low + CUT] = reduce(values.double(), weights.to(values.device)[order]).to(result.dtype)
    return result.reshape(tensors[0].shape)


def _middle(values: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of the first values at which the weights so far reach, and pass, half of all."""
    so_far = weights.cumsum(dim=1)
    half = so_far[:, -1:] / 2
    last = values.shape[1] - 1
    reaching, passing = ((below.sum(dim=1, keepdim=True)).clamp(max=last) for below in (so_far < half, so_far <= half))
    return ((values.gather(1, reaching) + values.gather(1, passing)) / 2).squeeze(1)


def _trimmed(values: Tensor, weights: Tensor, trim: float) -> Tensor:
    """Return the mean of what lies between the shares `trim` and ``1 - trim`` of the weight."""
    after = weights.cumsum(dim=1)
    total = after[:, -1:]
    kept = (after.minimum((1 - trim) * total) - (after - weights).maximum(trim * total)).clamp(min=0)
    # What is cut off must not count even if it is infinite: 0 * inf is no number, and a weight may round to nearly 0.
    return torch.where(kept > 1e-9 * total, values * (kept / kept.sum(dim=1, keepdim=True)), 0.0).sum(dim=1)


def _mean_of_clipped(clip_norm: float, models: Weighted, start: Model, cohort_weight: float) -> Model:
    return mean((weight, _clip(model, start, clip_norm)) for weight, model in models)


def _clip(model: Model, start: Model, clip_norm: float) -> Model:
    norm = update_norm(model, start)
    if norm <= clip_norm:
        return model
    return {name: _toward(start.get(name), tensor, clip_norm / norm) for name, tensor in model.items()}


def _toward(start: Tensor | None, tensor: Tensor, share: float) -> Tensor:
    """Go this share of the way; moments that a client was not sent begin at zero."""
    if not tensor.is_floating_point():
        return tensor
    return tensor * share if start is None else start.lerp(tensor, share)


def _nearest_to_others(byzantine: int, models: Weighted, start: Model, cohort_weight: float) -> Model:
    candidates = [model for _, model in models]
    squares = _squared_distances(candidates)
    neighbours = max(1, len(candidates) - byzantine - 2)
    nearest = squares.sort(dim=1).values[:, 1 : 1 + neighbours].sum(dim=1).tolist()  # without its own, which is first
    total = squares.sort(dim=1).values.sum(dim=1).tolist()
    keys = [(near, far, update_norm(model, start)) for near, far, model in zip(nearest, total, candidates, strict=True)]
    return candidates[keys.index(min(keys))]


@one_thread()
def _squared_distances(models: Sequence[Model]) -> Tensor:
    """Return the squared distance of each two models, [models, models], in double precision."""
    names = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    flat = [torch.cat([model[name].reshape(-1).double() for name in names]) for model in models]
    squares = torch.zeros(len(flat), len(flat), dtype=torch.float64)
    for i, one in enumerate(flat):
        for j in range(i):
            squares[i, j] = squares[j, i] = (one - flat[j]).square().sum()
    return squares.nan_to_num(nan=math.inf)  # so that what is not finite is far from everything
