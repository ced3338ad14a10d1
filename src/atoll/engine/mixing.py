"""Weighted means of models, by an event's mixes: one by one, or many small ones in one product."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoll.aggregation.mean import add_updates, mean
from atoll.local.models import Model
from atoll.schedules.events import Mix

if TYPE_CHECKING:  # late elsewhere: reading settings needs no PyTorch
    from torch import Tensor

_FEWEST = 16  # mixes for which gathering the models pays
_LARGEST = 2**16  # numbers in a model; mixing larger ones takes longer than the calls


def mix(recipe: Mix, server: Model | None, published: Sequence[Model], sent: Sequence[Model]) -> Model:
    """Return a recipe's weighted mean; with one source of weight one, that source itself, not a copy.

    `sent` are the models that the clusters' clients were sent for this event.
    """
    sources = [(weight, published[cluster]) for cluster, weight in recipe.published]
    if recipe.server and server is not None:
        sources.insert(0, (recipe.server, server))
    mixed = sources[0][1] if len(sources) == 1 else mean(sources)
    if not recipe.updates:
        return mixed
    return add_updates(mixed, ((weight, published[cluster], sent[cluster]) for cluster, weight in recipe.updates))


def mix_all(
    recipes: Sequence[Mix], server: Model | None, published: Sequence[Model], sent: Sequence[Model]
) -> list[Model]:
    """Return each recipe's model (`mix`); many small ones of clusters' models alone are computed at once."""
    alone = [i for i, each in enumerate(recipes) if not (each.server or each.updates) and len(each.published) > 1]
    if len(alone) < _FEWEST or not _are_small(published):
        return [mix(recipe, server, published, sent) for recipe in recipes]
    together = dict(zip(alone, _mix_together([recipes[place] for place in alone], published), strict=True))
    return [
        together[place] if place in together else mix(recipe, server, published, sent)
        for place, recipe in enumerate(recipes)
    ]


def _are_small(models: Sequence[Model]) -> bool:
    """Return whether models have one form, are on the CPU, and take less time to mix than the calls do."""
    from torch import float32, float64

    first = models[0]
    return (
        sum(tensor.numel() for tensor in first.values()) <= _LARGEST
        and all(t.device.type == "cpu" and t.dtype in (float32, float64) for t in first.values())
        and all(model.keys() == first.keys() for model in models)
    )


def _mix_together(recipes: Sequence[Mix], published: Sequence[Model]) -> list[Model]:
    """Return the weighted means, one sparse product per tensor for all recipes, summed in the recipes' order."""
    import torch

    rows = [row for row, recipe in enumerate(recipes) for _ in recipe.published]
    columns = [cluster for recipe in recipes for cluster, _ in recipe.published]
    weights = torch.tensor([weight for recipe in recipes for _, weight in recipe.published], dtype=torch.float64)
    totals = torch.tensor([sum(weight for _, weight in recipe.published) for recipe in recipes], dtype=torch.float64)
    index, size = torch.tensor([rows, columns]), (len(recipes), len(published))

    def product(name: str) -> "tuple[Tensor, ...]":
        models = torch.stack([model[name] for model in published])
        shares = torch.sparse_coo_tensor(index, weights.to(models.dtype), size, check_invariants=True)
        summed = torch.sparse.mm(shares, models.reshape(len(models), models[0].numel())).div_(
            totals.to(models.dtype)[:, None]
        )
        return tuple(summed.reshape(len(recipes), *models.shape[1:]))

    names = list(published[0])
    return [dict(zip(names, tensors, strict=True)) for tensors in zip(*map(product, names), strict=True)]
