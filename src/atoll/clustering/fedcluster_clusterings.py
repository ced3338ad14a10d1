"""FedCluster's clusterings: random, by time zone, by availability, by major class (Sec. II and IV-E); and planted."""

from collections import deque

import numpy as np

from atoll.clustering.clustering import Clustering, checked_rule
from atoll.data.dealing.class_counts import exact_counts, major_shares
from atoll.data.population import Population
from atoll.support.arrays import Ids, Mask
from atoll.support.errors import InputError
from atoll.support.limits import Number, Positive


@checked_rule
def random(population: Population, clusters: int, rng: np.random.Generator) -> Clustering:
    """Group clients uniformly at random into clusters whose sizes differ by at most one."""
    labels = np.empty(len(population), np.int64)
    labels[rng.permutation(len(population))] = np.arange(len(population)) % clusters
    return Clustering(labels, clusters)


@checked_rule
def timezone(population: Population, clusters: int, rng: np.random.Generator, local_hour: Number = 0.0) -> Clustering:
    """Group clients by the UTC time at which their local time is `local_hour`, into equal arcs of 24 h.

    Uses the clients' attribute ``utc_offset`` (hours) or ``longitude`` (degrees; offset = longitude / 15); clients
    without either are spread uniformly over the longitudes. Clusters are numbered by time of day, so that the
    `fixed` order passes through all of them in one day; each cycle happens at the middle of its arc.

    Args:
        local_hour: local time at which clients train.
    """
    if not 0 <= local_hour < 24:
        raise InputError(f"clustering.local_hour = {local_hour}: must be at least 0 and below 24")
    known = population.attributes
    name, per_hour = ("utc_offset", 1) if "utc_offset" in known else ("longitude", 15)
    offset = np.asarray(known[name], float) / per_hour if name in known else rng.uniform(-12, 12, len(population))
    if not (good := np.isfinite(offset)).all():
        raise InputError(f"clustering.method = 'timezone': client {good.argmin()} needs a finite {name}")
    labels = np.floor((local_hour - offset) % 24 * (clusters / 24)).astype(np.int64) % clusters
    return Clustering(labels, clusters, _middles(clusters))


@checked_rule
def availability(
    population: Population, clusters: int, rng: np.random.Generator, slots_per_client: Positive = 3
) -> Clustering:
    """Divide the day into one slot per cluster and assign each client to one of its available slots.

    Uses the clients' attribute ``slots`` (bool [clients, slots]); clients without it are available in
    `slots_per_client` slots drawn at random. The sizes are as even as the availabilities allow. A client
    without any slot is left out (label -1).

    Args:
        slots_per_client: random slots per client, if none are known.
    """
    if "slots" in population.attributes:
        slots = np.asarray(population.attributes["slots"])
        if slots.ndim != 2:
            raise InputError(f"clustering.method = 'availability': slots must be [clients, slots], not {slots.shape}")
        if (last := np.flatnonzero(slots.any(axis=0)).max(initial=-1)) >= clusters:
            raise InputError(f"clustering.clusters = {clusters}: a client lists slot {last}, counted from 0")
    else:
        if not 1 <= slots_per_client <= clusters:
            raise InputError(
                f"clustering.slots_per_client = {slots_per_client}: must be from 1 to clustering.clusters = {clusters}"
            )
        slots = rng.random((len(population), clusters)).argsort(axis=1) < slots_per_client
    return Clustering(even_slots(slots), clusters, _middles(clusters))


def even_slots(slots: Mask) -> Ids:
    """Choose an available slot for each client, -1 without any, so that the slots' loads are as even as possible.

    Availability is [clients, slots], the choice [clients].

    Starts with the least loaded slot for each client, those with few slots first, then shifts clients along
    cost-reducing paths (Harvey et al. 2006, semi-matchings) until none is left; then the sum of squared loads,
    and also the largest load, is minimal.
    """
    clients, count = slots.shape
    labels = np.full(clients, -1, np.int64)
    load = np.zeros(count, np.int64)
    for client in np.argsort(slots.sum(axis=1), kind="stable"):
        free = np.flatnonzero(slots[client])
        if len(free):
            labels[client] = free[np.argmin(load[free])]
            load[labels[client]] += 1
    members: list[list[int]] = [list(np.flatnonzero(labels == s)) for s in range(count)]
    while path := _reducing_path(slots, members, load):
        for origin, client, target in path:
            members[origin].remove(client)
            members[target].append(client)
            labels[client] = target
        load[path[0][0]] -= 1
        load[path[-1][2]] += 1
    return labels


def _reducing_path(slots: Mask, members: list[list[int]], load: Ids) -> list[tuple[int, int, int]]:
    """Return moves (from slot, client, to slot) that lead from a slot to one with at least two clients fewer."""
    for origin in np.argsort(-load, kind="stable"):
        reached: dict[int, tuple[int, int, int]] = {}
        queue = deque([int(origin)])
        while queue:
            slot = queue.popleft()
            if load[slot] <= load[origin] - 2:
                path = [reached[slot]]
                while path[0][0] != origin:
                    path.insert(0, reached[path[0][0]])
                return path
            if not members[slot]:
                continue
            available = slots[members[slot]]
            for target in np.flatnonzero(available.any(axis=0)):
                if target != origin and int(target) not in reached:
                    reached[int(target)] = (slot, members[slot][int(available[:, target].argmax())], int(target))
                    queue.append(int(target))
    return []


@checked_rule
def major_class(
    population: Population, clusters: int, rng: np.random.Generator, rho_cluster: Number = 0.5
) -> Clustering:
    """Give cluster c the major class ``c % classes`` with a share `rho_cluster` of its clients (FedCluster, Sec. IV-E).

    A client's major class is the one with most samples (the lowest on ties). Sizes differ by at most one;
    a cluster should get ``rho_cluster`` of its size from its major class and equal parts from the others, by largest
    remainder. If there are not enough clients, clusters are served in order of their number, and the
    remaining clients fill the remaining seats in random order; `atoll cluster` shows the resulting shares.

    Args:
        rho_cluster: share of clients with a cluster's major class.
    """
    classes = population.data.classes
    if not classes:
        raise InputError("clustering.method = 'major-class': needs data with classes")
    if not 1 / classes <= rho_cluster <= 1:
        raise InputError(f"clustering.rho_cluster = {rho_cluster}: must be between 1/classes = {1 / classes:g} and 1")
    own = population.class_counts().argmax(axis=1)
    waiting = [list(rng.permutation(np.flatnonzero(own == c))) for c in range(classes)]
    labels = np.full(len(population), -1, np.int64)
    seats = np.array([len(part) for part in np.array_split(np.arange(len(population)), clusters)])
    for cluster in range(clusters):
        major = np.array([cluster % classes])
        quota = exact_counts(major_shares(major, classes, rho_cluster), int(seats[cluster]), major)[0]
        for c, count in enumerate(quota):
            labels[waiting[c][:count]] = cluster
            del waiting[c][:count]
    left = rng.permutation(np.array([k for queue in waiting for k in queue], np.int64))
    room = seats - np.bincount(labels[labels >= 0], minlength=clusters)
    labels[left] = np.repeat(np.arange(clusters), room)
    return Clustering(labels, clusters)


def _middles(clusters: int) -> tuple[float, ...]:
    """Return the middle of each of the day's equal arcs, in hours."""
    return tuple((c + 0.5) * 24 / clusters for c in range(clusters))


@checked_rule
def planted(population: Population, clusters: int) -> Clustering:
    """Group clients by their planted group (`data.group` of a table); on a network each group has its aggregator."""
    groups = population.groups()
    if len(known := np.unique(groups)) == clusters:  # the clients here need not be of all groups
        groups = np.searchsorted(known, groups)
    if (found := int(groups.max()) + 1) != clusters:
        raise InputError(
            f"clustering.clusters = {clusters}: clustering.method = 'planted' uses the data's groups, of which there "
            f"{'is 1' if found == 1 else f'are {found}'}; set clustering.clusters = {found}"
        )
    return Clustering(groups, clusters)
