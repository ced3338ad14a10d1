"""Modules made of several of the run's models, which are communicated together."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from atoll.support.errors import InputError
from atoll.support.limits import Positive
from atoll.support.requiring import checked

if TYPE_CHECKING:
    from torch import nn

    from atoll.methods.parts.mixture import Mixture
    from atoll.methods.parts.soft_clusters import OwnAndCentres

_checked = checked("method.{}")


@_checked
def mixture(make: Callable[[], "nn.Module"], loss: str = "cross-entropy", clusters: Positive = 3) -> "Mixture":
    """Return a mixture of models with initial weights of their own, the module of `fedem`.

    Args:
        make: makes one model.
        loss: the data's (`Dataset.loss`).
        clusters: number of models, K.
    """
    from atoll.methods.parts.mixture import Mixture  # late: reading settings needs no PyTorch

    return Mixture([make() for _ in range(clusters)], loss)


@_checked
def mixture_by_class(
    make: Callable[[], "nn.Module"], classes: Positive, clusters: Positive = 3, loss: str = "cross-entropy"
) -> "Mixture":
    """Return the same with `classes_of`, the module of `fedrc`.

    Raises:
        InputError: the data have no classes.
    """
    if loss != "cross-entropy":
        raise InputError(f"method.name = 'fedrc': needs data with classes, whose loss is 'cross-entropy', not {loss!r}")
    from atoll.methods.parts.mixture import Mixture

    return Mixture([make() for _ in range(clusters)], loss, classes)


@_checked
def own_and_centres(make: Callable[[], "nn.Module"], clusters: Positive = 3) -> "OwnAndCentres":
    """Return a client's own model and centres, each with initial weights of its own, the module of `fedsoft`."""
    from atoll.methods.parts.soft_clusters import OwnAndCentres

    return OwnAndCentres(make(), [make() for _ in range(clusters)])


def require_components(module: "nn.Module", clusters: int, clients: int) -> None:
    """Require a module of so many models, at most one per client."""
    if clusters > clients:
        raise InputError(f"method.clusters = {clusters}: must be at most data.clients = {clients}")
    if len(getattr(module, "components", ())) != clusters:
        raise InputError(f"module: must be made of method.clusters = {clusters} models, as atoll.mixture makes it")
