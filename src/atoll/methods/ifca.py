"""IFCA: every round each client takes the cluster whose model has the least loss on its data (Ghosh et al. 2020)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from atoll.aggregation.mean import COMBINES
from atoll.data.population import Population
from atoll.engine.assignment import least_loss
from atoll.engine.cohorts import Executor
from atoll.engine.engine import Method, init, train
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.schedules.events import Clock, Event, Mix, Schedule
from atoll.schedules.timeline import _check, _draw_cohort, cohort_size
from atoll.support.errors import InputError
from atoll.support.seeds import generator

Option = Literal["models", "gradients"]


def ifca(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: int = 4,
    option: Option = "models",
    fraction: float = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """IFCA: every round each client of the cohort takes the model with the least loss on its data, and trains it.

    Ghosh et al. 2020. Option `models`: a cluster's model becomes the mean of its clients' models. Option
    `gradients`, with one local step: ``chi_p <- chi_p - (eta / m) * sum of g_i``, m counting the whole cohort.
    """
    schedule = all_together(population, clusters, rounds, fraction, clock, seed)
    if option == "gradients":
        if rule.steps != 1:
            raise InputError(f"local.steps = {rule.steps}: must be 1 with method.option = 'gradients'")
        even = tuple(replace(event, weights=np.ones(len(event.cohort))) for event in schedule.events)
        schedule = replace(schedule, events=even)  # 1 / m each, as the paper writes it
    return Method(schedule, rule, least_loss, COMBINES[option], starts=clusters)


def all_together(
    population: Population,
    clusters: int,
    rounds: int,
    fraction: float = 1.0,
    clock: Clock | None = None,
    seed: int = 0,
) -> Schedule:
    """Every round one cohort, drawn from all clients, trains; clients find their cluster then (IFCA, CFL-MGD).

    Each client is sent all clusters' models and returns one. Clusters are never merged, and there is no server's
    model. The cohort is ``cohort_size(fraction, clients)`` clients drawn without replacement.
    """
    _check(rounds, fraction)
    if clusters < 1:
        raise InputError(f"method.clusters = {clusters}: must be at least 1")
    everyone = np.arange(len(population))
    active = tuple(range(clusters))
    starts = tuple((c, Mix(published=((c, 1.0),))) for c in active)  # one object for all events
    events = []
    now = 0.0
    for index in range(rounds):
        cohort = _draw_cohort(everyone, cohort_size(fraction, len(everyone)), generator(seed, "cohort", index))
        began, now = now, now + (clock.event_seconds(cohort) if clock else 1.0)
        events.append(
            Event(
                index=index,
                round=index,
                seconds=now,
                active=active,
                began=(began,) * clusters,
                cohort=cohort,
                clusters=None,
                weights=population.sizes[cohort].astype(float),
                starts=starts,
                staleness=(0,) * clusters,
                models_down=len(cohort) * clusters,
                models_up=len(cohort),
            )
        )
    return Schedule(tuple(events), clusters, rounds, has_server=False)


def choose_start(
    method: Method, executor: Executor, candidates: Sequence[tuple[Model, ...]], clients: int, rounds: int
) -> int:
    """Return which candidate's clusters fit best after so many rounds: the least mean of each client's least loss."""
    trial = replace(method.schedule, events=tuple(e for e in method.schedule.events if e.round < rounds))
    everyone = np.arange(clients)
    scores = []
    for initial in candidates:
        state = init(method, *initial)
        for step in train(replace(method, schedule=trial), executor, state):
            state = step.state
        scores.append(executor.losses(state.starts, everyone, 0).min(axis=1).mean())
    return int(np.argmin(scores))
