"""CFL-MGD: IFCA with momentum gradient descent inside the clusters."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule, momentum
from atoll.methods.papers.ifca import Option, ifca
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import require_sgd
from atoll.schedules.events import Clock
from atoll.support.errors import InputError
from atoll.support.limits import BelowOne, Count, Positive, Share

if TYPE_CHECKING:
    from torch import nn


@checked
def cfl_mgd(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: Positive = 4,
    beta: BelowOne = 0.9,
    option: Option = "models",
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
    restarts: Positive = 1,
    restart_rounds: Positive = 3,
    resample: bool = False,
    shared_layers: Count = 0,
    module: "nn.Module | None" = None,
) -> Method:
    """CFL-MGD: IFCA with the heavy ball ``u <- beta * u + g; chi <- chi - eta * u``, u kept by each cluster.

    The clusters' u_p are sent with the models and averaged like them, so clients keep no state. The heavy ball
    replaces the rule's optimiser, which must be SGD; with beta = 0 it is IFCA with SGD.

    Args:
        population: the clients.
        rule: what a client does.
        rounds: T.
        clusters: number of models, P.
        beta: the clusters' momentum.
        option: what is averaged.
        fraction: share of the clients in a cohort.
        clock: how long clients take; None: every round takes a second.
        seed: what cohorts are drawn from.
        restarts: starts tried; the one with the least loss is kept.
        restart_rounds: rounds that each start is tried for.
        resample: disjoint data for identity and training, every round.
        shared_layers: first layers that all clusters share.
        module: the model, needed where layers are shared.

    Raises:
        InputError: beta out of range, another optimiser, or what `ifca` refuses.
    """
    if not 0 <= beta < 1:
        raise InputError(f"method.beta = {beta}: must be at least 0 and less than 1")
    require_sgd(
        rule,
        "method.name = 'cfl-mgd', whose momentum is the clusters' own (method.beta); with 'ifca' any optimizer runs, "
        "its state afresh every round",
    )
    heavy_ball = replace(rule, optimizer=partial(momentum, momentum=beta), carry_moments=True)
    return ifca(
        population,
        heavy_ball,
        rounds,
        clusters,
        option,
        fraction,
        clock,
        seed,
        restarts=restarts,
        restart_rounds=restart_rounds,
        resample=resample,
        shared_layers=shared_layers,
        module=module,
    )
