"""IFCA: in every round clients choose the cluster with the least loss on their data (Ghosh et al. 2020)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from atoll.aggregation.mean import COMBINES
from atoll.data.population import Population
from atoll.engine.assignment import least_loss
from atoll.engine.cohorts import Executor
from atoll.engine.engine import init, train
from atoll.engine.method import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import refuse_epochs
from atoll.schedules.clock import Clock
from atoll.schedules.events import Mix, Schedule, make_event
from atoll.schedules.packed import pack
from atoll.schedules.timeline import cohort_size, draw_cohort
from atoll.support.arrays import least
from atoll.support.errors import InputError
from atoll.support.limits import Count, Positive, Share
from atoll.support.seeds import generator

if TYPE_CHECKING:
    from torch import nn

Option = Literal["models", "gradients"]


@checked
def ifca(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: Positive = 4,
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
    """IFCA: in every round each client of the cohort trains the cluster model with the least loss on its data.

    Ghosh et al. 2020. Option `models`: a cluster's model becomes the mean of its clients' models. Option
    `gradients`, with one local step: ``chi_p <- chi_p - (eta / m) * sum of g_i``, m counting the whole cohort.

    Args:
        clusters: number of models, P.
        module: the model, needed if layers are shared.

    Raises:
        InputError: settings conflict, clients have too few samples to resample, or there are too many shared layers.
    """
    rule = resampled(rule, population, rounds) if resample else rule
    shared = first_layers(module, shared_layers) if shared_layers else ()
    schedule = all_together(population, clusters, rounds, fraction, clock, seed)
    if option == "gradients":
        if rule.steps != 1:
            raise InputError(f"local.steps = {rule.steps}: must be 1 with method.option = 'gradients'")
        refuse_epochs(rule, "method.option = 'gradients', which sends the gradient of one step")
        even = pack(replace(event, weights=np.ones(len(event.cohort))) for event in schedule.events)
        schedule = replace(schedule, events=even)  # 1 / m each, as the paper writes it
    return Method(
        schedule,
        rule,
        least_loss,
        COMBINES[option],
        shared=shared,
        starts=clusters,
        restarts=restarts,
        restart_rounds=restart_rounds,
    )


def resampled(rule: LocalRule, population: Population, rounds: int) -> LocalRule:
    """Return the rule with clients' data split into disjoint parts, two per round: for assignment and for training."""
    parts, sizes = 2 * rounds, population.sizes
    if sizes.min() < parts:
        raise InputError(
            f"method.resample = true: client {sizes.argmin()} has {sizes.min()} samples but needs at least "
            f"2 x rounds = {parts}"
        )
    return replace(rule, resample_parts=parts)


def first_layers(module: "nn.Module | None", count: int) -> tuple[str, ...]:
    """Return the names of the parameters and buffers of the first `count` layers that have parameters."""
    from atoll.local.travel import cut_before, layers_of, require_whole  # late: reading settings needs no PyTorch

    told = f"method.shared_layers = {count}"
    if module is None:
        raise InputError(f"{told}: needs the argument `module`, the model whose first layers are shared")
    if count >= (most := len(layers_of(module))):
        raise InputError(f"{told}: must be less than the model's {most} layers with parameters")
    names, _ = cut_before(module, count)
    require_whole(module, names, told)
    return names


def all_together(
    population: Population, clusters: int, rounds: int, fraction: float = 1.0, clock: Clock | None = None, seed: int = 0
) -> Schedule:
    """Return a schedule of one cohort per round, whose clients first find their clusters (IFCA, CFL-MGD).

    Each client receives all clusters' models and returns one. Clusters are never merged, and there is no server
    model. The cohort is ``cohort_size(fraction, clients)`` clients drawn without replacement.
    """
    everyone, active = np.arange(len(population)), tuple(range(clusters))
    starts = tuple((c, Mix(published=((c, 1.0),))) for c in active)  # one object for all events
    events, now = [], 0.0
    for index in range(rounds):
        cohort = draw_cohort(everyone, cohort_size(fraction, len(everyone)), generator(seed, "cohort", index))
        began, now = now, now + (clock.event_seconds(cohort, now) if clock else 1.0)
        weights, down = population.sizes[cohort].astype(float), len(cohort) * clusters
        fields = {"clusters": None, "server": None, "starts": starts, "models_down": down}
        events.append(make_event(index, cohort, weights, began, now, active, **fields))
    return Schedule(pack(events), clusters, rounds, has_server=False)


def choose_start(method: Method, executor: Executor, candidates: Sequence[tuple[Model, ...]], clients: int) -> int:
    """Return the index of the best start after `restart_rounds`: the least mean of clients' least losses."""
    events = tuple(event for event in method.schedule.events if event.round < method.restart_rounds)
    trial = replace(method.schedule, events=events)
    everyone, scores = np.arange(clients), []
    for initial in candidates:
        state = init(method, *initial)
        for step in train(replace(method, schedule=trial), executor, state):
            state = step.state
        scores.append(np.fmin.reduce(executor.losses(state.starts, everyone, 0), axis=1).mean())
    return int(least(np.array([scores]))[0])
