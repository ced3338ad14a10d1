"""FedDyn: FedAvg with a regulariser that aligns clients' optima with the global one (Acar et al. 2021)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.equal_clients import MeanAndShare, take_share, weigh_equally
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.methods.parts.server_optimizers import buffers_of
from atoll.schedules.clock import Clock
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
    """FedDyn: each client adds a linear and a quadratic term to its loss, updated as it trains.

    Acar et al. 2021, Algorithm 1, with its exact minimisation replaced by `rule.steps` steps. From W, each client
    descends ``L_k(w) - <h_k, w> + alpha / 2 * ||w - W||^2`` and sets ``h_k <- h_k - alpha * (w_k - W)``. The server
    then sets ``h <- h - alpha / m * sum(w_k - W)``, m counting all clients, and ``W <- mean(w_k) - h / alpha``.

    h_k stays at its client and h at the server, so traffic is that of FedAvg. Clients have equal weights. As alpha
    goes to 0, local steps approach FedAvg's but the server's do not: h / alpha does not depend on alpha.

    Args:
        alpha: regularisation weight.
        module: the model, to tell parameters from buffers; None: all tensors are parameters.

    Raises:
        InputError: the rule has its own proximal term.
    """
    refuse_proximal(rule, "method.name = 'feddyn', whose quadratic term is method.alpha's")
    from atoll.methods.parts.update_trainers import DynamicRegulariser  # late: reading settings needs no PyTorch

    plain = weigh_equally(fedavg(population, replace(rule, proximal=alpha), rounds, fraction, clock, seed))
    combine, server_rule = MeanAndShare(len(population)), SubtractDrift(buffers_of(module))
    return replace(plain, trainer=DynamicRegulariser, combine=combine, server_rule=server_rule)


@dataclass(frozen=True)
class SubtractDrift:
    """The server rule of FedDyn, which subtracts its state h / alpha from the mean."""

    buffers: frozenset[str] = frozenset()

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, Model | None]:
        """Return W and h / alpha; both are unchanged if nobody answered."""
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
