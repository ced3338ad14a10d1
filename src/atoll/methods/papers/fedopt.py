"""FedAvg with an optimiser on the server: FedAvgM, FedAdagrad, FedAdam and FedYogi.

Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification";
Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2. With Delta the mean of what a cohort's clients
changed x by, weighted by their samples, the server takes a step up Delta as if it were a gradient.

The paper's rules are taken as it writes them: no bias correction, tau outside the root, and the second moment starts
at tau^2, the least that the paper allows. What is no parameter, such as a layer's running mean, is averaged.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

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
    from torch import nn


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

    Hsu et al. 2019. With momentum 0 and server_lr 1 it is FedAvg, to the bit.

    Args:
        population: the clients.
        rule: what a client does.
        rounds: T.
        server_lr: the server's step size, eta.
        momentum: the factor of the heavy ball.
        fraction: share of the clients in a cohort.
        clock: how long clients take; None: every round takes a second.
        seed: what cohorts are drawn from.
        module: says which tensors are parameters; None: all are.
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
        rule: what a client does.
        rounds: T.
        server_lr: the server's step size, eta.
        beta1: the factor of the first moment.
        tau: how adaptive the server is; the smaller the more.
        fraction: share of the clients in a cohort.
        clock: how long clients take; None: every round takes a second.
        seed: what cohorts are drawn from.
        module: says which tensors are parameters; None: all are.
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

    Reddi et al. 2021. With beta1 = beta2 = 0 and server_lr = tau far above every Delta it is FedAvg, to the bit.

    Args:
        population: the clients.
        rule: what a client does.
        rounds: T.
        server_lr: the server's step size, eta.
        beta1: the factor of the first moment.
        beta2: the factor of the second moment.
        tau: how adaptive the server is; the smaller the more.
        fraction: share of the clients in a cohort.
        clock: how long clients take; None: every round takes a second.
        seed: what cohorts are drawn from.
        module: says which tensors are parameters; None: all are.
    """
    plain = fedavg(population, rule, rounds, fraction, clock, seed)
    return replace(plain, server_rule=Adaptive(server_lr, beta1, beta2, tau, move_to_square, buffers_of(module)))


@checked
def fedyogi(
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
    """FedYogi: FedAdagrad with ``v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)``.

    Reddi et al. 2021.

    Args:
        population: the clients.
        rule: what a client does.
        rounds: T.
        server_lr: the server's step size, eta.
        beta1: the factor of the first moment.
        beta2: how little the second moment follows.
        tau: how adaptive the server is; the smaller the more.
        fraction: share of the clients in a cohort.
        clock: how long clients take; None: every round takes a second.
        seed: what cohorts are drawn from.
        module: says which tensors are parameters; None: all are.
    """
    plain = fedavg(population, rule, rounds, fraction, clock, seed)
    return replace(plain, server_rule=Adaptive(server_lr, beta1, beta2, tau, step_to_square, buffers_of(module)))
