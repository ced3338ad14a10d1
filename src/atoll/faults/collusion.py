"""Attackers that know other clients' results; only possible in simulation, where all results are in one place."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from atoll.aggregation.mean import mean
from atoll.aggregation.screening import Screening
from atoll.faults.attacks import STRENGTHS, go_back
from atoll.local.models import Model
from atoll.local.task import ClientUpdate
from atoll.local.weights import with_variances
from atoll.support.arrays import Ids
from atoll.support.process import one_thread

Collusion = Callable[[Model, Sequence[Model], float], Model]
"""Maps the received model, honest clients' models and the strength to the model that every attacker sends."""


def little_is_enough(start: Model, honest: Sequence[Model], strength: float) -> Model:
    """Send ``mean - strength * deviation`` of the honest models, by coordinate (Baruch et al. 2019, strength z).

    The authors use z = 1.5 on MNIST, and statistics of the attackers' own models instead of the honest clients'.
    """
    average = mean((1.0, model) for model in honest)
    return {
        name: tensor - strength * torch.stack([model[name] for model in honest]).std(dim=0, correction=0)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in average.items()
    }


def manipulate_inner_product(start: Model, honest: Sequence[Model], strength: float) -> Model:
    """Send ``w - strength * (mean - w)``: the honest clients' mean update, reversed (Xie et al. 2020, epsilon)."""
    return go_back(start, mean((1.0, model) for model in honest), strength)


COLLUSIONS: dict[str, Collusion] = {"little-is-enough": little_is_enough, "inner-product": manipulate_inner_product}


@dataclass(frozen=True)
class Colluding(Screening):
    """A screening that first replaces attackers' results, once their cohort's honest clients have finished.

    Without a strength the attack has its own of `STRENGTHS`.
    """

    attackers: frozenset[int] = frozenset()
    attack: str = "little-is-enough"
    strength: float | None = None

    def sent(self, clients: Ids, start: Model, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Return a cohort's results; attackers send their trained models if no client is honest."""
        attack = [client in self.attackers for client in clients.tolist()]
        if all(attack) or not any(attack):
            return updates
        # An executor may reuse a model's memory once the next one is requested.
        trained = [
            replace(each, model={name: tensor.clone() for name, tensor in each.model.items()})
            for each in islice(updates, len(clients))
        ]
        model = self._conspire(start, [each.model for each, evil in zip(trained, attack, strict=True) if not evil])
        return iter([replace(each, model=model) if evil else each for each, evil in zip(trained, attack, strict=True)])

    @one_thread()
    def _conspire(self, start: Model, honest: Sequence[Model]) -> Model:
        strength = STRENGTHS[self.attack] if self.strength is None else self.strength
        return with_variances(COLLUSIONS[self.attack](start, honest, strength))
