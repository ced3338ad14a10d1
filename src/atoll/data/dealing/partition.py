"""Partitions: which samples of the pool each client holds.

A partition rule is a function of the pool's labels; it returns either an array [clients, samples] of indices into the
pool, or a list with one index array per client, or `Ranges`. A user's own rule has the same form and is named in the
experiment file as ``partition = "module:function"``; by parameter name it may ask for `labels`, `groups`, `clients`,
`classes`, `owners`, `dataset`, `rng` and `seed`; its other parameters are settings of ``[data]``.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from atoll.data.dealing.class_counts import (
    Indices,
    cuts_of,
    draw_counts,
    exact_counts,
    major_shares,
    permutation,
    require_enough,
)
from atoll.data.dealing.partition_checks import checked_rule
from atoll.data.dealing.partition_file import from_file
from atoll.data.dealing.ranges import DrawnIndices, Parts, Ranges
from atoll.data.dealing.skewed import labels_and_quantity, quantity, some_labels
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.limits import Number, Positive, PositiveFloat
from atoll.support.wording import counted


@checked_rule
def iid(
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    samples: Positive | None = None,
    indices: Literal["held", "drawn"] = "held",
) -> Parts:
    """Give every client a uniform draw from the pool.

    Without `samples`, the whole pool is dealt out in disjoint parts whose sizes differ by at most one. With `samples`,
    each client gets that many: disjoint if the pool suffices, else drawn with replacement.

    Args:
        samples: samples per client; unset: the whole pool is dealt out.
        indices: held in memory; or drawn again, with replacement, whenever a client needs them, so that any number of
            clients takes no memory for them.
    """
    pool = len(labels)
    if indices == "drawn":
        return _drawn(np.zeros(pool, int), np.array([[_given(samples)]]), clients, rng)
    if samples is None:
        require_enough(pool, clients, 1)
        return np.array_split(permutation(pool, rng), clients)
    if clients * samples <= pool:
        return permutation(pool, rng)[: clients * samples].reshape(clients, samples)
    return rng.integers(pool, size=(clients, samples), dtype=np.int32)


@checked_rule
def dirichlet(
    labels: Indices,
    clients: int,
    classes: int,
    rng: np.random.Generator,
    alpha: PositiveFloat = 0.5,
    samples: Positive | None = None,
) -> Parts:
    """Give clients label shares drawn from a Dirichlet distribution with concentration `alpha`.

    Without `samples`, every class is dealt out in disjoint parts with Dirichlet shares (redrawn up to 100 times until
    no client is empty). With `samples`, each client draws its own class shares and takes that many samples with
    replacement, in exact counts by largest remainder.

    Args:
        alpha: concentration.
        samples: samples per client; unset: the whole pool is dealt out.
    """
    if samples is not None:
        shares = rng.dirichlet(np.full(classes, alpha), size=clients)
        return draw_counts(labels, exact_counts(shares, samples, np.zeros(clients, int)), rng)
    require_enough(len(labels), clients, 1)
    by_class = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    for _ in range(100):
        cuts = [
            np.round(np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(members)).astype(int)
            for members in by_class
        ]
        pieces = [np.split(members, cut) for members, cut in zip(by_class, cuts, strict=True)]
        parts = [np.concatenate([piece[k] for piece in pieces]) for k in range(clients)]
        if all(len(part) for part in parts):
            return parts
    raise InputError(
        f"data.alpha = {alpha}: in each of 100 draws, some of {clients} clients got no samples; "
        "raise data.alpha, lower data.clients or set data.samples"
    )


@checked_rule
def shards(labels: Indices, clients: int, rng: np.random.Generator, shards_per_client: Positive = 2) -> Parts:
    """Sort the pool by label, cut it into equal shards and give each client some of them (McMahan et al. 2017).

    Disjoint and complete; sizes differ by at most `shards_per_client`.

    Args:
        shards_per_client: shards per client.
    """
    require_enough(len(labels), clients, shards_per_client)
    order = permutation(len(labels), rng)
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(order, clients * shards_per_client)
    dealt = rng.permutation(len(pieces)).reshape(clients, shards_per_client)
    return [np.concatenate([pieces[i] for i in row]) for row in dealt]


@checked_rule
def major_class(
    labels: Indices,
    clients: int,
    classes: int,
    rng: np.random.Generator,
    rho_device: Number = 0.5,
    samples: Positive = 500,
    indices: Literal["held", "drawn"] = "held",
) -> Parts:
    """Give each client a major class with share `rho_device`, the other classes equal shares (FedCluster, Sec. IV).

    Client k's major class is ``k * classes // clients``. Class counts are exact: the shares times `samples`, rounded by
    largest remainder, ties going to the classes after the major one. Each client draws a class's samples from the pool
    with replacement.

    Args:
        rho_device: share of a client's major class.
        samples: samples per client.
        indices: held in memory, or drawn again whenever a client needs them.
    """
    if not 1 / classes <= rho_device <= 1:
        raise InputError(f"data.rho_device = {rho_device}: must be between 1/classes = {1 / classes:g} and 1")
    every = np.arange(classes)
    counts = exact_counts(major_shares(every, classes, rho_device), samples, every)
    if indices == "drawn":
        return _drawn(labels, counts, clients, rng)
    return draw_counts(labels, counts[np.arange(clients) * classes // clients], rng)


@checked_rule
def one_label(
    labels: Indices,
    clients: int,
    classes: int,
    rng: np.random.Generator,
    samples: Positive | None = None,
    size_ratio: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0,
    indices: Literal["held", "drawn"] = "held",
) -> Parts:
    """Give client k samples of one label only, ``k * classes // clients`` (FedUC, Sec. VI).

    Without `samples`, each label's samples are dealt out to its clients in disjoint parts (all of them if there are at
    least as many clients as classes), with shares proportional to uniform draws from 1 to `size_ratio`. With `samples`,
    each client draws that many with replacement.

    Args:
        samples: samples per client; unset: the whole pool is dealt out.
        size_ratio: clients' sizes are drawn uniformly from a range whose ends have this ratio.
        indices: held in memory; or drawn again whenever a client needs them, which needs `samples`.
    """
    if samples is not None and size_ratio != 1:
        raise InputError(f"data.size_ratio = {size_ratio}: must be 1 with data.samples, which makes sizes equal")
    if indices == "drawn":
        return _drawn(labels, _given(samples) * np.eye(classes, dtype=int), clients, rng)
    major = np.arange(clients) * classes // clients
    if samples is not None:
        return draw_counts(labels, samples * np.eye(classes, dtype=int)[major], rng)
    parts: list[Indices] = []
    for label in np.unique(major):
        members = rng.permutation(np.flatnonzero(labels == label))
        owners = int(np.count_nonzero(major == label))
        if len(members) < owners:
            raise InputError(f"data.clients = {clients}: label {label} has {len(members)} samples for {owners} clients")
        parts += np.split(members, cuts_of(len(members), rng.uniform(1, size_ratio, owners)))
    return parts


@checked_rule
def one_group(groups: Indices, clients: int, rng: np.random.Generator, samples: Positive | None = None) -> Parts:
    """Give client k samples of one planted group, ``k * groups // clients``, such as one rotation (CFL-MGD, Sec. V).

    A group's samples are dealt out to its clients in disjoint parts: `samples` to each, or else all of them.

    Args:
        samples: samples per client; unset: the whole pool is dealt out.
    """
    planted = int(groups.max()) + 1
    own = np.arange(clients) * planted // clients
    parts: list[Indices] = []
    for group in np.unique(own):
        members = rng.permutation(np.flatnonzero(groups == group).astype(np.int32))
        owners = int(np.count_nonzero(own == group))
        if len(members) < owners * (samples or 1):
            raise InputError(
                f"data.clients = {clients}: group {group} has {len(members)} samples, its {owners} clients "
                f"need {owners * (samples or 1)}; lower data.clients or data.samples"
            )
        parts += np.array_split(members if samples is None else members[: owners * samples], owners)
    return parts


@checked_rule
def natural(clients: int, owners: Indices | None = None, min_samples: Positive | None = None) -> Parts:
    """Give each client what the data says it holds, such as its file in a folder; for the first `clients` clients.

    Args:
        min_samples: clients with fewer training samples are left out; unset: none are.
    """
    if owners is None:
        raise InputError(
            "data.partition = 'natural': this data set does not say which client holds a sample; for a table set "
            "data.client, or use data.dataset = 'folder' or atoll.from_torch with a list of data sets"
        )
    parts = rows_by_owner(owners)
    if min_samples is not None:
        kept = parts.sizes >= min_samples
        ends = np.cumsum(parts.sizes[kept], dtype=np.int64)
        parts = Ranges(parts.indices[np.repeat(kept, parts.sizes)], np.concatenate([[0], ends]))
    if (known := len(parts)) < clients:
        big = "" if min_samples is None else f" with data.min_samples = {min_samples}"
        hint = f"take at most {known} in all, the first ones" if known else "lower data.min_samples"
        raise InputError(f"data.clients = {clients}: the data has only {counted(known, 'client')}{big}; {hint}")
    return parts.first(clients)


def _given(samples: int | None) -> int:
    if samples is None:
        raise InputError("data.indices = 'drawn': needs data.samples, since a whole pool cannot be dealt out by draws")
    return samples


def _drawn(labels: Indices, counts: Ids, clients: int, rng: np.random.Generator) -> Ranges:
    """Return clients whose indices are drawn when needed; the counts are those of each kind of client."""
    drawn = DrawnIndices(labels, counts, clients, int(rng.integers(2**63)))
    return Ranges(drawn, np.arange(clients + 1) * drawn.samples)


def rows_by_owner(owners: Indices) -> Ranges:
    """Return each owner's rows, ascending, in the order of the owners' numbers."""
    order = np.argsort(owners, kind="stable")
    return Ranges(order, np.searchsorted(owners[order], np.arange(int(owners.max(initial=-1)) + 2)))


PARTITIONS: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "shards": shards,
    "major-class": major_class,
    "one-label": one_label,
    "rotated": one_group,
    "planted": one_group,
    "natural": natural,
    "quantity": quantity,
    "some-labels": some_labels,
    "labels-and-quantity": labels_and_quantity,
    "file": from_file,
}
BY_CLASS = ("major-class", "one-label", "some-labels")
"""Partitions in which a client's number decides its classes, so that few clients hold few of them."""
