"""From the updates of cohorts' clients to clusters' updates: what counts, and what it adds up to."""

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from operator import attrgetter, mul
from typing import cast

from atoll.aggregation.mean import Combine, Sum, needs_only_mean, takes_median_of_losses
from atoll.aggregation.screening import Screening
from atoll.aggregation.sum_tree import SumTree
from atoll.aggregation.usual_norms import Norms, are_few, limits_of, require_usual
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.engine.server_rule import require_like
from atoll.local.models import Model
from atoll.local.task import ClientUpdate
from atoll.support.errors import RunError, blaming


@dataclass(frozen=True, eq=False)
class PartialSum:
    """The results of a subtree of a cohort's `SumTree`, added up where its clients trained.

    Attributes:
        span: the places of the subtree.
        clients: number of clients; fewer than `span` at the end of the cohort.
        total: the sum of the models that count.
        losses, weights: of the clients whose results count, in order.
        refused: number of rejected results, by reason.
    """

    span: int
    clients: int
    total: Sum
    losses: Sequence[float]
    weights: Sequence[float]
    refused: Mapping[str, int]


def add_up(cohort: Cohort, updates: Iterator[ClientUpdate], screening: Screening | None, span: int) -> PartialSum:
    """Add up the results of some of a cohort's clients, a subtree of so many places, as `combine_updates` would."""
    results = _Results(cohort, screening)
    with _naming(cohort):
        total = results.add_up(updates)
    return PartialSum(span, len(cohort.clients), total, results.losses, results.weights, results.refused)


def combine_updates(
    cohorts: Sequence[Cohort],
    combine: Combine,
    updates: Iterable[ClientUpdate | PartialSum],
    screening: Screening | None = None,
) -> list[ClusterUpdate]:
    """Combine the updates of all cohorts' tasks, in order, holding one client's model at a time.

    A rule that `needs_only_mean` is given their `Sum`, added up as a `SumTree`; then consecutive clients' results may
    have been added up before, if there is no screening or it judges each alone. Other rules may hold more models.
    Results that the screening rejects are left out and counted; their clients keep their previous state. Without any
    result the start model is kept. A screening that learns usual norms holds the models of an event's clients if their
    clusters' starts are of a time when too few norms were known.
    """
    if screening is None or screening.judges_alone:
        every = iter(updates)
        return [_combine(_Results(cohort, screening), combine, every) for cohort in cohorts]
    coming = iter(cast("Iterable[ClientUpdate]", updates))
    done: list[ClusterUpdate] = []
    for event, of_event in groupby(cohorts, attrgetter("event")):
        results = [_Results(cohort, screening) for cohort in of_event]
        if screening.usual_norms == "refuse":
            done += _combine_usual(event, results, combine, coming)
        else:
            done += [_combine(each, combine, each.sent(coming)) for each in results]
    return done


def _combine_usual(
    event: int, results: Sequence["_Results"], combine: Combine, coming: Iterator[ClientUpdate]
) -> list[ClusterUpdate]:
    """Combine the updates of one event's cohorts, without those that are much longer than usual."""
    is_early = any(are_few(each.cohort.usual) for each in results)
    held = [each.hold(coming) for each in results] if is_early else []
    own = tuple(norm for each in results for norm in each.held_norms)
    name_of, done = "client {}".format, list[ClusterUpdate]()
    limits = limits_of(event, [each.cohort.usual for each in results], own, name_of)
    for number, each in enumerate(results):
        each.limit = limits[number]
        done.append(_combine(each, combine, held[number] if is_early else each.sent(coming)))
    accepted = sum(len(each.norms) for each in results)
    unusual = {client: norm for each in results for client, norm in each.unusual.items()}
    require_usual(event, accepted, unusual, max(limits), name_of)
    return done


def _combine(results: "_Results", combine: Combine, updates: Iterator[ClientUpdate | PartialSum]) -> ClusterUpdate:
    cohort = results.cohort
    with _naming(cohort):
        model = _combined(results, combine, updates)
    if model is None:
        return ClusterUpdate(cohort.start, math.nan, 0.0, results.refused)
    arrived = math.fsum(results.weights) / float(cohort.weights.sum()) if results.refused else 1.0
    average = weighted_median if takes_median_of_losses(combine) else weighted_mean
    loss = average(results.losses, results.weights)
    return ClusterUpdate(model, loss, arrived, results.refused, states=results.states, norms=tuple(results.norms))


def _combined(results: "_Results", combine: Combine, updates: Iterator[ClientUpdate | PartialSum]) -> Model | None:
    """Return the combined model; None if no result counts."""
    cohort = results.cohort
    if needs_only_mean(combine):
        total = results.add_up(updates)
        return combine(total, cohort.start, cohort.event_weight) if results.weights else None
    pairs = results.take(cast("Iterator[ClientUpdate]", updates))
    if (first := next(pairs, None)) is None:
        return None
    model = combine(chain([first], pairs), cohort.start, cohort.event_weight)
    require_like(cohort.start, model)
    deque(pairs, maxlen=0)  # a rule need not take all, but the following updates are the next cohort's
    return model


def _naming(cohort: Cohort) -> AbstractContextManager[None]:
    """Name event and cluster in errors of a user's combine rule."""
    told = f"event {cohort.event}, cluster {cohort.cluster}: combining the clients' models failed"
    return blaming(told, RunError, SystemExit)


class _Results:
    """What a cohort's results add up to besides the model.

    Attributes:
        limit: the largest norm of an update that counts.
        held_norms: norms of the updates that are held, and their clients.
        norms: norms of the accepted updates and their clients, if usual norms are learned.
        unusual: norms of those that are above the limit, by client.
    """

    def __init__(self, cohort: Cohort, screening: Screening | None = None) -> None:
        self.cohort = cohort
        self.losses: list[float] = []
        self.weights: list[float] = []
        self.refused: Counter[str] = Counter()
        self.states: dict[int, Model] = {}
        self.limit = math.inf
        self.held_norms: Norms = ()
        self.norms: list[tuple[float, int]] = []
        self.unusual: dict[int, float] = {}
        self._screening = screening

    def sent(self, coming: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Return what the cohort's clients send, from the updates of all cohorts."""
        assert self._screening is not None
        return self._screening.sent(self.cohort.clients, self.cohort.start, coming)

    def hold(self, coming: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Take all of the cohort's updates, so that their norms are known before the first counts."""
        assert self._screening is not None
        # An executor may reuse a model's memory once the next one is requested.
        sent = islice(self.sent(coming), len(self.cohort.clients))
        held = [replace(each, model={name: own.clone() for name, own in each.model.items()}) for each in sent]
        of_clients = zip(self.cohort.clients.tolist(), held, strict=True)
        accepted = [(client, each) for client, each in of_clients if self._why_refused(each) is None]
        self.held_norms = tuple(
            (self._screening.usual_norm(each, self.cohort.start), client) for client, each in accepted
        )
        return iter(held)

    def take(self, updates: Iterator[ClientUpdate]) -> Iterator[tuple[float, Model]]:
        """Yield the weight and model of each valid result, holding one at a time."""
        for client, weight in self._clients():
            update = next(updates)
            if self._counts(client, weight, update):
                yield weight, update.model
            del update

    def add_up(self, updates: Iterator[ClientUpdate | PartialSum]) -> Sum:
        """Return the sum of the valid results, holding one model at a time besides the sums of a `SumTree`."""
        tree, clients = SumTree(), self._clients()
        for client, weight in clients:
            update = next(updates)
            if isinstance(update, PartialSum):
                tree.join(update.span, update.total)
                self.losses += update.losses
                self.weights += update.weights
                self.refused.update(update.refused)
                deque(islice(clients, update.clients - 1), maxlen=0)
            else:
                tree.add(weight, update.model if self._counts(client, weight, update) else None)
            del update
        return tree.total()

    def _clients(self) -> Iterator[tuple[int, float]]:
        return zip(self.cohort.clients.tolist(), self.cohort.weights.tolist(), strict=True)

    def _counts(self, client: int, weight: float, update: ClientUpdate) -> bool:
        """Note a result; return whether it is valid."""
        if reason := self._why_refused(update) or self._why_unusual(client, update):
            self.refused[reason] += 1
            return False
        self.losses.append(update.loss)
        self.weights.append(weight)
        if update.state is not None:
            self.states[client] = update.state
        return True

    def _why_refused(self, update: ClientUpdate) -> str | None:
        return self._screening.why_refused(update, self.cohort.start) if self._screening else None

    def _why_unusual(self, client: int, update: ClientUpdate) -> str | None:
        """Note the norm of an update, if norms are learned; return why it does not count, or None if it does."""
        if self._screening is None or not self._screening.learns_norms:
            return None
        norm = self._screening.usual_norm(update, self.cohort.start)
        if norm > self.limit:
            self.unusual[client] = norm
            return "unusual"
        self.norms.append((norm, client))
        return None


def weighted_mean(values: Iterable[float], weights: Collection[float]) -> float:
    """Return the weighted mean of numbers, with exactly rounded sums, independent of their order."""
    return math.fsum(map(mul, weights, values)) / math.fsum(weights)


def weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted median of numbers, as `aggregation.reductions.middle` takes it."""
    import torch  # here, since methods' settings do not need PyTorch

    from atoll.aggregation.reductions import middle

    ordered = torch.tensor(sorted(zip(values, weights, strict=True)), dtype=torch.float64)
    return float(middle(ordered[None, :, 0], ordered[None, :, 1]))
