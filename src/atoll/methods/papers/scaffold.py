"""SCAFFOLD: FedAvg whose local steps are corrected by control variates (Karimireddy et al. 2020)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.equal_clients import MeanAndShare, take_share, weigh_equally
from atoll.methods.parts.rule_requirements import refuse_proximal, require_sgd
from atoll.schedules.clock import Clock
from atoll.support.limits import PositiveFloat, Share

if TYPE_CHECKING:
    from torch import nn


@checked
def scaffold(
    population: Population,
    rule: LocalRule,
    rounds: int,
    server_lr: PositiveFloat = 1.0,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
    module: "nn.Module | None" = None,
) -> Method:
    """SCAFFOLD: each client's steps are corrected by ``c - c_i``, to counteract its drift.

    Karimireddy et al. 2020, Algorithm 1 with option II. A cohort's clients start from x, take K = `rule.steps` steps
    ``y <- y - eta * (g(y) - c_i + c)`` and set ``c_i <- c_i - c + (x - y) / (K * eta)``. Then the server sets
    ``x <- x + server_lr * mean(y - x)`` and ``c <- c + |S| / N * mean(c_i's change)``, S being those that answered.

    c is communicated with the model, which doubles traffic; c_i stays at its client. Clients have equal weights.

    Args:
        rule: the local training rule; plain SGD.
        server_lr: the server's step size, eta_g.
        module: the model; None: no two layers share a parameter.

    Raises:
        InputError: the optimiser is not plain SGD, or there is a proximal term: c_i would not be a mean of gradients.
    """
    require_sgd(rule, "method.name = 'scaffold', whose c_i are means of the gradients of local steps")
    refuse_proximal(rule, "method.name = 'scaffold', whose c_i are means of the gradients of local steps")
    from atoll.methods.parts.update_trainers import ControlVariates  # late: reading settings needs no PyTorch

    plain = weigh_equally(fedavg(population, rule, rounds, fraction, clock, seed))
    names = () if module is None else (name for name, _ in module.named_parameters(remove_duplicate=False))
    combine, server_rule = MeanAndShare(len(population)), MoveBoth(server_lr, frozenset(names))
    return replace(plain, trainer=ControlVariates, combine=combine, server_rule=server_rule)


@dataclass(frozen=True)
class MoveBoth:
    """The server rule of x and c: x steps by `lr` toward its mean, c by the share of clients that answered.

    Of a parameter with two names only the first has a c, so `parameters` has all names.
    """

    lr: float
    parameters: frozenset[str] = frozenset()

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, None]:
        """Return x and c."""
        mean, share = take_share(merged)
        moved = dict(mean)
        for name, tensor in mean.items():
            if f"{name}@c" in mean or name in self.parameters:
                moved[name] = before[name].lerp(tensor, self.lr)
            elif "@" in name:
                moved[name] = before.get(name, tensor.new_zeros(tensor.shape)).lerp(tensor, share)
        return moved, None
