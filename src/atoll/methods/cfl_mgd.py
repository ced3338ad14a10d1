"""CFL-MGD: IFCA with momentum gradient descent inside the clusters."""

from dataclasses import replace
from functools import partial

from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule, momentum
from atoll.methods.ifca import Option, ifca
from atoll.schedules.events import Clock
from atoll.support.errors import InputError


def cfl_mgd(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: int = 4,
    beta: float = 0.9,
    option: Option = "models",
    fraction: float = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """CFL-MGD: IFCA with the heavy ball ``u <- beta * u + g; chi <- chi - eta * u``, u kept by each cluster.

    The clusters' u_p are sent with the models and averaged like them, so clients keep no state. The rule's own
    optimiser is replaced; with beta = 0 it is IFCA with SGD.
    """
    if not 0 <= beta < 1:
        raise InputError(f"method.beta = {beta}: must be at least 0 and less than 1")
    heavy_ball = replace(rule, optimizer=partial(momentum, momentum=beta), carry_moments=True)
    return ifca(population, heavy_ball, rounds, clusters, option, fraction, clock, seed)
