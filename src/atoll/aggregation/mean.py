"""Combine rules: how the results of a cluster's cohort become its next model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from atoll.local.models import Model

Weighted = Iterable[tuple[float, Model]]


class Combine(Protocol):
    """Combines (weight, model) pairs of the clients of one cluster.

    `start` is the model they were sent, `cohort_weight` the sum of weights over the whole cohort, all clusters.
    """

    def __call__(self, models: Weighted, start: Model, cohort_weight: float) -> Model:
        """Return the cluster's model."""


Rule = TypeVar("Rule", bound=Combine)


def says(*properties: str) -> Callable[[Rule], Rule]:
    """Mark a combine rule with properties that executors rely on; an unmarked rule receives every client's model.

    - ``is_weighted_mean``: it returns the models' weighted mean, so an executor may compute that its own way;
    - ``needs_only_mean``: it depends only on the models' weighted mean and total weight, so it may be given a `Sum`;
    - ``median_of_losses``: clients' losses are combined by their median too, since some may be false.
    """

    def mark(rule: Rule) -> Rule:
        vars(rule).update(dict.fromkeys(properties, True))
        return rule

    return mark


def is_weighted_mean(combine: Combine) -> bool:
    """Return whether a rule is marked as the weighted mean of the models."""
    return getattr(combine, "is_weighted_mean", False)


def needs_only_mean(combine: Combine) -> bool:
    """Return whether a rule is marked as needing only the models' weighted mean and total weight."""
    return is_weighted_mean(combine) or getattr(combine, "needs_only_mean", False)


def takes_median_of_losses(combine: Combine) -> bool:
    """Return whether a rule is marked so that a cluster's loss is the median of its clients' losses, not the mean."""
    return getattr(combine, "median_of_losses", False)


@dataclass(eq=False)
class Sum:
    """A weighted sum of models, to which models and other sums may be added. A rule sees one pair: weight and mean.

    Attributes:
        model: the sum of each tensor; one that is not floating point (a counter) is the first model's. Empty at first.
    """

    weight: float = 0.0
    model: Model = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[float, Model]]:
        """Yield the total weight and the mean."""
        yield self.weight, self.mean()

    def add(self, weight: float, model: Model) -> None:
        """Add a model, which is not kept."""
        if self.model:
            for name, tensor in self.model.items():
                if tensor.is_floating_point():
                    tensor.add_(model[name], alpha=weight)
        else:
            self.model = {n: each * weight if each.is_floating_point() else each.clone() for n, each in model.items()}
        self.weight += weight

    def join(self, other: "Sum") -> None:
        """Add another sum, whose tensors may be kept."""
        if self.model and other.model:
            for name, tensor in self.model.items():
                if tensor.is_floating_point():
                    tensor.add_(other.model[name])
        self.model = self.model or other.model
        self.weight += other.weight

    def mean(self) -> Model:
        """Return the weighted mean."""
        return {name: each / self.weight if each.is_floating_point() else each for name, each in self.model.items()}


def sum_of(models: Weighted) -> Sum:
    """Return the weighted sum of (weight, model) pairs, added in their order; of a sum, itself."""
    if isinstance(models, Sum):
        return models
    total = Sum()
    for weight, model in models:
        total.add(weight, model)
        del model  # so that the next client's takes its place in memory and cache
    return total


def mean(models: Weighted) -> Model:
    """Return the weighted mean of (weight, model) pairs, summed in their order; weights need not sum to one.

    Tensors that are not floating point (counters) are taken from the first model.
    """
    return sum_of(models).mean()


@says("is_weighted_mean")
def average_models(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Take the mean over the cluster's clients (FedAvg, FedCluster; IFCA and CFL-MGD, option II)."""
    return mean(models)


@says("needs_only_mean")
def average_gradients(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Move the start by the clients' steps averaged over the whole cohort (IFCA and CFL-MGD, option I).

    With one local step each, ``chi - (eta / m) * sum of u_i`` is ``chi + (share of the cohort) * (mean - chi)``.
    Optimiser states (the u_i) are averaged over the cluster's own clients.
    """
    total = sum_of(models)
    average, share = total.mean(), total.weight / cohort_weight
    if share == 1:
        return average
    return {
        name: tensor if "@" in name or not tensor.is_floating_point() else start[name].lerp(tensor, share)
        for name, tensor in average.items()
    }


def keep_start(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Leave the model unchanged."""
    return start


def add_updates(model: Model, updates: Iterable[tuple[float, Model, Model]]) -> Model:
    """Return ``model + sum of weight * (trained - sent)`` over (weight, trained, sent), summed in their order.

    What was not sent, or the model does not have yet, such as moments at first, counts as zero. Tensors that are not
    floating point (counters) are the model's own.
    """
    total = dict(model)
    for weight, trained, sent in updates:
        for name, tensor in trained.items():
            if tensor.is_floating_point():
                update = tensor - sent[name] if name in sent else tensor
                total[name] = total[name].add(update, alpha=weight) if name in total else update * weight
    return total


def share_layers(
    models: Sequence[Model], names: Sequence[str], weights: Mapping[int, float], starts: Sequence[Model] | None = None
) -> list[Model]:
    """Give all models the same tensors of these names: the mean over the clusters in `weights` (IFCA, Sec. 4).

    With `starts`, by which gradients are meant, each cluster moved from its own by its share of all steps: their sum.
    """
    own = {cluster: {name: models[cluster][name] for name in names} for cluster in weights}
    if starts is None:
        common = mean((weight, own[cluster]) for cluster, weight in weights.items())
    else:
        start = {name: starts[min(own)][name] for name in names}  # the same in all clusters
        common = add_updates(start, ((1.0, each, starts[cluster]) for cluster, each in own.items()))
    return [model | common for model in models]


COMBINES: dict[str, Combine] = {"models": average_models, "gradients": average_gradients}
