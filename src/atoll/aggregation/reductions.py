"""Tensor arithmetic of the robust combine rules that work coordinate by coordinate, or client by client."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from atoll.aggregation.mean import Weighted, mean
from atoll.local.models import Model
from atoll.support.process import one_thread

ROUNDING = 1e-12  # of a sum of weights, such as six times 0.1; sums of counts are exact
CUT = 1 << 16  # coordinates sorted at a time, so that a sort takes little memory compared with the models

Reduce = Callable[[Tensor, Tensor], Tensor]
"""Values [coordinates, clients], ascending, and their weights -> one value per coordinate."""


@one_thread()
def update_norm(model: Model, start: Model, moment_scale: float = 0.0) -> float:
    """Return the Euclidean norm of ``model - start`` over all floating-point tensors.

    Moments count this many times, so by default not at all; those that a client was not sent start at zero.
    """
    squares = []
    for name, own in model.items():
        scale = moment_scale if "@" in name else 1.0
        if scale and own.is_floating_point():
            change = own.double() if "@" in name and name not in start else own.double() - start[name].double()
            squares.append(change.square().sum() * scale**2)
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


@one_thread()
def by_coordinate(reduce: Reduce, models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Reduce the models' values to one, coordinate by coordinate."""
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


def middle(values: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of the first values where the cumulative weight reaches and exceeds half of the total."""
    so_far = weights.cumsum(dim=1)
    half, last = so_far[:, -1:] / 2, values.shape[1] - 1
    unreached, unpassed = so_far < half * (1 - ROUNDING), so_far <= half * (1 + ROUNDING)
    reaching, passing = (below.sum(dim=1, keepdim=True).clamp(max=last) for below in (unreached, unpassed))
    return ((values.gather(1, reaching) + values.gather(1, passing)) / 2).squeeze(1)


def trimmed(values: Tensor, weights: Tensor, trim: float) -> Tensor:
    """Return the mean of the values between the shares `trim` and ``1 - trim`` of the weight."""
    # Client i covers the weight from `after - weights` to `after`; its part within [trim, 1 - trim] counts.
    after = weights.cumsum(dim=1)
    total = after[:, -1:]
    kept = (after.minimum((1 - trim) * total) - (after - weights).maximum(trim * total)).clamp(min=0)
    share = kept / kept.sum(dim=1, keepdim=True)
    # Trimmed values must not count even if infinite: 0 * inf is NaN, and a weight may round to nearly 0.
    return torch.where(share > 1e-9, values * share, 0.0).sum(dim=1)


def mean_of_nearest(values: Tensor, weights: Tensor, keep: int) -> Tensor:
    """Return the mean of the `keep` values nearest to their median; on ties the lower value first."""
    last = values.shape[1] - 1
    median = (values[:, last // 2] + values[:, (last + 1) // 2]) / 2
    distances = (values - median[:, None]).abs().nan_to_num(nan=torch.inf)
    return values.gather(1, distances.argsort(dim=1, stable=True)[:, :keep]).mean(dim=1)


def mean_of_clipped(clip_norm: float, models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Return the mean of the models, each moved toward the start to a distance of at most `clip_norm`."""
    return mean((weight, _clip(model, start, clip_norm)) for weight, model in models)


def _clip(model: Model, start: Model, clip_norm: float) -> Model:
    norm = update_norm(model, start)
    if norm <= clip_norm:
        return model
    return {name: _toward(start.get(name), tensor, clip_norm / norm) for name, tensor in model.items()}


def _toward(start: Tensor | None, tensor: Tensor, share: float) -> Tensor:
    """Return the point at this share of the way; moments that a client was not sent start at zero."""
    if not tensor.is_floating_point():
        return tensor
    return tensor * share if start is None else start.lerp(tensor, share)
