"""From settings to objects: data, population, clustering, module and method of one run."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from atoll.clustering.clustering import Clustering, one_cluster, without_empty
from atoll.clustering.feduc.problem import Problem
from atoll.clustering.feduc.summary import ClusteringSummary, make_plan
from atoll.clustering.feduc.time_budget import within
from atoll.clustering.named_clusterings import CLUSTERINGS
from atoll.data.population import Population
from atoll.engine.chain import Chain
from atoll.engine.cohorts import Executor
from atoll.engine.engine import Method
from atoll.engine.stages import sent_form
from atoll.evaluation.scores import ClusterEvaluator, Evaluator
from atoll.experiment.clients import make_all_clients, make_test_clients
from atoll.experiment.clock import make_clock
from atoll.experiment.clusterings import make_clustering
from atoll.experiment.executor_choice import ExecutorChoice, choose_executor, make_executor, require_measuring
from atoll.experiment.faults import add_faults, as_claimed, make_availability, require_single_results
from atoll.experiment.feduc_problem import make_problem
from atoll.experiment.method import make_method, until
from atoll.experiment.modules import draw_module, make_chain, make_rule, rehearse
from atoll.experiment.networks import is_clustered_anew, is_same_network, make_networks
from atoll.experiment.privacy import Private, plan_privacy, read_mechanism
from atoll.experiment.secure import check_cohorts
from atoll.experiment.selecting import choose_clients
from atoll.experiment.stages import add_stages, upload_share
from atoll.faults.availability import Availability
from atoll.local.models import Model, form_of, without
from atoll.local.rule import LocalRule
from atoll.local.task import ClientUpdate
from atoll.local.trainer import carried_bytes
from atoll.local.travel import staying
from atoll.local.weights import bytes_of_form, check_outputs, count_bytes, place, read_model, require_device
from atoll.methods.papers.hierarchical import Phase
from atoll.methods.papers.ifca import choose_start
from atoll.network.network import Network
from atoll.privacy.noise import from_seed, from_system
from atoll.schedules.events import Clock, Event, Schedule
from atoll.schedules.schedule_files import fitting
from atoll.settings.choices import method_kind
from atoll.settings.experiment_file import make_runs, resolved
from atoll.settings.given_objects import named
from atoll.settings.plugins import call, resolve
from atoll.settings.sections import Settings
from atoll.settings.signatures import asks_for
from atoll.support.errors import InputError
from atoll.support.requiring import require


@dataclass(frozen=True, eq=False)
class ReportedClients:
    """What an experiment's plans are made by in the place of what its settings make.

    Attributes:
        population: as its clients report it. Training and probes on this machine do not go by it.
        clustering: None: made from the rest.
        network: None: the settings'.
    """

    population: Population
    clustering: Clustering | None = None
    network: Network | None = None


@dataclass(frozen=True, init=False)
class Experiment:
    """The objects of one run, each made from the settings when it is first asked for.

    Settings may be given by name, and functions and data sets as they are; an object, or a name, in the place of a
    section stands for its clustering, method, model or data set. Whatever is wrong with the settings comes out as an
    `InputError` from the property that meets it.

    >>> Experiment(
    ...     clustering=lambda population, clusters: [k % clusters for k in range(len(population))]
    ... ).clustering.sizes
    array([10, 10, 10, 10, 10, 10, 10, 10, 10, 10])

    Attributes:
        settings: all settings.
        schedule: one to replay in the place of the method's own; None: none.
        known: what plans are made by in the place of what the settings make; None: nothing.
    """

    settings: Settings
    schedule: Schedule | None = None
    known: ReportedClients | None = None

    def __init__(
        self,
        settings: Settings | None = None,
        schedule: Schedule | None = None,
        known: ReportedClients | None = None,
        **changes: Any,
    ) -> None:
        """Lay changes by name, such as ``rounds=5`` or ``clustering=function``, over the settings or the defaults.

        Raises:
            InputError: a setting that is unknown, of a wrong type or out of range.
        """
        if not isinstance(settings, Settings | None):
            raise InputError(
                "Experiment: takes Settings, or settings by name; those of a recipe or a file are "
                "atoll.make_runs(atoll.read_experiment(NAME))"
            )
        require("schedule", schedule, Schedule | None)
        if changes or settings is None:
            (settings,) = make_runs({} if settings is None else resolved(settings), None, named(changes))
        for name, value in (("settings", settings), ("schedule", schedule), ("known", known)):
            object.__setattr__(self, name, value)

    def given(self, known: ReportedClients) -> "Experiment":
        """Return the experiment with other knowledge of its clients; what does not depend on it is shared."""
        made = replace(self, known=known)
        for name in ("_all_clients", "clients", "test_clients", "population", "module"):
            if name in vars(self):
                vars(made)[name] = vars(self)[name]
        return made

    def beside(self, settings: Settings) -> "Experiment":
        """Return the experiment with other settings; clients, model and network are shared where these make the same.

        For comparing many plans of one fleet, whose network alone may take a gigabyte.
        """
        made, before = Experiment(settings), self.settings
        shared = list[str]()
        if all(getattr(settings, name) == getattr(before, name) for name in ("seed", "data", "faults", "travel")):
            shared += ["_all_clients", "clients", "test_clients"]
            if settings.method.name == before.method.name and settings.network == before.network:
                shared.append("availability")
            own_modules = method_kind(settings).module or method_kind(before).module
            if settings.model == before.model and not own_modules:
                shared += ["module", *(["networks"] if is_same_network(settings, before) else [])]
        vars(made).update({name: vars(self)[name] for name in shared if name in vars(self)})
        return made

    @cached_property
    def clients(self) -> Population:
        """The population as the partition makes it."""
        return self._all_clients[0]

    @property
    def new_clients(self) -> Population | None:
        """Clients that never train (`data.held_out_clients`); None: there are none."""
        return self._all_clients[1]

    @cached_property
    def _all_clients(self) -> tuple[Population, Population | None]:
        return make_all_clients(self.settings)

    @cached_property
    def test_clients(self) -> Population:
        """Clients that hold the test samples."""
        return make_test_clients(self.settings, self.clients)

    @cached_property
    def population(self) -> Population:
        """The population that trains: one client with all samples for the centralised baseline, or such parties."""
        make = method_kind(self.settings).population
        if make is None:
            return self.clients
        return call("method.name", make, {**dict(self.settings.method), "population": self.clients})  # type: ignore[no-any-return]

    @cached_property
    def reported(self) -> Population:
        """The population as its clients report it, which clusterings and schedules are made by."""
        return as_claimed(self.settings, self.population) if self.known is None else self.known.population

    @cached_property
    def clustering(self) -> Clustering:
        """The clustering, for clients that move the first; a single cluster where the method has no use for one."""
        if self.known is not None and self.known.clustering is not None:
            return self.known.clustering
        return self._make_clustering(0) if self.needs("clustering") else one_cluster(len(self.population))

    @cached_property
    def networks(self) -> dict[int, Network]:
        """The network from round 0 on, and for clients that move from each round on that changes something."""
        if self.known is not None and self.known.network is not None:
            return {0: self.known.network}
        return make_networks(self.settings, self.reported.sizes, self._bytes_without(self._staying), self._upload_share)

    @cached_property
    def problem(self) -> Problem:
        """What FedUC's clustering is given, on the network of round 0."""
        return make_problem(self.settings, self.reported, self.networks[0], deepcopy(self.module))

    @cached_property
    def plan(self) -> ClusteringSummary:
        """What the clustering comes to on the network of round 0."""
        wanted = self.settings.clustering
        seconds = wanted.get("seconds") if wanted.get("objective") == "time" else None
        problem = self.problem if seconds is None else within(self.problem, seconds)
        return make_plan(self.population, self.clustering, problem)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The network and the clustering from each round on; without moving clients, one phase."""
        phases = [Phase(0, self.clustering, self.networks[0])]
        for round_, network in list(self.networks.items())[1:]:
            anew = is_clustered_anew(self.settings, round_)
            clustering = self._make_clustering(round_) if anew else phases[-1].clustering
            phases.append(Phase(round_, clustering, network))
        return tuple(phases)

    def samples_of_clusters(self, round_: int) -> npt.NDArray[np.int64]:
        """Return the samples that each cluster's clients hold at this round, [clusters]."""
        phase = [phase for phase in self.phases if phase.round <= round_][-1]
        labels, sizes = phase.clustering.labels, self.reported.sizes
        return np.bincount(labels[labels >= 0], sizes[labels >= 0], phase.clustering.clusters).astype(np.int64)

    def needs(self, name: str) -> bool:
        """Return whether the method asks for an object of this name, such as ``clustering`` or ``network``."""
        return asks_for(method_kind(self.settings).make, name)

    @property
    def has_network(self) -> bool:
        """Whether the method, or its clustering, asks for a network."""
        rule = resolve("clustering.method", self.settings.clustering.method, CLUSTERINGS)
        asks = asks_for(rule, "network") or asks_for(rule, "problem")
        return self.needs("network") or (self.needs("clustering") and asks)

    def _make_clustering(self, round_: int) -> Clustering:
        """Make the clustering from the state of things at a round."""
        offered = {
            "network": lambda: self.networks[round_],
            "problem": lambda: replace(self.problem, network=self.networks[round_]),
            "clock": lambda: self.clock,
        }
        return make_clustering(self.settings, self.reported, round_, offered, may_empty=self.has_network)

    @cached_property
    def module(self) -> nn.Module:
        """The initial model, drawn from the seed."""
        data = self.clients.data
        module = draw_module(self.settings, data)
        check_outputs(module, data.shape, data.outputs, self.settings.model.name)
        return module

    @cached_property
    def rule(self) -> LocalRule:
        """The local rule."""
        return make_rule(self.settings)

    @cached_property
    def clock(self) -> Clock:
        """Seconds that each client's work takes."""
        made = make_clock(self.settings, len(self.clients), self.population.sizes, self.rule, self._upload_share)
        return made if self.availability is None else replace(made, pace=self.availability.pace)

    @cached_property
    def availability(self) -> Availability | None:
        """When clients are there, and how their speeds change; None: always there, and always as fast."""
        return make_availability(self.settings, len(self.population))

    @property
    def method(self) -> Method:
        """The method, with its whole schedule; with privacy, to the end of its budget."""
        return self._made[0]

    @property
    def private(self) -> Private | None:
        """What the privacy of the clients costs; None: the settings want none of it."""
        return self._made[1]

    @cached_property
    def _made(self) -> tuple[Method, Private | None]:
        """The method, and what its privacy costs."""
        settings, sizes = self.settings, self.reported.sizes
        mechanism = read_mechanism(settings)
        if mechanism is not None and self.schedule is not None:
            raise InputError(
                f"--schedule: does not go with privacy.trust = {mechanism.trust!r}, which accounts for the method's own"
            )
        fleet = settings.run.executor == "fleet"
        noise = from_system if fleet else from_seed(settings.seed)
        method = add_stages(settings, self._bare_method(), sizes, self._copy_module(), noise)
        if self.schedule is not None:
            replayed = fitting(self.schedule, method.schedule, len(self.population))
            method = replace(method, schedule=replayed, arrivals=None)
        check_cohorts(method, sizes)
        if mechanism is None:
            return method, None
        cost = next(stage.cost for stage in method.stages if stage.cost)
        private = plan_privacy(settings, mechanism, method.schedule, cost, len(self.reported))
        return replace(method, schedule=private.plan.schedule), private

    def _bare_method(self) -> Method:
        """Return the method without the stages that the settings add."""
        clock = self.clock if self.needs("clock") else None
        method = make_method(self.settings, self._offered(), len(self.population), lambda: self.phases)
        method = choose_clients(self.settings, method, self.reported, clock)
        method = until(self.settings, method)
        return add_faults(self.settings, method, self.population, clock, self.availability)

    def _offered(self) -> dict[str, Any]:
        """Return what a method may ask for, besides its own settings and the phases."""
        offered: dict[str, Any] = {
            "population": self.reported,
            "clustering": self.clustering if self.needs("network") else without_empty(self.clustering),
            "rule": self.rule,
            "rounds": self.settings.rounds,
            "clock": self.clock,
            "deadline_seconds": self.settings.faults.deadline_seconds,
            "pace": None if self.availability is None else self.availability.pace,
            "seed": self.settings.seed,
        }
        if self.needs("network"):
            offered["network"] = self.networks[0]
        if self.needs("module"):
            offered["module"] = self._copy_module()
        return offered

    @cached_property
    def _staying(self) -> tuple[str, ...]:
        """What the settings do not let travel."""
        return staying(self.module, self.settings.model.travels)

    @property
    def model_bytes(self) -> int:
        """Bytes of what travels of one model."""
        return self._bytes_without(self.method.stays)

    def _bytes_without(self, names: tuple[str, ...]) -> int:
        return count_bytes(without(self.module.state_dict(), names))

    @cached_property
    def sent_bytes(self) -> int:
        """Bytes of a model that is sent, with the moments that travel with it (CFL-MGD's u_p)."""
        known = self.model_bytes + carried_bytes(self.method.rule, self._copy_module())
        changed = self.method.trainer is not None or any(stage.is_at_client for stage in self.method.stages)
        update = self._rehearse() if changed else None
        return known if update is None else max(known, count_bytes(update.model))

    @property
    def message_bytes(self) -> int:
        """Bytes of what an event's `models_down` and `models_up` count, unless the schedule says otherwise: models."""
        size = self.method.schedule.message_bytes
        return self.sent_bytes if size is None else size

    @cached_property
    def update_bytes(self) -> int:
        """Bytes of what a client sends up: a message, or its update as `travel.codec` codes it, or masked."""
        update = self._rehearse()
        form = form_of(self._start() if update is None else update.model)
        sent = sent_form(self.method.stages, form)
        return self.message_bytes if sent is form else bytes_of_form(sent)

    def bytes_up(self, messages: int, updates: int) -> int:
        """Return the bytes of so many messages that are sent up, of which so many are clients' updates."""
        return updates * self.update_bytes + (messages - updates) * self.message_bytes

    def bytes_of(self, events: Sequence[Event]) -> tuple[int, int]:
        """Return the bytes that events of the schedule send up, and down."""
        up, down, updates = (
            sum(getattr(event, name) for event in events) for name in ("models_up", "models_down", "client_updates")
        )
        return self.bytes_up(up, updates), self.message_bytes * down

    @cached_property
    def _upload_share(self) -> float:
        """Bytes of an update as it is uploaded, as a share of the model's."""
        return upload_share(self.settings, self.module)

    @property
    def device(self) -> str:
        """Where training takes place."""
        return require_device(self.settings.run.device)

    def check(self) -> None:
        """Make everything that can be made before training, so that bad input is met before anything is written."""
        self.check_parts()
        self.method  # noqa: B018
        self._rehearse()
        self.executor_choice  # noqa: B018

    def check_parts(self) -> None:
        """Make what no schedule is needed for: whatever else a clustering is wanted for would meet it."""
        self.device, self.rule, self.module  # noqa: B018

    def _rehearse(self) -> ClientUpdate | None:
        """Train one client for one step; return what it sends back, unless that is not finite."""
        trainer = self._make_trainer(replace(self.method.rule, steps=1, epochs=None))
        return rehearse(self.settings, trainer, self.method.schedule.occupied.events[0], self._start())

    def _start(self) -> Model:
        """Return what travels of a first model."""
        return self.method.sent(read_model(self._copy_module()))

    def initial_models(self, restart: int = 0) -> tuple[Model, ...]:
        """Return the models that a run begins with, on the device: one, or one a cluster, drawn anew each restart."""
        count = self.method.starts
        modules = [draw_module(self.settings, self.clients.data, p, restart) for p in range(count)]
        drawn = [read_model(module.to(self.device)) for module in modules]
        common = {name: drawn[0][name] for name in self.method.shared}
        common |= {} if self.private is None else self.private.carried(self.device)
        return tuple(model | common for model in drawn)

    def best_start(self, executor: Executor) -> tuple[Model, ...]:
        """Return the initial models of the best of the method's `restarts` starts."""
        candidates = [self.initial_models(restart) for restart in range(self.method.restarts)]
        if len(candidates) == 1:
            return candidates[0]
        return candidates[choose_start(self.method, executor, candidates, len(self.population))]

    def make_executor(self) -> Executor:
        """Return the executor that the settings name; close it when the run is over.

        Raises:
            InputError: an executor that would not give what training client by client gives.
        """
        trainer = self._make_trainer(self.method.rule)
        return make_executor(self.executor_choice, self.settings.run, trainer.for_executors(), self.sent_bytes)

    @cached_property
    def executor_choice(self) -> ExecutorChoice:
        """Which executor trains the run, and why.

        Raises:
            InputError: one that would not give what training client by client gives.
        """
        require_single_results(self.settings)
        if self.schedule is None:
            require_measuring(self.settings)
        trainer, start = self._make_trainer(self.method.rule), self._start()
        method = replace(self.method, schedule=self.method.schedule.occupied)
        return choose_executor(self.settings.run, method, trainer.for_executors(), start, self.sent_bytes, self.device)

    def make_evaluator(self) -> Evaluator:
        """Return the evaluator of the union of the clients' data and the test set."""
        samples, seed = self.settings.run.evaluate_samples, self.settings.seed
        return Evaluator(self.clients, self._copy_module(), samples, seed, self._threads)

    def make_cluster_evaluator(self) -> ClusterEvaluator:
        """Return the evaluator of several models, of which each client takes the one with the least loss."""
        samples, seed = self.settings.run.evaluate_samples, self.settings.seed
        return ClusterEvaluator(self.population, self.test_clients, self._copy_module(), samples, seed, self._threads)

    @property
    def _threads(self) -> int:
        """Threads that measure models: as many as train in this machine's processes of the run."""
        return self.executor_choice.workers if self.executor_choice.name == "cores" else 1

    def _make_trainer(self, rule: LocalRule) -> Chain:
        """Return what trains the run's clients."""
        tolerant = self.settings.faults.tolerate or self.private is not None  # a failure would tell of clients' data
        return self.make_trainer(rule, self.population, tolerant)

    def make_trainer(self, rule: LocalRule, population: Population, tolerant: bool) -> Chain:
        """Return what the method trains clients with, here of any population.

        Raises:
            InputError: a user's trainer that cannot be made, or contradicts its class.
        """
        method = replace(self.method, rule=rule)
        return make_chain(self.settings, method, self._copy_module(), population, self.device, tolerant)

    def _copy_module(self) -> nn.Module:
        """Return a copy of the module on the device; itself it stays untrained, so that a run can be repeated."""
        return place(deepcopy(self.module), self.device)
