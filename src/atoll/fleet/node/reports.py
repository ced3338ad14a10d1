"""What a node reports about its clients, within what its owner allows; random answers are drawn once and kept."""

import numpy as np
from pydantic import TypeAdapter

from atoll.fleet.agreed.messages import ClientReport, Count, Seconds
from atoll.fleet.agreed.randomised_response import respond
from atoll.fleet.node.epsilon_ledger import charge
from atoll.fleet.node.node import Node
from atoll.fleet.node.noise_added import Hidden
from atoll.fleet.node.store import Store
from atoll.fleet.node.work_count import read_tally
from atoll.support.arrays import Ids
from atoll.support.limits import StrictRecord


class _Pace(StrictRecord):
    """Seconds that a client has trained for, and on how many samples."""

    seconds: Seconds = 0.0
    samples: Count = 0


class ReportedHolding(StrictRecord):
    """The reported size of a client's data."""

    samples: Count
    class_counts: tuple[Count, ...] | None = None


def report(site: Node, store: Store, client: int) -> ClientReport:
    """Return a node's report on a client."""
    reporting, pace, holding = site.reporting, _read_pace(store, client), holding_of(site, store, client)
    return ClientReport(
        client=client,
        **dict(holding),
        epsilon=reporting.epsilon,
        utc_offset=reporting.utc_offset,
        slots=reporting.slots,
        seconds_per_sample=pace.seconds / pace.samples if pace.samples else None,
    )


def holding_of(site: Node, store: Store, client: int) -> ReportedHolding:
    """Return the reported size of a client's data; it stays the same as long as the data does.

    Every new random answer would reveal more, so the first one is kept. It is charged before it is drawn.
    """
    reporting, samples = site.reporting, int(site.population.sizes[client])
    counts = _class_counts(site, client) if reporting.class_counts else None
    if reporting.hidden is not None:
        return _hidden(site, store, client, reporting.hidden, samples, counts)
    if reporting.epsilon is not None and counts is not None:
        counts = _responded(site, store, client, reporting.epsilon, counts)
    return ReportedHolding(samples=samples, class_counts=None if counts is None else tuple(counts.tolist()))


def add_to_pace(store: Store, client: int, seconds: float, samples: int) -> None:
    """Add a training's time and samples to the client's pace."""
    before = _read_pace(store, client)
    after = _Pace(seconds=before.seconds + seconds, samples=before.samples + samples)
    store.put(f"pace-{client}", after.model_dump_json().encode())


def _hidden(site: Node, store: Store, client: int, hidden: Hidden, samples: int, counts: Ids | None) -> ReportedHolding:
    what = "samples" if counts is None else "classes"
    key = f"hidden-{client}-{_word(hidden.noise)}-{hidden.most_samples}-{what}-{samples}"
    if (kept := store.get(key)) is not None:
        return ReportedHolding.model_validate_json(kept)
    cost = hidden.cost if counts is None or site.cost is None else hidden.cost_of_counts(site.cost.adjacency)
    charge(store, client, site.budget, cost, least=read_tally(store, client, site.counted_as).charged)
    if counts is None:
        drawn = ReportedHolding(samples=hidden.samples(samples))
    else:
        told = hidden.counts(counts)
        drawn = ReportedHolding(samples=int(told.sum()), class_counts=tuple(told.tolist()))
    store.put(key, drawn.model_dump_json().encode())
    return drawn


def _responded(site: Node, store: Store, client: int, epsilon: float, counts: Ids) -> Ids:
    samples = int(counts.sum())
    key = f"classes-{client}-{_word(epsilon)}-{samples}"
    kept = store.get(key)
    if kept is None:
        least = read_tally(store, client, site.counted_as).charged
        charge(store, client, site.budget, pure=samples * epsilon, least=least)  # epsilon-private per sample
        # From the system's entropy, since the server knows the experiment's seed.
        kept = TypeAdapter(list[int]).dump_json(respond(counts, epsilon, np.random.default_rng()).tolist())
        store.put(key, kept)
    return np.array(TypeAdapter(list[int]).validate_json(kept), np.int64)


def _class_counts(site: Node, client: int) -> Ids:
    population = site.population
    labels = population.data.labels_of(population.samples(client))
    return np.bincount(labels, minlength=population.data.classes).astype(np.int64)


def _read_pace(store: Store, client: int) -> _Pace:
    kept = store.get(f"pace-{client}")
    return _Pace() if kept is None else _Pace.model_validate_json(kept)


def _word(number: float) -> str:
    """Return a number exactly, in characters that a store's key may contain."""
    return float(number).hex().replace(".", "-").replace("+", "")
