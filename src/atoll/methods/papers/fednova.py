"""FedNova: clients' step counts depend on their data size; updates are averaged per step (Wang et al. 2020)."""

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from atoll.aggregation.mean import Weighted, mean
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule, made_by
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.methods.parts.server_optimizers import buffers_of
from atoll.schedules.clock import Clock
from atoll.support.errors import InputError
from atoll.support.limits import Share

if TYPE_CHECKING:
    from torch import nn


@checked
def fednova(
    population: Population,
    rule: LocalRule,
    rounds: int,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
    module: "nn.Module | None" = None,
) -> Method:
    """FedNova: FedAvg for clients with different step counts, without bias toward those that take more steps.

    Wang et al. 2020, "Tackling the Objective Inconsistency Problem". Client k, with n_k samples, trains for
    `rule.epochs` from x to y_k. With p_k its share of the cohort's samples and a_k the length of its steps,
    ``x <- x + (sum p_k a_k) * sum of p_k (y_k - x) / a_k``. For plain SGD a_k is the number of steps; with momentum
    it is the sum of the optimiser's weights of the gradients. Buffers, such as running variances, become the mean with
    weights ``p_k / a_k``.

    Traffic is that of FedAvg: the server knows n_k. With equal step counts this is bit-identical to FedAvg.

    Args:
        rule: the local training rule, with `epochs`; SGD, with or without momentum.
        module: the model, to tell parameters from buffers; None: all tensors are parameters.

    Raises:
        InputError: the optimiser is not SGD, there is a proximal term, or step counts are fixed.
    """
    refuse_proximal(rule, "method.name = 'fednova', which only knows the length of SGD steps")
    if rule.epochs is None:
        raise InputError(
            "local.epochs is not set, but method.name = 'fednova' needs it: with equal step counts it is 'fedavg'"
        )
    _require_linear(rule)
    plain, most = fedavg(population, rule, rounds, fraction, clock, seed), rule.steps_of(int(population.sizes.max()))
    return replace(plain, combine=NormalisedMean(replace(rule, rates=()), most, buffers_of(module)))


@cache
def length_of(rule: LocalRule, steps: int) -> float:
    """Return how far this many steps go with gradients and learning rate all 1: the paper's ``|a|``."""
    import torch

    place = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = rule.optimizer([place], 1.0)
    for _ in range(steps):
        place.grad = torch.ones_like(place)
        optimizer.step()
    return -place.item()


@dataclass(frozen=True)
class NormalisedMean:
    """The combine rule ``x + (sum p_k a_k) * sum of p_k (y_k - x) / a_k``; weights must be sample counts.

    Attributes:
        most: maximum step count of any client; lengths are relative to it, so that equal ones are exactly 1.
    """

    rule: LocalRule
    most: int
    buffers: frozenset[str] = frozenset()

    def __call__(self, models: Weighted, start: Model, cohort_weight: float) -> Model:
        """Return the next x: the mean with weights ``p_k / a_k``, extrapolated by the remaining factor."""
        most, samples, lengths, weights = length_of(self.rule, self.most), 0.0, 0.0, 0.0

        def normalised() -> Weighted:
            nonlocal samples, lengths, weights
            for weight, model in models:
                length = length_of(self.rule, self.rule.steps_of(int(weight))) / most
                samples, lengths, weights = samples + weight, lengths + weight * length, weights + weight / length
                yield weight / length, model

        average = mean(normalised())
        far = (lengths / samples) * (weights / samples)
        return average | {
            name: start[name].lerp(each, far)
            for name, each in average.items()
            if name not in self.buffers and each.is_floating_point()
        }


def _require_linear(rule: LocalRule) -> None:
    """Reject an optimiser whose total step is not a weighted sum of gradients."""
    import torch

    made = made_by(rule)
    if type(made) is not torch.optim.SGD or made.defaults["weight_decay"]:
        raise InputError(
            f"local.optimizer = {type(made).__name__}: must be 'sgd' or 'momentum' with method.name = 'fednova', whose "
            "steps must add up to a weighted sum of gradients"
        )
