"""FedBuff: the server adds updates in batches of K as clients finish (Nguyen et al. 2022)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.cohorts import only_model
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import refuse_statistics
from atoll.schedules.clock import Clock
from atoll.schedules.events import Mix
from atoll.schedules.overlapping import PendingWork, buffered
from atoll.support.limits import Positive, PositiveFloat

if TYPE_CHECKING:
    from torch import nn


@checked
def fedbuff(
    population: Population,
    rule: LocalRule,
    clock: Clock,
    rounds: int,
    concurrency: Positive = 10,
    buffer: Positive = 5,
    server_lr: PositiveFloat = 1.0,
    seed: int = 0,
    module: "nn.Module | None" = None,
) -> Method:
    """FedBuff: once K clients have finished, the server adds the mean of their updates, discounted by staleness.

    Nguyen et al. 2022, Algorithm 1. With Delta_k the update of client k, and tau_k the number of server updates since
    k received its model, ``x <- x + server_lr / K * sum of Delta_k / sqrt(1 + tau_k)``.

    A lost result counts as a Delta_k of zero. With K clients of equal speed that all take part, this is FedAvg with
    equal client weights; bit-identical if K is a power of two.

    Args:
        clock: each client's training and upload times.
        rounds: number of server updates.
        concurrency: number of clients training at any time.
        buffer: number of updates per server step, K.
        server_lr: the server's step size, eta_g.
        seed: seed for drawing clients.
        module: the model; None: it keeps no running statistics.

    Raises:
        InputError: concurrency or buffer exceeds the number of clients; or a layer keeps running statistics.
    """
    refuse_statistics(module, "method.name = 'fedbuff', whose late updates could make a variance negative")

    def mix(jobs: Sequence[PendingWork], index: int) -> Mix:
        """Add updates to the server's model; a fresh update amounts to a step toward the client's model."""
        shares = {job: server_lr / buffer * (1 + index - job.version) ** -0.5 for job in jobs}
        fresh = tuple((job.place, share) for job, share in shares.items() if job.version == index)
        stale = tuple((job.place, share) for job, share in shares.items() if job.version != index)
        left = 0.0 if len(fresh) == buffer and server_lr == 1 else 1.0 - sum(share for _, share in fresh)
        return Mix(left, fresh, stale)

    return Method(buffered(population.sizes, clock, rounds, concurrency, buffer, mix, seed), rule, combine=only_model)
