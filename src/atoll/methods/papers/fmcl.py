"""FMCL: clustering before training, by what a frozen model makes of clients' classes (Ali and Brattain 2026)."""

from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import (
    PairwiseLinkage,
    agglomerate,
    cosine_distances,
    fedavg_apart,
    normalised,
    require_enough,
)
from atoll.schedules.clock import Clock
from atoll.support.limits import NotNegative, Positive, Share

if TYPE_CHECKING:
    from torch import nn


def start() -> None:
    """The initial model up to its last layer, the default of `method.encoder`."""


ENCODERS = {"start": start}


@checked
def fmcl(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    encoder: "nn.Module | None" = None,
    clusters: Positive = 4,
    linkage: PairwiseLinkage = "average",
    threshold: NotNegative | None = None,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
    model_bytes: Positive | None = None,
) -> Method:
    """FMCL: clients are clustered once by the mean embeddings of their classes; each cluster then runs FedAvg.

    Ali and Brattain 2026, "FMCL: Class-Aware Client Clustering with Foundation Model Representations for Heterogeneous
    Federated Learning". A frozen model e embeds a client's samples; ``p_ic`` is the mean of e over client i's samples
    of class c. Of the paper only the abstract was at hand, which names these prototypes, the cosine distance and one
    clustering before training. The rest is our reading: a client's signature is all p_ic in a row, each of length 1,
    zeros for classes it lacks; the distance is ``1 - cos``, so clients without a class in common are at distance 1; and
    clustering is agglomerative. Prototypes, at four bytes per number, count as models sent in the first event.

    Args:
        module: the model.
        encoder: the frozen model, on the model's device; None: the initial model up to its last layer.
        clusters: number of clusters; with a threshold, the maximum.
        model_bytes: bytes of what of it is communicated, the unit for counting prototypes; unset: of all of it.

    Raises:
        InputError: more clusters than clients, or the encoder does not fit the inputs.
    """
    from atoll.methods.parts.features import prototypes  # late: reading settings needs no PyTorch

    require_enough(population, clusters)
    found = prototypes(population, module, encoder)
    clients, _, numbers = found.shape
    signatures = normalised(found.reshape(-1, numbers)).reshape(clients, -1)
    labels = agglomerate(cosine_distances(signatures), clusters, linkage, threshold)
    sent = int(found.any(axis=2).sum()) * numbers
    return fedavg_apart(population, rule, rounds, labels, fraction, clock, seed, sent, module, model_bytes)
