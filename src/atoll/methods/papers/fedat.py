"""FedAT: tiers of clients of similar speed, synchronous within and asynchronous between (Chai et al. 2021)."""

import heapq

import numpy as np

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.schedules.clock import Clock
from atoll.schedules.events import Mix, Schedule
from atoll.schedules.overlapping import PendingWork, merge_jobs
from atoll.schedules.timeline import cohort_size, draw_cohort
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
    """FedAT: speed tiers run FedAvg rounds at their own pace; the server updates after each of them.

    Chai et al. 2021, Algorithm 1. With T_m the number of completed rounds of the m-th fastest tier, T their sum and
    w_m the tier's latest mean, ``w <- sum over m of T_(M+1-m) / T * w_m``. A tier without a completed round counts
    with the initial model.

    The paper's clients also have a proximal term, `rule.proximal`. With one tier this is bit-identical to FedAvg.

    Args:
        clock: each client's training and upload times, which define the tiers, of equal numbers of clients.
        rounds: number of server updates, over all tiers.
        tiers: number of tiers, clients grouped by speed, M.
        fraction: share of a tier's clients in each cohort.

    Raises:
        InputError: more tiers than clients.
    """
    members = tiers_of(clock, tiers, f"method.tiers = {tiers}")
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


def tiers_of(clock: Clock, tiers: int, told: str) -> list[Ids]:
    """Return the clients of each tier in ascending order, fastest tier first; refuse more tiers than clients."""
    clients = len(clock.compute_seconds)
    if not 1 <= tiers <= clients:
        raise InputError(f"{told}: must be at least 1 and at most data.clients = {clients}")
    by_speed = np.argsort(clock.seconds_of(np.arange(clients)), kind="stable")
    return [np.sort(own) for own in np.array_split(by_speed, tiers)]
