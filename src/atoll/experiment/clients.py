"""From settings to clients: data set, partition, population."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from atoll.data.datasets import Dataset, load, make_regression
from atoll.data.folders import read_folder, stamp
from atoll.data.partition import PARTITIONS, Parts
from atoll.data.population import Population, make_population, read_clients
from atoll.experiment.checks import read_dataset, read_parts
from atoll.experiment.plugins import call, resolve
from atoll.experiment.settings import Settings
from atoll.support.errors import InputError, reading
from atoll.support.seeds import generator


def make_clients(settings: Settings) -> Population:
    """Return the training clients.

    Raises:
        InputError: settings that do not fit the data, or a partition that leaves a client without samples.
    """
    wanted = settings.data
    data = _turn(settings, load_dataset(settings))
    parts = _deal_out(settings, data, wanted.clients, "partition")
    if len(parts) != wanted.clients:
        raise InputError(
            f"data.partition = {wanted.partition!r}: made {len(parts)} clients, but data.clients = {wanted.clients}"
        )
    if empty := [client for client, part in enumerate(parts) if not len(part)]:
        raise InputError(
            f"data.partition = {wanted.partition!r}: client {empty[0]} has no samples "
            f"({len(empty)} of {len(parts)} have none); every client needs at least one"
        )
    with reading("data.clients_file"):
        attributes = read_clients(wanted.clients_file, wanted.clients) if wanted.clients_file else {}
    return make_population(data, parts, attributes)


def make_test_clients(settings: Settings, population: Population) -> Population:
    """Return clients that hold the test samples, by the same partition: as many for their samples, of every group."""
    test = population.data.test
    wanted = settings.data.clients
    if settings.data.partition == "natural":
        return make_population(test, _own_tests(settings, test))
    groups = int(test.groups_of(np.arange(len(test))).max()) + 1
    clients = max(min(groups, wanted), wanted * len(test) // len(population.data))
    return make_population(test, _deal_out(settings, test, clients, "test partition"))


def load_dataset(settings: Settings) -> Dataset:
    """Return the data set that the settings name."""
    wanted = settings.data
    if wanted.dataset == "regression":
        given = {**dict(wanted), "rng": generator(settings.seed, "regression")}
        return call("data.dataset", make_regression, given, wanted.options)  # type: ignore[no-any-return]
    if wanted.dataset == "folder":
        options = json.dumps(wanted.options, sort_keys=True, default=str)
        return _read_folder_once(wanted.root, options, stamp(wanted.root))
    if ":" in wanted.dataset:
        made = call("data.dataset", resolve("data.dataset", wanted.dataset, {}), {"root": wanted.root}, {})
        return read_dataset(made, wanted.dataset)
    return _load_once(wanted.dataset, wanted.root, wanted.fetch, os.environ.get("ATOLL_DATA"))


@lru_cache(maxsize=1)
def _load_once(name: str, root: str | None, fetch: bool, _environment: str | None) -> Dataset:
    """Read a data set once for all runs of an experiment; `_environment` tells where it was read from."""
    return load(name, root, fetch)


@lru_cache(maxsize=1)
def _read_folder_once(root: str | None, options: str, _stamp: tuple[Any, ...]) -> Dataset:
    """Read a folder once for all runs of an experiment, as long as its files stay the same."""
    return call("data.dataset", read_folder, {"root": root}, json.loads(options))  # type: ignore[no-any-return]


def _own_tests(settings: Settings, test: Dataset) -> Parts:
    """Return the test samples of each client that has any.

    Raises:
        InputError: none has.
    """
    if test.owners is None:
        raise InputError(
            f"data.partition = 'natural': method.name = {settings.method.name!r} is tested client by client, and the "
            "data has one test set for all; give clients test samples of their own"
        )
    wanted = np.flatnonzero(test.owners < settings.data.clients)
    return [wanted[test.owners[wanted] == client] for client in np.unique(test.owners[wanted])]


def _turn(settings: Settings, data: Dataset) -> Dataset:
    """Return the data set with turned copies, where the settings want them."""
    wanted = settings.data
    rotations = wanted.rotations or (4 if wanted.partition == "rotated" else 1)
    if rotations == 1:
        return data
    if wanted.partition == "natural":
        raise InputError(f"data.rotations = {rotations}: must be unset with data.partition = 'natural'")
    if len(data.shape) < 2 or data.shape[-1] != data.shape[-2]:
        raise InputError(f"data.rotations = {rotations}: needs square images, {data.name} has {list(data.shape)}")
    return replace(data, turns=tuple(range(0, 4, 4 // rotations)))


def _deal_out(settings: Settings, data: Dataset, clients: int, purpose: str) -> Parts:
    """Partition a pool among so many clients."""
    wanted = settings.data
    rule: Callable[..., Any] = resolve("data.partition", wanted.partition, PARTITIONS)
    given = {
        **dict(wanted),
        "clients": clients,
        "labels": data.labels,
        "groups": data.groups_of(np.arange(len(data))),
        "classes": data.classes,
        "owners": data.owners,
        "dataset": data,
        "rng": generator(settings.seed, purpose),
    }
    options = {} if wanted.dataset in ("regression", "folder") else wanted.options
    return read_parts(call("data.partition", rule, given, options), wanted.partition)
