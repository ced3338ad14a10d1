"""A node: its owner's copy of the settings, its clients' samples, and what it reports about them."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import nn

from atoll.clustering.clustering import Clustering
from atoll.data.dataset import Dataset
from atoll.data.population import Population, make_population
from atoll.engine.assignment import as_scheduled
from atoll.engine.chain import Chain
from atoll.engine.method import Method
from atoll.experiment.chosen_stages import add_stages, choose_clients
from atoll.experiment.executor_choice import require_states_apart
from atoll.experiment.modules import draw_module, make_chain, make_rule
from atoll.experiment.privacy import read_mechanism
from atoll.fleet.agreed.agreement import Agreement, DataForm, agree, require_fleet
from atoll.fleet.agreed.messages import Refused
from atoll.fleet.agreed.randomised_response import LEAST_EPSILON
from atoll.fleet.node.epsilon_ledger import with_epsilon
from atoll.fleet.node.noise_added import Choosing, Hidden
from atoll.fleet.node.open_sums import OpenSums
from atoll.fleet.node.shards import FORM, read_shard, shard_folder
from atoll.fleet.node.work_count import RUNS, WorkBudget
from atoll.local.weights import check_outputs, place, require_device
from atoll.network.network_files import matrix_network
from atoll.privacy.accounting import require_accounting
from atoll.privacy.mechanism import Cost, Mechanism
from atoll.privacy.noise import from_system
from atoll.schedules.clock import Clock
from atoll.secure.participant import Identity
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call
from atoll.settings.validation import Settings
from atoll.support.arrays import Ids
from atoll.support.errors import InputError


@dataclass(frozen=True)
class Reporting:
    """What a node reports besides the number of samples; nothing by default.

    Attributes:
        epsilon: of the randomised response that reports class counts; None: they are exact.
        utc_offset: hours from UTC where the node is.
        slots: slots of the day in which it can train, as counted by `faults.slots_per_day`.
        hidden: how samples, classes and losses are made private; None: they are not.
    """

    class_counts: bool = False
    epsilon: float | None = None
    utc_offset: float | None = None
    slots: tuple[int, ...] | None = None
    hidden: Hidden | None = None

    def __post_init__(self) -> None:
        """Reject values that no server would accept."""
        if self.epsilon is not None and not LEAST_EPSILON <= self.epsilon < np.inf:
            raise InputError(f"epsilon = {self.epsilon}: must be at least {LEAST_EPSILON} and finite")
        if self.epsilon is not None and not self.class_counts:
            raise InputError(f"epsilon = {self.epsilon}: needs class_counts (--class-counts), which it randomises")
        if self.epsilon is not None and self.hidden is not None:
            raise InputError(
                f"epsilon = {self.epsilon}: cannot be used with [reports] of node.toml, which hides classes too"
            )
        if self.utc_offset is not None and not -24 <= self.utc_offset <= 24:
            raise InputError(f"utc_offset = {self.utc_offset}: must be from -24 to 24 hours")
        if self.slots is not None and not all(0 <= slot < 86_400 for slot in self.slots):
            raise InputError(f"slots = {list(self.slots)}: must be from 0 to 86399")


@dataclass(frozen=True, eq=False)
class Node:
    """A node's side of an experiment. The server sends no code and only the settings that `sites` allows, and receives
    no samples.

    Attributes:
        population: the clients' samples, and one stand-in sample for every other client.
        measures: models whose losses the owner's copy of the method needs at a time; 0: none.
        counted_as: the digest under which its work is counted.
        told: settings that the server has chosen, for the owner to read.
        cost: privacy cost of a training, with clients that trust nobody; None: it adds no noise.
        chooses: reports a random cluster instead of losses; None: losses are reported.
        sums: secure sums in progress; None: updates leave the node one by one.
    """

    agreement: Agreement
    clients: tuple[int, ...]
    population: Population
    trainer: Chain
    device: str
    reporting: Reporting
    measures: int
    budget: WorkBudget
    counted_as: str
    told: str = ""
    cost: Cost | None = None
    chooses: Choosing | None = None
    sums: OpenSums | None = None

    @property
    def hides_losses(self) -> Choosing | Hidden | None:
        """How losses are made private; None: they are not."""
        hidden = self.reporting.hidden
        return self.chooses or (hidden if hidden is not None and hidden.most_loss is not None else None)

    def find(self, digest: str, told: Mapping[str, Any] | None = None) -> "Node":
        """Return itself, if the server's settings have its digest."""
        if digest != self.agreement.digest:
            raise Refused("wrong_settings", "the server's settings are others than this node's")
        return self


class Side(Protocol):
    """Something that carries out tasks: one `Node`, or one for each of an owner's runs (`sites.Sites`)."""

    @property
    def clients(self) -> tuple[int, ...]:
        """Its clients."""

    def find(self, digest: str, told: Mapping[str, Any] | None = None) -> Node:
        """Return the node whose settings have this digest; `told` are they, if announced (`terms.announce`)."""


def open_site(
    settings: Settings,
    folder: Path,
    client: int | Sequence[int],
    reporting: Reporting | None = None,
    budget: WorkBudget | None = None,
    identity: Identity | None = None,
) -> Node:
    """Return a node's side of an experiment.

    Args:
        folder: holds the client's samples (`read_shard`); several clients have one folder each, ``client-NUMBER``.
        budget: limits on its work; without one on losses, or on trainings beside private reports, that of
            `work_count.RUNS` whole runs.
    """
    require_fleet(settings)
    shards = _read_shards(settings, folder, client)
    clients, reporting = tuple(shards), reporting or Reporting()
    if reporting.hidden is not None:
        require_accounting()
    if reporting.class_counts and not shards[clients[0]].classes:
        raise InputError("class_counts = true: the data have real numbers as targets, not classes")
    population = _population(shards, settings.data.clients)
    module = draw_module(settings, population.data)
    check_outputs(module, population.data.shape, population.data.outputs, settings.model.name)
    own = np.isin(np.arange(len(population)), clients)
    method = make_method(settings, np.where(own, population.sizes, population.sizes.max() + 1), module)
    agreement = agree(settings, population.data, module, method)
    device = require_device(settings.run.device)
    # Tolerant: the server should reject a bad result for its reason, not for a failure.
    trainer = make_chain(settings, method, place(module, device), population, device, tolerant=True)
    measures = 0 if method.assign is as_scheduled else method.schedule.clusters
    mechanism = read_mechanism(settings)
    local = mechanism if mechanism is not None and mechanism.is_local else None
    return Node(
        agreement=agreement,
        clients=clients,
        population=population,
        trainer=trainer,
        device=device,
        reporting=reporting,
        measures=measures,
        budget=_limit(budget or WorkBudget(), RUNS * _trainings(settings), measures, local, reporting),
        counted_as=agreement.digest,
        cost=None if local is None else Cost((local.noise,), local.adjacency),
        chooses=Choosing(local, measures) if local is not None and measures else None,
        sums=_open_sums(agreement, identity),
    )


def _read_shards(settings: Settings, folder: Path, client: int | Sequence[int]) -> dict[int, Dataset]:
    """Return the samples of each client."""
    clients = (client,) if isinstance(client, int) else tuple(client)
    most = settings.data.clients - 1
    if not clients or len(set(clients)) < len(clients) or not all(0 <= each <= most for each in clients):
        raise InputError(f"client = {client}: must be from 0 to data.clients - 1 = {most}, each once")
    folders = [folder] if isinstance(client, int) else [shard_folder(folder, each) for each in clients]
    shards = {each: read_shard(settings, own) for each, own in zip(clients, folders, strict=True)}
    first, *others = map(DataForm.of, shards.values())
    if other := [own for own, form in zip(folders[1:], others, strict=True) if form != first]:
        raise InputError(f"{other[0]}: has samples of another form than {folders[0]}; {FORM} must be the same in both")
    return shards


def _trainings(settings: Settings) -> int:
    """Return how often a run trains a client that takes part in every round."""
    steps = settings.local.steps if method_kind(settings).rounds_are_local_steps else 1
    return math.ceil(settings.rounds / steps)


def _limit(budget: WorkBudget, rounds: int, measures: int, local: Mechanism | None, reporting: Reporting) -> WorkBudget:
    """Return the budget with limits on losses and on epsilon, and on trainings where only reports are private."""
    if budget.losses is None:
        budget = replace(budget, losses=rounds * measures)
    if budget.trainings is None and local is None and (reporting.epsilon or reporting.hidden):
        budget = replace(budget, trainings=rounds)  # models say more about the classes with every training
    exactly = reporting.class_counts and reporting.epsilon is None and reporting.hidden is None
    return with_epsilon(budget, local, exactly)


def _open_sums(agreement: Agreement, identity: Identity | None) -> OpenSums | None:
    """Return the node's side of secure sums; None without them."""
    if agreement.fixed is None:
        return None
    if identity is None:
        raise InputError(
            "secure.sums = true: this node does not know the other nodes' public keys; put the fleet's peers.toml, of "
            "whose keys you are sure, beside node.toml"
        )
    return OpenSums(identity, agreement.fixed)


def make_method(settings: Settings, sizes: Ids, module: nn.Module) -> Method:
    """Return the method as a node needs it: local rule, trainer, stages, and whether losses are needed.

    A node knows neither the other clients nor the network, so it uses stand-ins in the same number.
    """
    section, clients = settings.method, len(sizes)
    clusters = min(settings.clustering.clusters, clients)
    others = [[near for near in range(clusters) if near != each] for each in range(clusters)]
    rule = make_rule(settings)
    # A user's method may depend on the number of rounds in any way; rates are by round, and resampling splits data so.
    all_rounds = ":" in section.name or section.get("resample") or rule.rates
    given: Mapping[str, Any] = {
        **dict(section),
        "population": _stand_in_clients(sizes),
        "clustering": Clustering(np.arange(clients) % clusters, clusters),
        "network": matrix_network(np.ones(clients), np.ones((clients, clusters)), neighbours=others),
        "rule": rule,
        "rounds": settings.rounds if all_rounds else section.get("intra_rounds", 1) * rule.steps,
        "clock": Clock(np.ones(clients), np.ones(clients), np.inf),
        "seed": settings.seed,
        "module": deepcopy(module),
    }
    method = call("method.name", method_kind(settings).make, given, section.model_extra)
    if not isinstance(method, Method):
        raise InputError(
            f"method.name = {section.name!r}: must return an atoll.Method, it returned {type(method).__name__!r}"
        )
    require_states_apart(method)
    method = choose_clients(settings, method, given["population"], given["clock"])
    return add_stages(settings, method, sizes, deepcopy(module), from_system, attacked=False)


def _population(shards: Mapping[int, Dataset], clients: int) -> Population:
    """Return a population in which these clients hold these samples, and every other client the first one."""
    data, *others = shards.values()
    if others:
        inputs = np.concatenate([each.inputs for each in shards.values()])
        data = replace(data, inputs=inputs, targets=np.concatenate([each.targets for each in shards.values()]))
    parts = [np.zeros(1, np.int32)] * clients
    ends = np.cumsum([len(shard.inputs) for shard in shards.values()])
    for client, own in zip(shards, np.split(np.arange(ends[-1], dtype=np.int32), ends[:-1]), strict=True):
        parts[client] = own
    return make_population(data, parts)


def _stand_in_clients(sizes: Ids) -> Population:
    """Return clients of these sizes that all hold one dummy sample."""
    nothing = np.zeros((1, 1), np.float32)
    data = Dataset("stand-in", nothing, nothing[0], nothing, nothing[0], classes=0, loss="squared")
    return Population(data, np.broadcast_to(np.int32(0), sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]))
