"""FedDrift: clusters that split and merge as clients' concepts drift (Jothimurugesan et al. 2023)."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from atoll.aggregation.mean import mean
from atoll.data.population import Population
from atoll.engine.cohorts import Executor
from atoll.engine.method import Method
from atoll.engine.run_state import State, with_newer
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import Turn, apart
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.limits import NotNegative, Positive

Variant = Literal["feddrift", "eager", "oracle"]


@checked
def feddrift(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: Positive = 4,
    delta: NotNegative = 0.1,
    variant: Variant = "feddrift",
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedDrift: a client whose loss rises starts a cluster; clusters whose models suit each other's data merge.

    Jothimurugesan, Hsieh, Wang, Joshi and Gibbons 2023, "Federated Learning under Distributed Concept Drift",
    Algorithms 1 and 2. New data arrive in time steps, the phases of ``[drift]``. At the start of a step each client c
    finds the cluster m of least loss on its new data, ``l = min_m loss_m``, and keeps to it unless
    ``l > l(step before) + delta``: then it has drifted. In FedDrift each drifted client starts a cluster of its own; in
    FedDrift-Eager (`variant` eager) all start one together. FedDrift then merges older clusters i and j by complete
    linkage while ``max(L_ij - L_ii, L_ji - L_jj, 0) <= delta``, where L_ij is the loss of model i on all data of j; a
    merged model is the mean, weighted by samples. Data stay with their cluster: in every round each client trains the
    models of all clusters that are in use and hold data of its, on these. `variant` oracle knows the groups instead.

    As in the authors' code a new cluster starts from its client's best model, and takes the place of the one unused for
    longest, whose data are forgotten; if all are in use, there is none. The loss of the first step is that after it,
    since no model was trained before. The schedule's models and updates are upper bounds, as clusters are found only
    during the run: in step t a client has data of at most t clusters.

    Args:
        rule: the local training rule; its epochs count the samples of one step.
        clusters: maximum number of clusters; the paper sets no limit.
        delta: rise of the loss that means drift, and distance up to which clusters merge.
        variant: feddrift, eager, or oracle.
        clock: clients' training and upload times; all of a client's models take as long as one. None: one second.
        seed: unused, as all clients train.

    Raises:
        InputError: more clusters than clients, or for the oracle groups than clusters, or a single group that changes.
    """
    from atoll.methods.parts.recalling_trainer import RecallingTrainer  # late: reading settings needs no PyTorch

    everyone, steps = np.arange(len(population)), population.phase_rounds
    held = (min(population.phase_of(j) + 1, clusters) for j in range(rounds))  # models that a client may have data of
    turns = (Turn(np.tile(everyone, models), j) for j, models in enumerate(held))
    schedule = apart(population, clusters, turns, rounds, clock)
    own = np.repeat(np.arange(clusters), len(everyone))
    asked = len(own) * (variant != "oracle")  # all models, on whose losses clusters depend
    events = (
        replace(e, clusters=own[: len(e.cohort)], models_down=e.models_down + asked * (e.round in steps[1:]))
        for e in schedule.events
    )
    return Method(
        replace(schedule, events=tuple(events)),
        rule,
        trainer=RecallingTrainer,
        labels=np.zeros_like(everyone),
        prepare=Drifting(population, clusters, delta, variant),
    )


@dataclass(frozen=True, eq=False)
class Drifting:
    """Finds clusters at the start of each step, and who trains them in each round."""

    population: Population
    clusters: int
    delta: float
    variant: Variant

    def __post_init__(self) -> None:
        """Refuse more groups than clusters, or changes within one group, if groups are to be known."""
        most = 1 + max(int(own.max()) for own in self._concepts()) if self.variant == "oracle" else 0
        if most > self.clusters:
            raise InputError(f"method.clusters = {self.clusters}: the oracle needs one for each of {most} groups")
        if most == 1 and self.population.later:
            raise InputError("method.variant = 'oracle': needs several planted groups, and all data are of one")

    def __call__(self, event: Event, state: State, executor: Executor) -> tuple[Event, State]:
        """Return the event with who trains which cluster, and the state with the clusters of its step."""
        from atoll.methods.parts.recalling_trainer import recalled, remembered

        step = self.population.phase_of(event.round)
        if event.round == self.population.phase_rounds[step]:
            found = self._begin(step, state, recalled(state.clients) if step else None, executor)
            starts, clients = tuple(found.models), with_newer(state.clients, remembered(found.past, found.losses))
            state = replace(state, starts=starts, published=starts, labels=found.past[step], clients=clients)
        past, _ = recalled(state.clients)
        return self._enlist(event, past, np.unique(past[step])), state

    def _begin(self, step: int, state: State, before: tuple[Ids, Floats] | None, executor: Executor) -> "Found":
        """Return the clusters of a new step."""
        steps, clients = len(self.population.phase_rounds), len(self.population)
        past, losses = before or (np.full((steps, clients), -1), np.zeros(clients))
        found = Found(past, losses, list(state.starts))
        if self.variant == "oracle":
            past[step] = self._concepts()[step]
        elif step == 0:
            past[0] = 0
        else:
            self._recluster(step, found, executor)
        return found

    def _recluster(self, step: int, found: "Found", executor: Executor) -> None:
        """Let clients choose their clusters, start new ones if they have drifted, and merge older ones."""
        past, everyone, used = found.past, np.arange(len(self.population)), np.unique(found.past[found.past >= 0])
        losses = np.full((step + 1, len(everyone), self.clusters), np.inf)  # of each model on each step's data
        for earlier, first in enumerate(self.population.phase_rounds[: step + 1]):
            losses[earlier][:, used] = executor.losses([found.models[m] for m in used], everyone, first)
        best, least = losses[step].argmin(axis=1), losses[step].min(axis=1)
        before = losses[0, everyone, past[0]] if step == 1 else found.losses
        past[step], found.losses = best, least
        drifted = np.flatnonzero(least > before + self.delta)
        for own in [drifted] if self.variant == "eager" else drifted[:, None]:
            if len(own) and (free := self._free(past, step)) is not None:
                past[past == free] = -1
                past[step, own], found.models[free] = free, found.models[best[own[0]]]
                used = used[used != free]
        if self.variant == "feddrift" and len(used) > 1:
            self._merge(found, used, losses)

    def _free(self, past: Ids, step: int) -> int | None:
        """Return the cluster that was not in use for longest; None if all are in use."""
        last = [max(np.flatnonzero((past == m).any(axis=1)).tolist(), default=-1) for m in range(self.clusters)]
        return None if min(last) == step else int(np.argmin(last))

    def _merge(self, found: "Found", used: Ids, losses: Floats) -> None:
        """Merge clusters by complete linkage up to the threshold, each into its first."""
        from scipy.cluster.hierarchy import fcluster, linkage

        weights = np.stack([(found.past[: len(losses)] == m) * self.population.sizes for m in used])
        table = np.einsum("jtk,tki->ij", weights, losses[:, :, used]) / weights.sum(axis=(1, 2))  # L_ij
        rise = np.maximum(table - np.diag(table)[:, None], 0)
        apart = np.maximum(rise, rise.T)[np.triu_indices(len(used), 1)]
        merged = fcluster(linkage(apart, "complete"), self.delta, "distance")
        for cluster in np.unique(merged):
            own = np.flatnonzero(merged == cluster)
            found.models[used[own[0]]] = mean((float(weights[i].sum()), found.models[used[i]]) for i in own)
            found.past[np.isin(found.past, used[own])] = used[own[0]]

    def _enlist(self, event: Event, past: Ids, used: Ids) -> Event:
        """Return the event in which clients train every cluster in use that holds data of theirs."""
        held = np.stack([(past == m).sum(axis=0) for m in used])  # steps, [clusters in use, clients]
        rows, cohort = np.nonzero(held)
        weights = (self.population.sizes[cohort] * held[rows, cohort]).astype(float)
        return replace(event, cohort=cohort, clusters=used[rows], weights=weights)

    def _concepts(self) -> list[Ids]:
        """Return each client's planted group in each step."""
        return [self.population.at(first).groups() for first in self.population.phase_rounds]


@dataclass
class Found:
    """What holds at the start of a step.

    Attributes:
        past: the cluster that each client's data of each step belong to, [steps, clients]; -1: none.
        losses: each client's loss, [clients].
        models: each cluster's model.
    """

    past: Ids
    losses: Floats
    models: list[Model]
