"""FedDyn: FedAvg with a regulariser that makes the clients' optima the common one (Acar et al. 2021)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.equal_clients import MeanAndShare, take_share, weigh_equally
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.methods.parts.server_optimizers import buffers_of
from atoll.schedules.events import Clock
from atoll.support.limits import PositiveFloat, Share

if TYPE_CHECKING:
    from torch import nn


@checked
def feddyn(
    population: Population,
    rule: LocalRule,
    rounds: int,
    alpha: PositiveFloat = 0.01,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
    module: "nn.Module | None" = None,
) -> Method:
    """FedDyn: each client adds a linear and a quadratic term to its loss, which change as it trains.

    Acar et al. 2021, Algorithm 1, its exact minimisation taken as `rule.steps` steps. A cohort's clients go from W
    down ``L_k(w) - <h_k, w> + alpha / 2 * ||w - W||^2`` and set ``h_k <- h_k - alpha * (w_k - W)``. Then the server
    sets ``h <- h - alpha / m * sum(w_k - W)``, m counting all clients, and ``W <- mean(w_k) - h / alpha``.

    h_k stays at its client, h at the server; what is sent is that of FedAvg. All clients count alike. As alpha goes to
    0 the local steps become FedAvg's, but not the server's: h / alpha does not depend on it.

    Args:
        population: the clients.
        rule: what a client does.
        rounds: T.
        alpha: weight of the regulariser.
        fraction: share of the clients in a cohort.
        clock: how long clients take; None: every round takes a second.
        seed: what cohorts are drawn from.
        module: says which tensors are parameters; None: all are.

    Raises:
        InputError: the rule has a proximal term of its own.
    """
    refuse_proximal(rule, "method.name = 'feddyn', whose quadratic term is method.alpha's")
    from atoll.methods.parts.corrected_trainers import (
        DynamicRegulariser,  # needs PyTorch, which settings do not wait for
    )

    plain = weigh_equally(fedavg(population, replace(rule, proximal=alpha), rounds, fraction, clock, seed))
    combine, server_rule = MeanAndShare(len(population)), SubtractDrift(buffers_of(module))
    return replace(plain, trainer=DynamicRegulariser, combine=combine, server_rule=server_rule)


@dataclass(frozen=True)
class SubtractDrift:
    """The server rule of FedDyn; what it keeps is h / alpha, which the mean is less by."""

    buffers: frozenset[str] = frozenset()

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, Model | None]:
        """Return W and h / alpha; both stay as they are where nobody answered."""
        mean, share = take_share(merged)
        if not share:
            return mean, state
        moved, drift = dict(mean), Model()
        for name, tensor in mean.items():
            if name not in self.buffers and tensor.is_floating_point():
                old = state[name] if state else tensor.new_zeros(tensor.shape)
                drift[name] = old.add(tensor - before[name], alpha=-share)
                moved[name] = tensor - drift[name]
        return moved, drift
