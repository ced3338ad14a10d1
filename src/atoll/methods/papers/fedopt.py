"""FedAvg with an optimiser on the server: FedAvgM, FedAdagrad, FedAdam and FedYogi.

Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification";
Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2. Delta is the mean of a cohort's updates, weighted
by samples; the server treats -Delta as a gradient.

The rules are exactly the paper's: no bias correction, tau outside the root, and the second moment starts at tau^2, the
least that the paper allows. Tensors that are not parameters, such as running means, are averaged.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.server_optimizers import (
    Adaptive,
    HeavyBall,
    add_square,
    buffers_of,
    move_to_square,
    step_to_square,
)
from atoll.schedules.events import Clock
from atoll.support.limits import BelowOne, PositiveFloat, Share

if TYPE_CHECKING:
    from torch import Tensor, nn

P = ParamSpec("P")


@checked
def fedavgm(
    population: Population,
    rule: LocalRule,
    rounds: int,
    server_lr: PositiveFloat = 1.0,
    momentum: BelowOne = 0.9,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
    module: "nn.Module | None" = None,
) -> Method:
    """FedAvgM: ``u <- momentum * u + Delta; x <- x + server_lr * u``.

    Hsu et al. 2019. With momentum 0 and server_lr 1 this is bit-identical to FedAvg.

    Args:
        population: the clients.
        rule: the local training rule.
        rounds: number of rounds, T.
        server_lr: the server's step size, eta.
        momentum: heavy-ball momentum.
        fraction: share of clients in each cohort.
        clock: clients' training and upload times; None: every round takes one second.
        seed: seed for drawing cohorts.
        module: the model, to tell parameters from buffers; None: all tensors are parameters.
    """
    plain = fedavg(population, rule, rounds, fraction, clock, seed)
    return replace(plain, server_rule=HeavyBall(server_lr, momentum, buffers_of(module)))


@checked
def fedadagrad(
    population: Population,
    rule: LocalRule,
    rounds: int,
    server_lr: PositiveFloat = 0.01,
    beta1: BelowOne = 0.0,
    tau: PositiveFloat = 0.001,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
    module: "nn.Module | None" = None,
) -> Method:
    """FedAdagrad: ``m <- beta1 m + (1 - beta1) Delta; v <- v + Delta^2; x <- x + server_lr m / (sqrt(v) + tau)``.

    Reddi et al. 2021.

    Args:
        population: the clients.
        rule: the local training rule.
        rounds: number of rounds, T.
        server_lr: the server's step size, eta.
        beta1: decay of the first moment.
        tau: degree of adaptivity; smaller is more adaptive.
        fraction: share of clients in each cohort.
        clock: clients' training and upload times; None: every round takes one second.
        seed: seed for drawing cohorts.
        module: the model, to tell parameters from buffers; None: all tensors are parameters.
    """
    plain = fedavg(population, rule, rounds, fraction, clock, seed)
    return replace(plain, server_rule=Adaptive(server_lr, beta1, 0.0, tau, add_square, buffers_of(module)))


@checked
def fedadam(
    population: Population,
    rule: LocalRule,
    rounds: int,
    server_lr: PositiveFloat = 0.01,
    beta1: BelowOne = 0.9,
    beta2: BelowOne = 0.99,
    tau: PositiveFloat = 0.001,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
    module: "nn.Module | None" = None,
) -> Method:
    """FedAdam: FedAdagrad with ``v <- beta2 v + (1 - beta2) Delta^2``.

    Reddi et al. 2021. With beta1 = beta2 = 0 and server_lr = tau far above all Delta, it is bit-identical to FedAvg.

    Args:
        population: the clients.
        rule: the local training rule.
        rounds: number of rounds, T.
        server_lr: the server's step size, eta.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        tau: degree of adaptivity; smaller is more adaptive.
        fraction: share of clients in each cohort.
        clock: clients' training and upload times; None: every round takes one second.
        seed: seed for drawing cohorts.
        module: the model, to tell parameters from buffers; None: all tensors are parameters.
    """
    plain = fedavg(population, rule, rounds, fraction, clock, seed)
    return replace(plain, server_rule=Adaptive(server_lr, beta1, beta2, tau, move_to_square, buffers_of(module)))


def _with_second_moment(
    base: Callable[P, Method], second: "Callable[[Tensor, Tensor, float], Tensor]", name: str, summary: str
) -> Callable[P, Method]:
    """Return an adaptive method's variant with another second moment and the same arguments."""

    @wraps(base)
    def make(*given: P.args, **named: P.kwargs) -> Method:
        method = base(*given, **named)
        assert isinstance(method.server_rule, Adaptive)
        return replace(method, server_rule=replace(method.server_rule, second=second))

    make.__name__ = make.__qualname__ = name
    arguments = str(base.__doc__).partition("Args:")[2]
    make.__doc__ = f"{summary}\n\n    Reddi et al. 2021.\n\n    Args:{arguments}"
    return make


fedyogi = _with_second_moment(
    fedadam, step_to_square, "fedyogi", "FedYogi: FedAdagrad with ``v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)``."
)
