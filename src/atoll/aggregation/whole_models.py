"""Tensor arithmetic of the robust combine rules that compare whole models."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from atoll.aggregation.mean import Weighted, mean
from atoll.aggregation.reductions import by_coordinate, mean_of_clipped, mean_of_nearest, middle, update_norm
from atoll.local.models import Model
from atoll.local.weights import is_finite
from atoll.support.process import one_thread

Score = tuple[float, float, float]
"""Krum's score, lowest is best: distance to the nearest others, to all, norm of the update."""


def nearest_to_others(byzantine: int, models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Return the model that is nearest to its nearest others (Krum)."""
    candidates = [model for _, model in models]
    return candidates[_best(candidates, start, byzantine)[0]]


def mean_of_the_nearest(
    byzantine: int, keep: int | None, models: Weighted, start: Model, cohort_weight: float
) -> Model:
    """Return the mean of the `keep` models that are nearest to their nearest others (multi-Krum)."""
    candidates = [model for _, model in models]
    most = max(1, len(candidates) - byzantine - 2) if keep is None else keep
    return mean((1.0, candidates[i]) for i in sorted(_best(candidates, start, byzantine)[:most]))


def bulyan_of(byzantine: int, models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Return the mean of each coordinate's values nearest to their median, among models chosen one by one by Krum."""
    candidates = [model for _, model in models]
    squares = _squared_distances(candidates)
    lengths = [update_norm(model, start) for model in candidates]
    left = list(range(len(candidates)))
    chosen = []
    for _ in range(max(1, len(candidates) - 2 * byzantine)):
        scores = _scores(squares[left][:, left], [lengths[i] for i in left], byzantine)
        chosen.append(left.pop(scores.index(min(scores))))
    nearest = partial(mean_of_nearest, keep=max(1, len(chosen) - 2 * byzantine))
    return by_coordinate(nearest, [(1.0, candidates[i]) for i in sorted(chosen)], start, cohort_weight)


def geometric_median_of(
    iterations: int, smoothing: float, models: Weighted, start: Model, cohort_weight: float
) -> Model:
    """Return the model with the least weighted sum of distances to the clients', by smoothed Weiszfeld steps."""
    everyone = list(models)
    pairs = [pair for pair in everyone if is_finite(pair[1], 0.0)] or everyone
    # Steps start at the median of each coordinate: from the mean, one distant client would need many steps, and from
    # the start model they would never leave it if a client returned it unchanged.
    centre = _vectors([by_coordinate(middle, pairs, start, cohort_weight)])[0]
    vectors = _vectors([model for _, model in pairs])
    shares = _weiszfeld(vectors, [weight for weight, _ in pairs], centre, iterations, smoothing)
    return _mean_in_double([(share, model) for share, (_, model) in zip(shares, pairs, strict=True)])


def centred_clipping_of(
    clip_norm: float, iterations: int, models: Weighted, start: Model, cohort_weight: float
) -> Model:
    """Return the centre after moving this many times to the mean of the models clipped around it."""
    pairs = list(models)
    centre = start
    for _ in range(iterations):
        centre = mean_of_clipped(clip_norm, pairs, centre, cohort_weight)
    return centre


@one_thread()
def _weiszfeld(
    vectors: Tensor, weights: Sequence[float], centre: Tensor, iterations: int, smoothing: float
) -> list[float]:
    """Return the vectors' shares of their geometric median; steps end once one is shorter than `smoothing`."""
    given = torch.tensor(weights, dtype=torch.float64, device=vectors.device)
    shares = given
    for _ in range(iterations):
        pulls = given / (vectors - centre).square().sum(dim=1).sqrt().clamp(min=smoothing)
        shares = pulls / pulls.sum()
        before, centre = centre, shares @ vectors
        if float((centre - before).square().sum().sqrt()) < smoothing:
            break
    return shares.tolist()


def _mean_in_double(models: Sequence[tuple[float, Model]]) -> Model:
    """Return the weighted mean, computed in double precision, since shares may be too small for the models' own."""
    doubled = (
        (weight, {name: t.double() if t.is_floating_point() else t for name, t in model.items()})
        for weight, model in models
    )
    return {name: tensor.to(models[0][1][name].dtype) for name, tensor in mean(doubled).items()}


def _best(models: Sequence[Model], start: Model, byzantine: int) -> list[int]:
    """Return the models' numbers by ascending score."""
    lengths = [update_norm(model, start) for model in models]
    scores = _scores(_squared_distances(models), lengths, byzantine)
    return sorted(range(len(models)), key=scores.__getitem__)


def _scores(squares: Tensor, lengths: Sequence[float], byzantine: int) -> list[Score]:
    """Return Krum's score of each model; infinity or NaN for one that is not finite."""
    ascending = squares.sort(dim=1).values  # column 0 is a model's distance to itself
    neighbours = max(1, len(squares) - byzantine - 2)
    nearest = ascending[:, 1 : 1 + neighbours].sum(dim=1).tolist()
    return list(zip(nearest, ascending.sum(dim=1).tolist(), lengths, strict=True))


def _vectors(models: Sequence[Model]) -> Tensor:
    """Return the models' parameters, without moments, in double precision, [models, parameters]."""
    names = [name for name, tensor in models[0].items() if tensor.is_floating_point() and "@" not in name]
    return torch.stack([torch.cat([model[name].reshape(-1).double() for name in names]) for model in models])


@one_thread()
def _squared_distances(models: Sequence[Model]) -> Tensor:
    """Return the squared distances between models, [models, models], in double precision."""
    names = [name for name, tensor in models[0].items() if tensor.is_floating_point()]
    flat = [torch.cat([model[name].reshape(-1).double() for name in names]) for model in models]
    squares = torch.zeros(len(flat), len(flat), dtype=torch.float64)
    for i, one in enumerate(flat):
        for j in range(i):
            squares[i, j] = squares[j, i] = (one - flat[j]).square().sum()
    return squares.nan_to_num(nan=math.inf)  # a model that is not finite is far from all others
