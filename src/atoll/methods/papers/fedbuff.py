"""FedBuff: the server adds the updates of every K clients as they are done (Nguyen et al. 2022)."""

from collections.abc import Sequence

from atoll.data.population import Population
from atoll.engine.cohorts import only_model
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.schedules.events import Clock, Mix
from atoll.schedules.overlapping import PendingWork, buffered
from atoll.support.limits import Positive, PositiveFloat


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
) -> Method:
    """FedBuff: whenever K clients are done, the server adds the mean of their updates, discounted by staleness.

    Nguyen et al. 2022, Algorithm 1. With Delta_k what client k changed the model by that it was sent, and tau_k how
    often the server's model has changed since, ``x <- x + server_lr / K * sum of Delta_k / sqrt(1 + tau_k)``.

    A client whose result is lost counts as a Delta_k of zero. With K clients that all take part and take equally long
    it is FedAvg in which all clients count alike; to the bit where K is a power of two.

    Args:
        population: the clients.
        rule: what a client does.
        clock: how long each client takes.
        rounds: how often the server's model changes.
        concurrency: clients at work at any time.
        buffer: updates that the server waits for, K.
        server_lr: the server's step size, eta_g.
        seed: what clients are drawn from.

    Raises:
        InputError: more clients at work, or a larger buffer, than there are clients.
    """

    def mix(jobs: Sequence[PendingWork], index: int) -> Mix:
        """Add updates to the server's model; for those that began with it now, that is to go toward what they made."""
        shares = {job: server_lr / buffer * (1 + index - job.version) ** -0.5 for job in jobs}
        fresh = tuple((job.place, share) for job, share in shares.items() if job.version == index)
        stale = tuple((job.place, share) for job, share in shares.items() if job.version != index)
        left = 0.0 if len(fresh) == buffer and server_lr == 1 else 1.0 - sum(share for _, share in fresh)
        return Mix(left, fresh, stale)

    schedule = buffered(population.sizes, clock, rounds, concurrency, buffer, mix, seed)
    return Method(schedule, rule, combine=only_model)
