"""From settings to clients: the data set, its partition and the population."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.array_inputs import kind_of
from atoll.data.client_columns import read_clients
from atoll.data.dataset import Dataset
from atoll.data.dealing.partition import BY_CLASS, PARTITIONS, rows_by_owner
from atoll.data.dealing.ranges import Parts, Ranges
from atoll.data.named_datasets import DATASETS, stamp
from atoll.data.population import Population, as_ranges, make_population, rows_of_clients
from atoll.data.standardise import standardise
from atoll.experiment.skewing import levels_of, require_skew, skew_clients
from atoll.settings.plugins import call, resolve
from atoll.settings.signatures import asks_for, takes_any
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, reading
from atoll.support.seeds import generator


def make_clients(settings: Settings) -> tuple[Population, Population | None]:
    """Return the training clients, and those held out, drawn from the seed; None: there are none."""
    wanted = settings.data
    data = turned(settings, load_dataset(settings))
    clients = wanted.clients + wanted.held_out_clients
    held = f"data.clients + data.held_out_clients = {wanted.clients} + {wanted.held_out_clients}"
    with reading(held) if wanted.held_out_clients else nullcontext():
        parts = as_ranges(deal_out(settings, data, clients, "partition"))
    told = f"data.partition = {wanted.partition!r}"
    if len(parts) != clients:
        more = f" + data.held_out_clients = {wanted.held_out_clients}" if wanted.held_out_clients else ""
        raise InputError(f"{told}: made {len(parts)} clients, but data.clients = {wanted.clients}{more}")
    if len(empty := np.flatnonzero(parts.sizes == 0)):
        some = f"client {empty[0]} has no samples ({len(empty)} of {len(parts)} have none)"
        raise InputError(f"{told}: {some}; every client needs at least one")
    data = _skewed(settings, data, parts)
    attributes = attributes_of(settings)
    if not wanted.held_out_clients:
        return make_population(data, parts, attributes), None
    order = generator(settings.seed, "held out").permutation(clients)
    training, new = np.sort(order[: wanted.clients]), np.sort(order[wanted.clients :])
    return (
        make_population(data, [parts[k] for k in training], attributes),
        make_population(data, [parts[k] for k in new]),
    )


def attributes_of(settings: Settings) -> dict[str, npt.NDArray[Any]]:
    """Return the attributes of the clients' file; none without a file."""
    wanted = settings.data
    with reading("data.clients_file"):
        return read_clients(wanted.clients_file, wanted.clients) if wanted.clients_file else {}


def _skewed(settings: Settings, data: Dataset, parts: Parts) -> Dataset:
    """Return the pool with the clients' skew; a partition in a file also assigns the test samples."""
    if settings.data.skew == "none":
        return data
    by_file = settings.data.partition == "file"
    return skew_clients(settings, data, parts, deal_out(settings, data.test, 1, "test partition") if by_file else None)


def make_test_clients(settings: Settings, population: Population) -> Population:
    """Return clients that hold the test samples, by the same partition, as many per sample, of each group and class."""
    test, wanted = population.data.test, settings.data
    if wanted.partition == "natural":
        return make_population(test, _own_tests(settings, test, population))
    few = len(population.data.test_inputs)
    with reading(f"data.test_samples = {few}: too few to partition") if few == wanted.test_samples else nullcontext():
        if wanted.skew != "none" and wanted.partition != "file":
            return make_population(test, _deal_by_level(settings, test, len(population.data)))
        kinds = max(1 + int(test.groups_of(np.arange(len(test))).max()), test.classes * (wanted.partition in BY_CLASS))
        most = wanted.clients + wanted.held_out_clients
        clients = max(min(kinds, most), wanted.clients * len(test) // len(population.data))
        return make_population(test, deal_out(settings, test, clients, "test partition"))


def _deal_by_level(settings: Settings, test: Dataset, pool: int) -> Parts:
    """Partition the test samples of each level of skew among that level's clients, as many per sample."""
    levels, parts = levels_of(settings), list[np.ndarray[Any, Any]]()
    for level in range(levels):
        rows = np.flatnonzero(test.groups == level)
        if not len(rows):
            told = f"data.skew_levels = {levels}:"
            raise InputError(f"{told} there are {len(test)} test samples, and clients of each level need one")
        own = replace(test, inputs=test.inputs[rows], targets=test.targets[rows], groups=None, owners=None)
        clients = max(1, settings.data.clients * len(test) // (pool * levels))
        is_whole = settings.data.partition in BY_CLASS  # few clients would hold few of the classes
        dealt = [np.arange(len(rows))] if is_whole else deal_out(settings, own, clients, "test partition")
        parts += [rows[part] for part in dealt]
    return parts


def load_dataset(settings: Settings) -> Dataset:
    """Return the data set that the settings name, with standardised inputs and fewer test samples if they say so."""
    wanted = settings.data
    data = standardise(require_skew(settings, _load(settings)), wanted.standardise, wanted.mean, wanted.deviation)
    tests = len(data.test_inputs)
    if wanted.test_samples is None or wanted.test_samples >= tests:
        return data
    rows = np.sort(generator(settings.seed, "tests").choice(tests, wanted.test_samples, replace=False))
    parts = {name: getattr(data, name) for name in ("test_inputs", "test_targets", "test_groups", "test_owners")}
    copies = {name: np.split(part, len(part) // tests) for name, part in parts.items() if part is not None}
    drawn: dict[str, Any] = {name: np.concatenate([copy[rows] for copy in own]) for name, own in copies.items()}
    return replace(data, **drawn)


def _load(settings: Settings) -> Dataset:
    wanted = settings.data
    make = resolve("data.dataset", wanted.dataset, DATASETS)
    offered = {**dict(wanted), "clients": wanted.clients + wanted.held_out_clients, "seed": settings.seed}
    own = (wanted.model_extra or {}) if takes_any(make) else {}
    taken = {key: value for key, value in offered.items() if key in own or asks_for(make, key)}
    if wanted.dataset not in DATASETS or asks_for(make, "rng"):  # may give another each time
        return _make_dataset(make, wanted.dataset, {**taken, "rng": generator(settings.seed, "regression")}, own)
    told = json.dumps(taken, sort_keys=True, default=str)
    return _read_once(wanted.dataset, told, stamp(wanted.dataset, wanted.root), os.environ.get("ATOLL_DATA"))


@lru_cache(maxsize=1)
def _read_once(name: str, told: str, _stamp: tuple[Any, ...], _environment: str | None) -> Dataset:
    """Read a data set once for all runs of an experiment, while the files in its folder are unchanged."""
    return _make_dataset(DATASETS[name], name, json.loads(told), {})


def _make_dataset(make: Callable[..., Any], name: str, given: Mapping[str, Any], own: Mapping[str, Any]) -> Dataset:
    with nullcontext() if name in DATASETS else reading(f"data.dataset = {name!r}"):
        made = call("data.dataset", make, given, own)
    if not isinstance(made, Dataset):
        raise InputError(f"data.dataset = {name!r}: must return an atoll.Dataset, it returned {kind_of(made)}")
    return made


def _own_tests(settings: Settings, test: Dataset, population: Population) -> Parts:
    """Return the test samples of each client that has any."""
    if test.owners is None:
        told = f"data.partition = 'natural': method.name = {settings.method.name!r} is tested client by client,"
        raise InputError(f"{told} but the data has one test set for all; give each client its own test samples")
    assert population.data.owners is not None
    trains = np.zeros(1 + max(int(owners.max()) for owners in (population.data.owners, test.owners)), bool)
    trains[population.data.owners[population.indices]] = True
    wanted = np.flatnonzero(trains[test.owners])
    parts = rows_by_owner(test.owners[wanted])
    return Ranges(wanted[np.asarray(parts.indices)], np.unique(parts.offsets))  # without empty ones


def turned(settings: Settings, data: Dataset) -> Dataset:
    """Return the data set, with rotated copies or copies with swapped labels if the settings ask for them."""
    wanted = settings.data
    rotations = wanted.rotations or (4 if wanted.partition == "rotated" else 1)
    if wanted.swaps:
        return _swapped(settings, data, wanted.swaps, rotations)
    if rotations == 1:
        return data
    if wanted.partition == "natural":
        raise InputError(f"data.rotations = {rotations}: must be unset with data.partition = 'natural'")
    if len(data.shape) < 2 or data.shape[-1] != data.shape[-2]:
        raise InputError(f"data.rotations = {rotations}: needs square images, {data.name} has {list(data.shape)}")
    return replace(data, turns=tuple(range(0, 4, 4 // rotations)))


def _swapped(settings: Settings, data: Dataset, copies: int, rotations: int) -> Dataset:
    """Return the data set with copies of which each has two labels swapped, as in MNIST-4 of FedDrift's authors."""
    told, most = f"data.swaps = {copies}", (data.classes + 1) // 2
    if copies > most:
        raise InputError(f"{told}: {data.name} has {data.classes} classes, so the most is {most}")
    if rotations > 1 or settings.data.partition == "natural" or data.groups is not None:
        raise InputError(f"{told}: its copies are planted groups, and {data.name} as partitioned here has others")
    names = np.tile(np.arange(data.classes), (copies, 1))
    for copy in range(1, copies):
        names[copy, [2 * copy - 1, 2 * copy]] = 2 * copy, 2 * copy - 1
    targets, tests = (np.concatenate(names[:, each]) for each in (data.targets, data.test_targets))
    return replace(data, turns=(0,) * copies, targets=targets, test_targets=tests)


def deal_out(settings: Settings, data: Dataset, clients: int, purpose: str, *key: int) -> Parts:
    """Partition a pool among this many clients, as drawn for a purpose and key."""
    wanted = settings.data
    rule: Callable[..., Any] = resolve("data.partition", wanted.partition, PARTITIONS)
    if not data.classes and asks_for(rule, "classes"):
        told = "deals by class, which this data set has not"
        raise InputError(f"data.partition = {wanted.partition!r}: {told}; use another one, such as 'iid' or 'natural'")
    given = {
        **dict(wanted),
        "clients": clients,
        "labels": data.labels,
        "groups": data.groups_of(np.arange(len(data))),
        "classes": data.classes,
        "owners": data.owners,
        "dataset": data,
        "seed": settings.seed,
        "rng": generator(settings.seed, purpose, *key),
    }
    return read_parts(call("data.partition", rule, given, wanted.model_extra), wanted.partition)


def read_parts(made: Any, name: str, setting: str = "data.partition") -> Parts:
    """Return a partition as an array [clients, samples], as ranges, or a list with one index array per client."""
    is_table = isinstance(made, np.ndarray) and made.ndim == 2 and made.dtype.kind in "iu"
    return made if is_table or isinstance(made, Ranges) else rows_of_clients(made, f"{setting} = {name!r}")
