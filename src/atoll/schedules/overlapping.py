"""Work that overlaps in time: clients or groups begin when they can, and are merged when they finish."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap

import numpy as np

from atoll.schedules.clock import Clock
from atoll.schedules.events import FROM_SERVER, Event, Mix, Schedule
from atoll.schedules.packed import pack
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.seeds import generator


@dataclass(frozen=True, order=True)
class PendingWork:
    """A cohort's work, from the server's model that it begins with to the event that merges it.

    Attributes:
        done: virtual time at which it ends.
        place: its cluster; concurrent jobs have different ones.
        began: virtual time at which it began.
        version: number of events over by then, which made the model that it began with.
        cohort: its clients.
    """

    done: float
    place: int
    began: float
    version: int
    cohort: Ids = field(compare=False)


def merge_jobs(sizes: Ids, index: int, jobs: Sequence[PendingWork], server: Mix, begun: Iterable[int]) -> Event:
    """Return the event in which jobs are merged, given by ascending place.

    Args:
        sizes: each client's samples, its weight in its job.
        index: number of the event.
        jobs: the jobs to merge.
        server: the server's new model.
        begun: the places whose next job begins with it.
    """
    cohort = np.concatenate([job.cohort for job in jobs])
    return Event(
        index=index,
        round=index,
        seconds=max(job.done for job in jobs),
        active=tuple(job.place for job in jobs),
        began=tuple(job.began for job in jobs),
        cohort=cohort,
        clusters=np.repeat([job.place for job in jobs], [len(job.cohort) for job in jobs]),
        weights=sizes[cohort].astype(float),
        server=server,
        starts=tuple((place, FROM_SERVER) for place in sorted(begun)),
        staleness=tuple(index - job.version for job in jobs),
        models_down=len(cohort),
        models_up=len(cohort),
    )


def buffered(
    sizes: Ids,
    clock: Clock,
    events: int,
    concurrency: int,
    buffer: int,
    mix: Callable[[Sequence[PendingWork], int], Mix],
    seed: int,
) -> Schedule:
    """Return a schedule in which single clients work continuously and every `buffer` results are merged.

    `concurrency` clients work at a time, each from the server's model at its start; whenever one finishes, an idle one
    is drawn. A client is busy until its result is merged, and fewer work if none is idle. Results that finish at the
    same time are merged before other clients begin.

    Args:
        sizes: each client's samples, its weight in its job.
        clock: how long each client takes.
        events: number of merges; one round each.
        concurrency: clients at work.
        buffer: clients merged in an event.
        mix: returns the server's new model from an event's jobs, by ascending client, and the event's number.
        seed: for the draws of clients.

    Raises:
        InputError: if more clients would work, or be merged in an event, than there are; or there is no event.
    """
    for name, value in (("concurrency", concurrency), ("buffer", buffer)):
        if not 1 <= value <= len(sizes):
            raise InputError(f"method.{name} = {value}: must be at least 1 and at most data.clients = {len(sizes)}")
    if events < 1:
        raise InputError(f"rounds = {events}: must be at least 1")
    full = _fill_buffers(clock, events, concurrency, buffer, seed)
    begun: list[list[int]] = [[] for _ in range(events + 1)]
    for job in (job for jobs in full for job in jobs):
        begun[job.version].append(job.place)

    def row(index: int, jobs: Sequence[PendingWork]) -> Event:
        server = mix(sorted(jobs, key=lambda job: int(job.cohort[0])), index)
        return merge_jobs(sizes, index, sorted(jobs, key=lambda job: job.place), server, begun[index + 1])

    return Schedule(pack(starmap(row, enumerate(full))), 1 + max(job.place for jobs in full for job in jobs), events)


def _fill_buffers(clock: Clock, events: int, concurrency: int, buffer: int, seed: int) -> list[list[PendingWork]]:
    """Return the jobs of each event."""
    clients = len(clock.compute_seconds)
    drawn = _drawn(clients, generator(seed, "cohort"))
    free = list(range(concurrency + buffer))
    busy: set[int] = set()
    at_work: list[PendingWork] = []
    waiting: list[PendingWork] = []
    full: list[list[PendingWork]] = []
    now = 0.0
    while len(full) < events:
        while len(at_work) < concurrency and len(busy) < clients:
            client = next(client for client in drawn if client not in busy)
            busy.add(client)
            cohort = np.array([client])
            done = now + clock.event_seconds(cohort, now)
            heapq.heappush(at_work, PendingWork(done, heapq.heappop(free), now, len(full), cohort))
        now = at_work[0].done
        while at_work and at_work[0].done == now:
            waiting.append(heapq.heappop(at_work))
            if len(waiting) == buffer:
                full.append(waiting)
                for job in waiting:
                    busy.remove(int(job.cohort[0]))
                    heapq.heappush(free, job.place)
                waiting = []
    return full[:events]


def _drawn(clients: int, rng: np.random.Generator) -> Iterator[int]:
    """Yield clients, each with equal probability; the first that is idle is one of the idle."""
    while True:
        yield from rng.integers(clients, size=4096).tolist()
