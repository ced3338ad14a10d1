"""Client selection for each round: uniform, by size, in turn, by speed tiers, or by greatest loss.

It applies to methods with one model for all clients and one cohort per round (`reselect`). A selection is a value
returned by a function such as `by_tiers`, whose parameters are settings of ``[method]``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from atoll.data.population import Population
from atoll.engine.assignment import HighestLoss
from atoll.engine.method import Method
from atoll.methods.papers.fedat import tiers_of
from atoll.schedules.clock import Clock
from atoll.schedules.timeline import draw_cohort
from atoll.support.arrays import Ids
from atoll.support.errors import InputError, blaming
from atoll.support.limits import Positive
from atoll.support.seeds import generator


@dataclass(frozen=True)
class Selection:
    """How a round's clients are drawn.

    Attributes:
        draw: maps the round and the cohort size to client ids in ascending order.
        by_loss: whether only the drawn clients with the greatest losses train, as many as the cohort size.
    """

    draw: Callable[[int, int], Ids]
    by_loss: bool = False


def uniform() -> None:
    """Keep the method's own cohorts: drawn uniformly without replacement."""


def by_size(population: Population, seed: int) -> Selection:
    """Draw clients without replacement, with probabilities proportional to their samples."""
    return Selection(_draw_by_size(population.sizes, seed))


def round_robin(population: Population) -> Selection:
    """Take clients in turn by ascending id, starting over after the last one."""
    return Selection(lambda index, size: np.sort((index * size + np.arange(size)) % len(population)))


def by_tiers(clock: Clock | None = None, seed: int = 0, select_tiers: Positive = 5) -> Selection:
    """Draw each cohort from one tier of clients of similar speed, so that nobody waits for a slow one (TiFL).

    Chai et al. 2020, "TiFL: A Tier-based Federated Learning System", static selection with equal probabilities: a
    tier is drawn uniformly, then clients uniformly within it. Tiers have equal numbers of clients (`tiers_of`).

    Args:
        clock: each client's training and upload times.
        seed: seed for drawing tiers and cohorts.
        select_tiers: number of tiers, clients grouped by speed.
    """
    if clock is None:
        raise InputError("method.select = 'tiers': needs a method with a clock, which says how fast each client is")
    members = tiers_of(clock, select_tiers, f"method.select_tiers = {select_tiers}")

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
    """Draw candidates by size, ask for their losses on the current model, and train those with the greatest.

    Cho et al. 2020, "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
    Strategies", Algorithm 1: d candidates are drawn without replacement with probabilities proportional to their
    samples, receive the model and report their local loss; the m with the greatest losses train, where m is the
    cohort size. With d = m this is `by_size`. Time counts the slowest candidate.

    Args:
        population: the clients.
        seed: seed for drawing candidates.
        candidates: number of candidates, d.
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
    """Return the method with newly selected cohorts of the same sizes, timed by the clock."""
    events = method.schedule.events
    _require_cohorts(method, clock)
    redrawn, now = [], 0.0
    alike = all(event.weights.min() == event.weights.max() == 1 for event in events)
    for event in events:
        with blaming(f"method.select: drawing the clients of round {event.index} failed", InputError):
            drawn = np.asarray(selection.draw(event.index, len(event.cohort)))
        _check(drawn, len(population))
        began, now = now, now + (clock.event_seconds(drawn, now) if clock else 1.0)
        planned = len(event.cohort)
        training = min(len(drawn), planned) if selection.by_loss else len(drawn)
        redrawn.append(
            replace(
                event,
                cohort=drawn,
                clusters=np.zeros(len(drawn), np.int64),
                weights=np.ones(len(drawn)) if alike else population.sizes[drawn].astype(float),
                began=(began,),
                seconds=now,
                models_down=event.models_down * len(drawn) // planned,
                models_up=event.models_up * training // planned,
            )
        )
    assign = HighestLoss(np.array([len(event.cohort) for event in events])) if selection.by_loss else method.assign
    return replace(method, schedule=replace(method.schedule, events=tuple(redrawn)), assign=assign)


def _require_cohorts(method: Method, clock: Clock | None) -> None:
    first, one_model = method.schedule.events[0], method.schedule.has_server and method.schedule.clusters == 1
    others = any(event.intra_rounds > 1 or not len(event.cohort) for event in method.schedule.events)
    if not one_model or method.arrivals is not None or method.finds_clusters or others:
        raise InputError("method.select: needs a method with one model and one cohort drawn from all clients per round")
    expected = clock.event_seconds(first.cohort) if clock else 1.0
    if abs(first.seconds - expected) > 1e-9 * expected:
        raise InputError("method.select: cannot be used with a method that times clients differently from the network")


def _check(drawn: Ids, clients: int) -> None:
    ascending = drawn.ndim == 1 and len(drawn) and drawn.dtype.kind == "i" and bool((np.diff(drawn) > 0).all())
    if not ascending or drawn[0] < 0 or drawn[-1] >= clients:
        raise InputError(f"method.select: must draw distinct clients from 0 to {clients - 1}, ascending")


def _draw_by_size(sizes: Ids, seed: int) -> Callable[[int, int], Ids]:
    shares = sizes / sizes.sum()

    def draw(index: int, size: int) -> Ids:
        return np.sort(generator(seed, "selection", index).choice(len(sizes), size, replace=False, p=shares))

    return draw
