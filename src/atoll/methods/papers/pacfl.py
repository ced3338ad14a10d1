"""PACFL: clustering before training, by angles between clients' data subspaces (Vahidian et al. 2023)."""

from typing import TYPE_CHECKING, Literal

from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import agglomerate, fedavg_apart, require_enough
from atoll.methods.parts.principal_angles import Angle, distances_between, signatures
from atoll.schedules.events import Clock
from atoll.support.limits import NotNegative, Positive, Share

if TYPE_CHECKING:
    from torch import nn

Linkage = Literal["complete", "average", "single"]  # not Ward's, which needs Euclidean distances


@checked
def pacfl(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    clusters: Positive = 4,
    vectors: Positive = 3,
    angle: Angle = "sum",
    linkage: Linkage = "average",
    threshold: NotNegative | None = None,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """PACFL: clients are clustered by a few singular vectors of their data; each cluster then runs FedAvg.

    Vahidian et al. 2023, "Efficient distribution similarity identification in clustered federated learning via
    principal angles between client data subspaces". Client i sends ``U_i``, the p leading left singular vectors of its
    inputs of each class. The distance of two clients is the smallest principal angle between all their vectors
    (`smallest`), or the sum of principal angles class by class (`sum`), with 90 degrees for each vector that the other
    client lacks; both are independent of the vectors' signs. Clustering is agglomerative; all clusters start from one
    model. The vectors, at four bytes per element, count as models sent in the first event, rounded up.

    Args:
        module: the model, whose size is the unit for counting the vectors.
        clusters: number of clusters; with a threshold, the maximum.
        vectors: singular vectors per class, p.
        angle: distance between two clients.
        threshold: clusters farther apart (degrees) are merged only while there are more than `clusters`; unset:
            merging stops at `clusters`.

    Raises:
        InputError: more clusters than clients.
    """
    require_enough(population, clusters)
    bases = signatures(population, module, vectors)
    labels = agglomerate(distances_between(bases, angle), clusters, linkage, threshold)
    numbers = int(bases.any(axis=2).sum()) * bases.shape[2]
    return fedavg_apart(population, rule, rounds, labels, fraction, clock, seed, numbers, module)
