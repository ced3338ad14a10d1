"""Who is in a round's cohort: uniform, by size, in turn, by tiers of speed, or those with the greatest losses.

A selection is made for methods with one model for all clients and one cohort a round (`reselect`). It is a value that
a function such as `tiers` returns, whose parameters are settings of ``[method]``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from atoll.data.population import Population
from atoll.engine.assignment import HighestLoss
from atoll.engine.engine import Method
from atoll.methods.papers.fedat import tiers_of
from atoll.schedules.events import Clock, Event
from atoll.schedules.timeline import draw_cohort
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.limits import Positive
from atoll.support.seeds import generator


@dataclass(frozen=True)
class Selection:
    """How a round's clients are drawn.

    Attributes:
        draw: returns the clients, ascending, from the round and the size of a cohort.
        by_loss: only so many of those drawn train as the cohort has; those on whose data the model's loss is greatest.
    """

    draw: Callable[[int, int], Ids]
    by_loss: bool = False


def uniform() -> None:
    """Leave cohorts as the method draws them: without replacement, everyone as likely."""


def by_size(population: Population, seed: int) -> Selection:
    """Draw clients without replacement, with probabilities proportional to their samples."""
    return Selection(_draw_by_size(population.sizes, seed))


def round_robin(population: Population) -> Selection:
    """Take the clients in turn, by ascending number; the cohort after the last client begins with the first again."""
    clients = len(population)
    return Selection(lambda index, size: np.sort((index * size + np.arange(size)) % clients))


def by_tiers(clock: Clock | None, seed: int, select_tiers: Positive = 5) -> Selection:
    """Draw each cohort from one tier of clients that are equally fast, so that nobody waits for a slow one (TiFL).

    Chai et al. 2020, "TiFL: A Tier-based Federated Learning System", its static selection with equal probabilities: a
    tier is drawn, then clients of it, all as likely. Tiers have equally many clients, by `tiers_of`.

    Args:
        clock: how long each client takes.
        seed: what tiers and cohorts are drawn from.
        select_tiers: groups of clients by speed.

    Raises:
        InputError: more tiers than clients; and, when it draws, a tier with fewer clients than a cohort.
    """
    if clock is None:
        raise InputError("method.select = 'tiers': needs a method that has a clock, by which clients are fast or slow")
    clients = len(clock.compute_seconds)
    if not 1 <= select_tiers <= clients:
        raise InputError(
            f"method.select_tiers = {select_tiers}: must be at least 1 and at most data.clients = {clients}"
        )
    members = tiers_of(clock, select_tiers)

    def draw(index: int, size: int) -> Ids:
        if (least := min(map(len, members))) < size:
            raise InputError(
                f"method.select_tiers = {select_tiers}: leaves {least} clients in a tier, but a cohort has {size}; "
                "lower it or method.fraction"
            )
        rng = generator(seed, "selection", index)
        return draw_cohort(members[rng.integers(select_tiers)], size, rng)

    return Selection(draw)


def power_of_choice(population: Population, seed: int, candidates: Positive = 20) -> Selection:
    """Draw candidates by their samples, ask for the losses of the model of now, and train with the greatest.

    Cho et al. 2020, "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
    Strategies", Algorithm 1: d candidates are drawn without replacement with probabilities proportional to their
    samples, are sent the model and report their loss on their data; the m of them with the greatest train, m being
    the size of a cohort. With d = m it is `by_size`. The clock counts the slowest candidate.

    Args:
        population: the clients.
        seed: what candidates are drawn from.
        candidates: d.

    Raises:
        InputError: more candidates than clients; and, when it draws, fewer than a cohort.
    """
    if not 1 <= candidates <= len(population):
        raise InputError(
            f"method.candidates = {candidates}: must be at least 1 and at most data.clients = {len(population)}"
        )
    by_share = _draw_by_size(population.sizes, seed)

    def draw(index: int, size: int) -> Ids:
        if candidates < size:
            raise InputError(f"method.candidates = {candidates}: must be at least the size of a cohort, {size}")
        return by_share(index, candidates)

    return Selection(draw, by_loss=True)


SELECTIONS: dict[str, Callable[..., Selection | None]] = {
    "uniform": uniform,
    "size": by_size,
    "round-robin": round_robin,
    "tiers": by_tiers,
    "power-of-choice": power_of_choice,
}


def reselect(method: Method, selection: Selection, population: Population, clock: Clock | None) -> Method:
    """Return the method with other cohorts of the same size; rounds take as long as their clients on the clock.

    Raises:
        InputError: the method's rounds are not cohorts of all clients with one model, on this clock.
    """
    events = method.schedule.events
    _require_cohorts(method, clock)
    redrawn, now = [], 0.0
    alike = all(event.weights.min() == event.weights.max() == 1 for event in events)
    for event in events:
        drawn = np.asarray(selection.draw(event.index, len(event.cohort)))
        _check(drawn, len(population))
        began, now = now, now + (clock.event_seconds(drawn, now) if clock else 1.0)
        redrawn.append(
            _with_cohort(
                event, drawn, np.ones(len(drawn)) if alike else population.sizes[drawn].astype(float), began, now
            )
        )
    schedule = replace(method.schedule, events=tuple(redrawn))
    assign = HighestLoss(len(events[0].cohort)) if selection.by_loss else method.assign
    return replace(method, schedule=schedule, assign=assign)


def _with_cohort(event: Event, drawn: Ids, weights: Floats, began: float, now: float) -> Event:
    return replace(
        event,
        cohort=drawn,
        clusters=np.zeros(len(drawn), np.int64),
        weights=weights,
        began=(began,),
        seconds=now,
        models_down=event.models_down * len(drawn) // len(event.cohort),
    )


def _require_cohorts(method: Method, clock: Clock | None) -> None:
    first = method.schedule.events[0]
    one_model = method.schedule.has_server and method.schedule.clusters == 1 and method.arrivals is None
    if not one_model or method.finds_clusters or method.labels is not None or first.intra_rounds != 1:
        raise InputError("method.select: needs a method with one model and one cohort of all clients a round")
    expected = clock.event_seconds(first.cohort) if clock else 1.0
    if abs(first.seconds - expected) > 1e-9 * expected:
        raise InputError("method.select: does not go with a method whose clients take other times than the network's")


def _check(drawn: Ids, clients: int) -> None:
    ascending = drawn.ndim == 1 and len(drawn) and drawn.dtype.kind == "i" and bool((np.diff(drawn) > 0).all())
    if not ascending or drawn[0] < 0 or drawn[-1] >= clients:
        raise InputError(f"method.select: must draw different clients from 0 to {clients - 1}, ascending")


def _draw_by_size(sizes: Ids, seed: int) -> Callable[[int, int], Ids]:
    shares = sizes / sizes.sum()

    def draw(index: int, size: int) -> Ids:
        return np.sort(generator(seed, "selection", index).choice(len(sizes), size, replace=False, p=shares))

    return draw
