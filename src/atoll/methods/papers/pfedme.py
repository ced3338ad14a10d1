"""pFedMe: personal models from Moreau envelopes around the server's (Dinh et al. 2020)."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.equal_clients import weigh_equally
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.methods.parts.server_optimizers import buffers_of
from atoll.schedules.clock import Clock
from atoll.support.limits import Positive, PositiveFloat, Share

if TYPE_CHECKING:
    from torch import nn


@checked
def pfedme(
    population: Population,
    rule: LocalRule,
    rounds: int,
    penalty: PositiveFloat = 15.0,
    inner_steps: Positive = 5,
    inner_lr: PositiveFloat = 0.05,
    server_lr: PositiveFloat = 1.0,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
    module: "nn.Module | None" = None,
) -> Method:
    """pFedMe: each client's personal model minimises its loss near a local one, which moves toward the personal one.

    Dinh, Tran and Nguyen 2020, "Personalized federated learning with Moreau envelopes", Algorithm 1. In each of R =
    `rule.steps` local rounds a client draws a batch D, finds ``theta ~ argmin of f(theta; D) + lambda / 2 * ||theta -
    w||^2`` by K steps of the local rule's optimiser from the last theta, at first the received model, and sets ``w <- w
    - eta * lambda * (w - theta)``, eta being the rule's rate. The server sets ``w <- (1 - beta) w + beta * mean``. A
    round takes K times FedAvg's computation. With eta * lambda = 1 and K = 1 it is FedAvg at the inner rate.

    Args:
        population: the clients, equally weighted.
        penalty: weight of the pull of personal models toward local ones, lambda.
        inner_steps: steps toward each theta, K.
        inner_lr: their rate.
        server_lr: the server's step toward the mean, beta.
        module: the model, to tell parameters from buffers; None: all tensors are parameters.

    Raises:
        InputError: the rule has its own proximal term.
    """
    refuse_proximal(rule, "method.name = 'pfedme', whose penalty is method.penalty")
    from atoll.methods.parts.gradient_trainers import MoreauTrainer  # late: reading settings needs no PyTorch

    plain = weigh_equally(fedavg(population, rule, rounds, fraction, clock and clock.slower(inner_steps), seed))
    trainer = partial(MoreauTrainer, penalty=penalty, inner_steps=inner_steps, inner_lr=inner_lr)
    return replace(plain, trainer=trainer, server_rule=TowardMean(server_lr, buffers_of(module)))


@dataclass(frozen=True)
class TowardMean:
    """The server rule ``w <- (1 - beta) w + beta * mean``."""

    lr: float
    buffers: frozenset[str] = frozenset()

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, None]:
        """Return w; buffers and counters are the mean's."""
        kept = {name for name, tensor in merged.items() if name in self.buffers or not tensor.is_floating_point()}
        return {
            name: tensor if name in kept else before[name].lerp(tensor, self.lr) for name, tensor in merged.items()
        }, None
