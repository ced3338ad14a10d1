"""From settings to clients whose data change during the run (`[drift]`)."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import numpy as np

from atoll.data.dataset import Dataset
from atoll.data.dealing.class_counts import Indices, draw_counts, exact_counts
from atoll.data.dealing.drift import DRIFTS, draw_concepts
from atoll.data.dealing.partition import BY_CLASS
from atoll.data.dealing.ranges import Parts
from atoll.data.population import Population, make_population
from atoll.experiment.client_data import attributes_of, deal_out, load_dataset, read_parts, turned
from atoll.schedules.events import Schedule
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call, resolve
from atoll.settings.training_sections import DriftSettings
from atoll.settings.validation import Settings
from atoll.support.arrays import Ids
from atoll.support.errors import InputError, reading
from atoll.support.seeds import generator

_NOT_WITH = {"data.skew": "none", "data.held_out_clients": 0, "method.resample": False}
"""What assumes that clients' data stay as they are, with the values that do not."""
_OWNED = ("natural", "file")


def drifts(settings: Settings) -> bool:
    """Return whether clients' data change during the run."""
    wanted = settings.drift
    if wanted.kind == "none":
        for key, value in dict(wanted).items():
            if value != DriftSettings.model_fields[key].default:
                raise InputError(f"drift.{key} = {value}: needs a drift.kind, which is 'none'")
        return False
    _require_rounds(settings)
    told = f"drift.kind = {wanted.kind!r}"
    for path, fixed in _NOT_WITH.items():
        section, key = path.split(".")
        if (value := getattr(settings, section).get(key, fixed)) != fixed:
            raise InputError(f"{told}: cannot be used with {path} = {value!r}, which assumes that data do not change")
    partition = settings.data.partition
    if partition in (*_OWNED, *(BY_CLASS if wanted.kind == "groups" else ())):
        raise InputError(f"{told}: needs a partition that draws labels, not data.partition = {partition!r}")
    if settings.run.executor == "fleet":
        raise InputError(f"{told}: is for simulation; with run.executor = 'fleet' the nodes' own data may change")
    if why := method_kind(settings).fixed_data:
        raise InputError(f"{told}: cannot be used with method.name = {settings.method.name!r}, {why}")
    return True


def _require_rounds(settings: Settings) -> None:
    wanted, rounds = settings.drift, settings.drift.rounds
    if not rounds or sorted({*rounds}) != rounds:
        raise InputError(f"drift.rounds = {rounds}: must be ascending rounds, at least one")
    if rounds[-1] >= settings.rounds:
        told = f"drift.rounds: names round {rounds[-1]}, but rounds = {settings.rounds}"
        raise InputError(f"{told}, so the last is {settings.rounds - 1}")
    if isinstance(wanted.concepts, list) and wanted.share != DriftSettings.model_fields["share"].default:
        raise InputError(f"drift.share = {wanted.share}: has no effect, since lists of drift.concepts say who moves")
    if wanted.gradual_rounds and (why := method_kind(settings).sudden_data):
        told = f"drift.gradual_rounds = {wanted.gradual_rounds}: cannot be used"
        raise InputError(f"{told} with method.name = {settings.method.name!r}, {why}")
    least = int(np.diff([*rounds, settings.rounds]).min())
    if wanted.gradual_rounds >= least:
        told = f"drift.gradual_rounds = {wanted.gradual_rounds}: must be less than the rounds of a phase"
        raise InputError(f"{told}, of which the shortest has {least}")


def drifting_clients(settings: Settings) -> tuple[Population, Population]:
    """Return the clients, and as many test clients, each with the data of the first phase and of all later ones.

    A test client always has the concept of its client; the test samples of each concept are dealt out once, or drawn
    in the client's shares of classes where a concept is a deal. A client holds equally many samples in all phases: the
    fewest that it was dealt.
    """
    data = turned(settings, load_dataset(settings))
    concepts = _concepts(settings, data)
    known, places = np.unique(concepts, return_inverse=True)
    every = np.repeat(known[:, None], concepts.shape[1], axis=1)
    training = _population(settings, data, _phases(settings, data, concepts, "drift"))
    as_dealt = settings.drift.kind == "partition"
    with nullcontext() if as_dealt else reading("test samples, of which drift gives clients as many as they train on"):
        dealt = _phases(settings, data if as_dealt else data.test, every, "drift" if as_dealt else "drift of tests")
    if as_dealt:
        pairs = zip(known.tolist(), dealt, strict=True)
        dealt = [_alike(data, parts, generator(settings.seed, "drift of tests", k)) for k, parts in pairs]
    tests = [[dealt[place][client] for client, place in enumerate(row)] for row in places.reshape(concepts.shape)]
    return replace(training, attributes=attributes_of(settings)), _population(settings, data.test, tests)


def _alike(data: Dataset, parts: Parts, rng: np.random.Generator) -> Parts:
    """Return test samples for each client, in the shares of classes and planted groups among its training samples."""
    pools = data, data.test
    groups = [each.groups_of(np.arange(len(each))) for each in pools]
    kinds = 1 + int(max(each.max() for each in groups))
    labels = [each.labels if data.classes else np.zeros(len(each), int) for each in pools]
    own, tests = (group + kinds * label for group, label in zip(groups, labels, strict=True))
    counts = np.array([np.bincount(own[part], minlength=kinds * max(data.classes, 1)) for part in parts])
    counts = counts * (np.bincount(tests, minlength=counts.shape[1]) > 0)
    each = max(1, len(tests) // len(parts))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return draw_counts(tests, exact_counts(shares, each, np.zeros(len(parts), int)), rng)


def _population(settings: Settings, data: Dataset, phases: Sequence[Parts]) -> Population:
    """Return the clients with the samples of all phases, of which each may begin gradually."""
    sizes = np.array([list(map(len, parts)) for parts in phases]).min(axis=0)
    if not sizes.all():
        told = f"drift.kind = {settings.drift.kind!r}: client {sizes.argmin()} has no samples in one of the phases"
        raise InputError(f"{told}; lower data.clients, or drift.rounds to fewer")
    rng = generator(settings.seed, "drift of samples")
    rows = [[rng.permutation(part)[:size] for part, size in zip(parts, sizes, strict=True)] for parts in phases]
    first, *later = map(np.concatenate, rows)
    places = np.concatenate([np.arange(size) / size for size in sizes])  # of each sample among its client's, in [0, 1)
    steps, found, before = settings.drift.gradual_rounds + 1, [], first
    for begins, after in zip(settings.drift.rounds, later, strict=True):
        found += [(begins + step, np.where(places < (step + 1) / steps, after, before)) for step in range(steps)]
        before = after
    return replace(make_population(data, rows[0]), later=tuple(found))


def _concepts(settings: Settings, data: Dataset) -> Ids:
    """Return each client's concept in each phase, [phases, clients]."""
    wanted, clients = settings.drift, settings.data.clients
    phases, planted = len(wanted.rounds) + 1, int(data.groups_of(np.arange(len(data))).max()) + 1
    if not isinstance(wanted.concepts, list):
        if wanted.kind == "groups" and (wanted.concepts or 0) > planted > 1:
            raise InputError(f"drift.concepts = {wanted.concepts}: must be at most {planted}, the data's groups")
        start = np.arange(clients) * min(planted, wanted.concepts or planted) // clients
        among = wanted.concepts or (planted if planted > 1 else phases)
        return draw_concepts(start, among, phases, wanted.share, generator(settings.seed, "drift of concepts"))
    if len(wanted.concepts) != phases:
        told = f"drift.concepts: has {len(wanted.concepts)} lists"
        raise InputError(f"{told}, but needs {phases}: one for the start and one for each of drift.rounds")
    if odd := [row for row in wanted.concepts if len(row) != clients]:
        raise InputError(f"drift.concepts: has a list of {len(odd[0])}, but data.clients = {clients}; one each")
    return np.array(wanted.concepts)


def _phases(settings: Settings, data: Dataset, concepts: Ids, purpose: str) -> Sequence[Parts]:
    """Return each phase's partition, as the kind of drift makes it."""
    wanted, clients, everyone = settings.drift, settings.data.clients, np.arange(len(data))

    def deal(rows: Indices | None, parts: int, key: int) -> Parts:
        return deal_out(settings, data if rows is None else _part(data, rows), parts, purpose, key)

    given = {
        **dict(wanted),
        "clients": clients,
        "labels": data.labels,
        "groups": data.groups_of(everyone),
        "classes": data.classes,
        "owners": data.owners,
        "dataset": data,
        "concepts": concepts,
        "deal": deal,
        "seed": settings.seed,
        "rng": generator(settings.seed, f"{purpose}, own"),
    }
    rule = resolve("drift.kind", wanted.kind, DRIFTS)
    made = list(call("drift.kind", rule, given, wanted.model_extra))
    found = [read_parts(parts, wanted.kind, "drift.kind") for parts in made]
    if len(found) != len(concepts) or any(len(parts) != clients for parts in found):
        told = f"drift.kind = {wanted.kind!r}: must return a partition among {clients} clients for each of"
        raise InputError(f"{told} {len(concepts)} rows of concepts")
    return found


def _part(data: Dataset, rows: Indices) -> Dataset:
    """Return some samples as a pool without groups, for a partition."""
    inputs, targets, tests = data.inputs_of(rows), data.labels_of(rows), data.test_targets[: len(data.test_inputs)]
    return replace(data, inputs=inputs, targets=targets, test_targets=tests, turns=(0,), groups=None, owners=None)


def require_begun(population: Population, schedule: Schedule) -> None:
    """Reject a change of clients' data in a round in which no event begins, whose clients would notice it later."""
    begun = {event.round for event in schedule.events}
    for first in population.phase_rounds[1:]:
        if first not in begun and (later := [each for each in begun if each > first]):
            told = f"the data change in round {first}, in which no event begins; the next begins in round {min(later)}"
            raise InputError(f"drift.rounds, drift.gradual_rounds: {told}")


def changes_in(population: Population, schedule: Schedule) -> list[dict[str, float]]:
    """Return when clients' data change: the round, its virtual seconds, and how many clients get into another group."""
    began = {event.round: min(event.began, default=0.0) for event in reversed(schedule.events)}
    groups = [population.at(first).groups() for first in population.phase_rounds]
    moved = [int(np.count_nonzero(now != before)) for before, now in pairwise(groups)]
    found = zip(population.phase_rounds[1:], moved, strict=True)
    return [{"round": first, "seconds": began[first], "clients": count} for first, count in found if first in began]
