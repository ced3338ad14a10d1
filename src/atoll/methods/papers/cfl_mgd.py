"""CFL-MGD: IFCA with momentum gradient descent inside the clusters."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule, momentum
from atoll.methods.papers.ifca import Option, ifca
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import require_sgd
from atoll.schedules.clock import Clock
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
    """CFL-MGD: IFCA with heavy-ball momentum ``u <- beta * u + g; chi <- chi - eta * u`` for each cluster.

    Each u_p is communicated and averaged with its cluster's model, so clients keep no state. Momentum replaces the
    rule's optimiser, which must be SGD; with beta = 0 this is IFCA with SGD.

    Args:
        clusters: number of models, P.
        beta: the clusters' momentum.
        module: the model, needed if layers are shared.

    Raises:
        InputError: beta is out of range, the optimiser is not SGD, or `ifca` rejects the settings.
    """
    require_sgd(
        rule,
        "method.name = 'cfl-mgd', which keeps momentum per cluster (method.beta); 'ifca' accepts any optimizer, "
        "with fresh state in every round",
    )
    heavy_ball = replace(rule, optimizer=partial(momentum, momentum=beta), carry_moments=True)
    further = (restarts, restart_rounds, resample, shared_layers, module)
    return ifca(population, heavy_ball, rounds, clusters, option, fraction, clock, seed, *further)
