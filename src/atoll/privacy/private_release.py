"""Private methods: sums of clipped updates over fixed denominators, with noise where trust ends."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from atoll.aggregation.mean import average_gradients
from atoll.engine.assignment import least_loss
from atoll.engine.cohorts import ClusterUpdate
from atoll.engine.method import Method
from atoll.engine.stages import Need, Stage
from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.privacy.clipping import CLIP, Shape, SumOfUpdates, Update, clip, clip_of
from atoll.privacy.mechanism import Cost, Mechanism
from atoll.privacy.needs import BY_CLIENTS, BY_SERVER, PROVEN, require_hidden_choice
from atoll.privacy.noise import Noise
from atoll.privacy.private_assignment import ToldAtRandom
from atoll.schedules.events import Event
from atoll.schedules.packed import pack
from atoll.support.arrays import Floats, Ids

MOST_CHANGE = 1e6
"""By what factor an adaptive clipping norm may leave the first one."""


@dataclass(frozen=True, eq=False)
class Publisher:
    """Makes clusters' models from sums of updates (`engine.stages.Release`): ``sent + (sum + noise) / denominator``.

    The denominator is the weight of the planned clients, whoever answered. For clusters that clients choose, it is the
    noisy weight of those that did, or with `over_cohort` that of the whole cohort.

    Attributes:
        clusters: number of clusters, P.
        chosen: whether clients choose their clusters.
        over_cohort: whether models are divided by the whole cohort (moments never are).
    """

    mechanism: Mechanism
    shape: Shape
    noise: Noise
    clusters: int
    chosen: bool
    over_cohort: bool

    @property
    def counted(self) -> bool:
        """Whether the clients that choose each cluster are counted."""
        needed = not self.over_cohort or self.mechanism.quantile is not None
        return self.chosen and (needed or any("@" in name for name in self.shape.tensors))

    @property
    def cost(self) -> Cost:
        """The cost of an average to each client that takes part in it."""
        return self.mechanism.cost(self.clusters, self.chosen, self.counted)

    def publish(
        self,
        event: Event,
        repeat: int,
        sent: Mapping[int, Model],
        combined: Mapping[int, ClusterUpdate],
        weights: Mapping[int, float],
    ) -> dict[int, Model]:
        """Return each cluster's next model."""
        if not len(event.cohort):
            return dict(sent)
        own, whole = self._denominators(event, repeat, sent, weights), float(event.weights.sum())
        made = {}
        for cluster, update in combined.items():
            start = sent[cluster]
            total = self._noisy((event.index, repeat, cluster), start, update)
            shares = {name: whole if self.over_cohort and "@" not in name else own[cluster] for name in total}
            made[cluster] = self.shape.moved(start, {name: each / shares[name] for name, each in total.items()})
            if self.mechanism.quantile is not None:
                made[cluster][CLIP] = self._adapted((event.index, repeat, cluster), start, update, own[cluster])
        return made

    def _noisy(self, key: tuple[int, int, int], start: Model, update: ClusterUpdate) -> Update:
        """Return a cluster's sum, with noise unless clients have added theirs; noise alone if no client answered."""
        device, wanted = _device_of(start), self.mechanism
        total = self.shape.only(update.model) if update.arrived else self.shape.zeros(device)
        if wanted.is_local or not wanted.noise:
            return total
        deviation = wanted.noise * clip_of(start, wanted.clip)
        added = self.shape.noise(self.noise("privacy", *key), deviation, device)
        return {name: each + added[name] for name, each in total.items()}

    def _adapted(
        self, key: tuple[int, int, int], start: Model, update: ClusterUpdate, denominator: float
    ) -> torch.Tensor:
        """Return the next clipping norm, moved toward the quantile of the current norms by a noisy share."""
        wanted = self.mechanism
        assert wanted.quantile is not None
        fitting = float(update.model[CLIP]) if update.arrived else 0.0
        fitting += (wanted.quantile_noise or 0.0) * float(self.noise("privacy quantile", *key)(1)[0])
        share = fitting / denominator + 0.5
        step = min(wanted.quantile_rate * (wanted.quantile - share), 700.0)  # e^700 is a number
        wished = clip_of(start, wanted.clip) * math.exp(step)
        longest = min(max(wished, wanted.clip / MOST_CHANGE), wanted.clip * MOST_CHANGE)
        return torch.tensor(longest, dtype=torch.float64, device=_device_of(start))

    def _denominators(
        self, event: Event, repeat: int, clusters: Mapping[int, Model], weights: Mapping[int, float]
    ) -> dict[int, float]:
        """Return the divisor of each cluster's sum."""
        if event.clusters is not None:
            planned = np.bincount(event.clusters, event.weights, self.clusters)
            return {cluster: float(planned[cluster]) for cluster in clusters}
        counts = np.array([weights.get(cluster, 0.0) for cluster in clusters])
        if self.counted and not self.mechanism.is_local:
            draw = self.noise("privacy counts", event.index, repeat)
            counts = counts + draw(len(counts)) * (self.mechanism.count_noise or 0.0)
        return dict(zip(clusters, np.maximum(counts, self.mechanism.least_clients).tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class NoisyClient:
    """The client half if only the client is trusted: it clips its update, and adds its own noise."""

    mechanism: Mechanism
    shape: Shape
    noise: Noise

    def send(self, task: ClientTask, trained: ClientUpdate) -> ClientUpdate:
        """Return the clipped update with noise, and no loss."""
        longest = self.mechanism.clip
        update = clip(self.shape.difference(trained.model, task.start), longest)
        if self.mechanism.noise:
            draw = self.noise("client privacy", *task.key)
            added = self.shape.noise(draw, self.mechanism.noise * longest, _device_of(update))
            update = {name: each + added[name] for name, each in update.items()}
        moved = self.shape.moved(task.start, update)
        # In the trainer's order, which codecs use; a fleet's messages have another.
        return ClientUpdate({name: moved[name] for name in trained.model}, float("nan"))


def make_private(method: Method, mechanism: Mechanism, shape: Shape, sizes: Ids, noise: Noise) -> Method:
    """Return the method with its clients' updates clipped, and noise added where trust ends."""
    chosen, over_cohort = method.assign is least_loss, method.combine is average_gradients
    if chosen:
        require_hidden_choice(mechanism, counts=not over_cohort or method.rule.carry_moments)
    publisher = Publisher(mechanism, shape, noise, method.schedule.clusters, chosen, over_cohort)
    local, told = mechanism.is_local, f"privacy.trust = {mechanism.trust!r}"
    stage = Stage(
        name="privacy",
        told=told,
        send=NoisyClient(mechanism, shape, noise).send if local else None,
        assign=ToldAtRandom(mechanism, noise) if chosen and local else None,
        combine=SumOfUpdates(shape, None if local else mechanism.clip, adapts=mechanism.quantile is not None),
        release=publisher,
        tells_loss=not local,
        cost=publisher.cost,
        digest=asdict(mechanism),
        needs=(PROVEN | BY_CLIENTS) if local else (PROVEN | BY_SERVER),
        lacks={Need.BOUNDED: told} if local else {},
    )
    method = method.with_stage(stage)
    schedule = replace(
        method.schedule, events=pack(replace(e, weights=_weights(e, sizes, mechanism)) for e in method.schedule.events)
    )
    return replace(method, schedule=schedule, arrivals=None)


def _weights(event: Event, sizes: Ids, mechanism: Mechanism) -> Floats:
    """Return the weights of a cohort's clients, at most 1 each."""
    cap = mechanism.samples_cap
    return np.ones(len(event.cohort)) if cap is None else np.minimum(sizes[event.cohort] / cap, 1.0)


def _device_of(model: Model) -> torch.device:
    return next(iter(model.values())).device
