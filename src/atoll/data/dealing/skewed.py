"""Partitions in which clients differ in size, in labels, or in both."""

from typing import Literal

import numpy as np

from atoll.data.dealing.class_counts import Indices, cuts_of, permutation, require_enough
from atoll.data.dealing.partition_checks import checked_rule
from atoll.data.dealing.ranges import Parts
from atoll.support.errors import InputError
from atoll.support.limits import LogDeviation, Positive, PositiveFloat


@checked_rule
def quantity(
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    sizes: Literal["log-normal", "dirichlet"] = "log-normal",
    sigma: LogDeviation = 1.0,
    alpha: PositiveFloat = 0.5,
) -> Parts:
    """Deal the whole pool out in disjoint parts of different sizes, with the same label mix (Li et al. 2022).

    Args:
        sizes: what sizes are proportional to: log-normal draws, or one draw from a Dirichlet distribution.
        sigma: standard deviation of the sizes' logarithms.
        alpha: concentration of the Dirichlet distribution.
    """
    require_enough(len(labels), clients, 1)
    shares = rng.lognormal(0, sigma, clients) if sizes == "log-normal" else rng.dirichlet(np.full(clients, alpha))
    return np.split(permutation(len(labels), rng), cuts_of(len(labels), shares))


@checked_rule
def some_labels(
    labels: Indices, clients: int, classes: int, rng: np.random.Generator, labels_per_client: Positive = 2
) -> Parts:
    """Give each client samples of a few labels (Li et al. 2022): client k gets ``k % classes`` and random others.

    A label's samples are dealt out evenly to its clients; all are, if there are at least as many clients as classes.

    Args:
        labels_per_client: number of different labels per client.
    """
    if labels_per_client > classes:
        raise InputError(f"data.labels_per_client = {labels_per_client}: must be at most the data's {classes} classes")
    has = np.zeros((clients, classes), bool)
    for client in range(clients):
        others = np.delete(np.arange(classes), client % classes)
        has[client, [client % classes, *rng.choice(others, labels_per_client - 1, replace=False)]] = True
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label in range(classes):
        members, holders = rng.permutation(np.flatnonzero(labels == label)), np.flatnonzero(has[:, label])
        if len(members) < len(holders):
            raise InputError(
                f"data.clients = {clients}: label {label} has {len(members)} samples for {len(holders)} clients"
            )
        for client, own in zip(holders.tolist(), np.array_split(members, max(1, len(holders))), strict=False):
            parts[client].append(own)
    return [np.concatenate(own) for own in parts]


@checked_rule
def labels_and_quantity(
    labels: Indices,
    clients: int,
    classes: int,
    rng: np.random.Generator,
    alpha: PositiveFloat = 0.5,
    sigma: LogDeviation = 1.0,
) -> Parts:
    """Deal every class out in disjoint parts, with Dirichlet shares times log-normal sizes.

    With `sigma` 0, sizes differ as in `dirichlet`. Redrawn up to 100 times until no client is empty.

    Args:
        alpha: concentration of each class's shares.
        sigma: standard deviation of the sizes' logarithms.
    """
    require_enough(len(labels), clients, 1)
    by_class = [rng.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    for _ in range(100):
        sizes = rng.lognormal(0, sigma, clients)
        pieces = []
        for members in by_class:
            shares = np.maximum(sizes * rng.gamma(alpha, size=clients), 1e-300)
            cuts = np.round(np.cumsum(shares)[:-1] / shares.sum() * len(members)).astype(int)
            pieces.append(np.split(members, cuts))
        parts = [np.concatenate([piece[k] for piece in pieces]) for k in range(clients)]
        if all(map(len, parts)):
            return parts
    raise InputError(
        f"data.alpha = {alpha}, data.sigma = {sigma}: in each of 100 draws, some of {clients} clients got no samples; "
        "raise data.alpha, or lower data.sigma or data.clients"
    )
