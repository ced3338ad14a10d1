"""FedAT: tiers of clients of similar speed, synchronous within and asynchronous between (Chai et al. 2021)."""

import heapq

import numpy as np

from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.schedules.events import Clock, Mix, Schedule
from atoll.schedules.overlapping import PendingWork, merge_jobs
from atoll.schedules.timeline import check_rounds, cohort_size, draw_cohort
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.limits import Positive, Share
from atoll.support.seeds import generator


@checked
def fedat(
    population: Population,
    rule: LocalRule,
    clock: Clock,
    rounds: int,
    tiers: Positive = 5,
    fraction: Share = 0.1,
    seed: int = 0,
) -> Method:
    """FedAT: tiers by speed, each in rounds of its own; whenever one is over, the server's model is made anew.

    Chai et al. 2021, Algorithm 1. A tier works as FedAvg does, from the server's model. With T_m the rounds that the
    m-th fastest tier has behind it, T their sum and w_m its latest mean, ``w <- sum over m of T_(M+1-m) / T * w_m``:
    the fewer a tier's rounds, the more it weighs. A tier without a round yet counts with the initial model.

    The paper's clients also have a proximal term, `rule.proximal`. With one tier it is FedAvg, to the bit.

    Args:
        population: the clients.
        rule: what a client does.
        clock: how long each client takes, which makes the tiers, of equal numbers of clients.
        rounds: how often the server's model is made, tiers' rounds all together.
        tiers: groups of clients by speed, M.
        fraction: share of a tier's clients in a cohort.
        seed: what cohorts are drawn from.

    Raises:
        InputError: more tiers than clients.
    """
    check_rounds(rounds, fraction)
    if not 1 <= tiers <= len(population):
        raise InputError(f"method.tiers = {tiers}: must be at least 1 and at most data.clients = {len(population)}")
    members = tiers_of(clock, tiers)
    rounds_of = np.zeros(tiers)

    def begin(tier: int, now: float, number: int, version: int) -> PendingWork:
        own = members[tier]
        cohort = draw_cohort(own, cohort_size(fraction, len(own)), generator(seed, "cohort", number))
        return PendingWork(now + clock.event_seconds(cohort, now), tier, now, version, cohort)

    at_work = [begin(tier, 0.0, tier, 0) for tier in range(tiers)]
    heapq.heapify(at_work)
    events = []
    for index in range(rounds):
        job = heapq.heappop(at_work)
        rounds_of[job.place] += 1
        shares = rounds_of[::-1] / rounds_of.sum()
        server = Mix(published=tuple((tier, share) for tier, share in enumerate(shares.tolist()) if share))
        events.append(merge_jobs(population.sizes, index, [job], server, [job.place]))
        heapq.heappush(at_work, begin(job.place, job.done, tiers + index, index + 1))
    return Method(Schedule(tuple(events), tiers, rounds), rule)


def tiers_of(clock: Clock, tiers: int) -> list[Ids]:
    """Return the clients of each tier, ascending, the fastest tier first."""
    by_speed = np.argsort(clock.seconds_of(np.arange(len(clock.compute_seconds))), kind="stable")
    return [np.sort(own) for own in np.array_split(by_speed, tiers)]
