"""From settings to objects: the parts of one run."""

from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import nn

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.engine.cohorts import Executor
from atoll.engine.method import Method
from atoll.evaluation.scores import ClusterEvaluator, Evaluator
from atoll.experiment.client_training import ClientTraining
from atoll.experiment.clients import Clients
from atoll.experiment.cluster_plan import ClusterPlan
from atoll.experiment.conditions import Conditions, ReportedClients
from atoll.experiment.executor_choice import ExecutorChoice, choose_executor, make_executor, require_measuring
from atoll.experiment.faults import require_single_results
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.planned_method import PlannedMethod
from atoll.experiment.traffic import Traffic
from atoll.schedules.events import Schedule
from atoll.settings.experiment_file import make_runs, resolved
from atoll.settings.given_objects import named
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, telling_of_gpus
from atoll.support.requiring import require, require_made


@dataclass(frozen=True, eq=False)
class Execution:
    """The executor of a run, and the evaluators of its models."""

    settings: Settings
    clients: Clients
    initial: InitialModel
    planned: PlannedMethod
    training: ClientTraining
    traffic: Traffic

    @cached_property
    def choice(self) -> ExecutorChoice:
        """The run's executor, and why it was chosen."""
        require_single_results(self.settings)
        if self.planned.schedule is None:
            require_measuring(self.settings)
        method, trainer, start = self.planned.method, self.training.trainer().for_executors(), self.training.start()
        method = replace(method, schedule=method.schedule.occupied)
        size = self.traffic.message_bytes
        return choose_executor(self.settings.run, method, trainer, start, size, self.initial.device)

    def make_executor(self) -> Executor:
        """Return the executor that the settings name; close it when the run is over."""
        trainer = self.training.trainer().for_executors()
        return make_executor(self.choice, self.settings.run, trainer, self.traffic.message_bytes)

    def make_evaluator(self) -> Evaluator:
        """Return the evaluator on the union of the clients' data, and on the test set or, with drift, test clients'."""
        samples, seed = self.settings.run.evaluate_samples, self.settings.seed
        made = Evaluator(self.clients.dealt, self.initial.copy(), samples, seed, self._threads)
        if self.settings.drift.kind != "none":
            made.tested = self.clients.test.indices
        return made

    def make_cluster_evaluator(self) -> ClusterEvaluator:
        """Return the evaluator of several models, where each client uses the one with the least loss."""
        settings, module, paired = self.settings, self.initial.copy(), self.settings.drift.kind != "none"
        both = self.clients.population, self.clients.test
        return ClusterEvaluator(*both, module, settings.run.evaluate_samples, settings.seed, self._threads, paired)

    @property
    def _threads(self) -> int:
        """The number of evaluation threads: as many as the run's training processes on this machine."""
        return self.choice.workers if self.choice.name == "cores" else 1


@dataclass(frozen=True, init=False)
class Experiment:
    """The objects of one run, in parts; each object is made from the settings on first use.

    Settings may be given by name, and functions and data sets directly; an object or a name given for a whole section
    stands for its clustering, method, model or data set. Any error in the settings raises `InputError` from the first
    property that it affects.

    >>> Experiment(
    ...     clustering=lambda population, clusters: [k % clusters for k in range(len(population))]
    ... ).clustering.sizes
    array([10, 10, 10, 10, 10, 10, 10, 10, 10, 10])

    Attributes:
        settings: all settings.
        schedule: a schedule to replay instead of the method's; None: the method's.
        clients: the clients and their data.
        initial: the initial model.
        conditions: what clients report, when they are available, and their networks.
        fixed_clustering: replaces the settings' clustering; None: it is kept.
    """

    settings: Settings
    schedule: Schedule | None
    clients: Clients = field(repr=False, compare=False)
    initial: InitialModel = field(repr=False, compare=False)
    conditions: Conditions = field(repr=False, compare=False)
    fixed_clustering: Clustering | None = field(repr=False, compare=False)

    def __init__(
        self,
        settings: Settings | None = None,
        schedule: Schedule | None = None,
        clients: Clients | None = None,
        initial: InitialModel | None = None,
        conditions: Conditions | None = None,
        fixed_clustering: Clustering | None = None,
        **changes: Any,
    ) -> None:
        """Apply changes by name, such as ``rounds=5`` or ``clustering=function``, to the settings or the defaults.

        `clients`, `initial` and `conditions` are another experiment's, to share; None: they are made from the settings.

        Raises:
            InputError: a setting is unknown, of a wrong type or out of range.
        """
        if not isinstance(settings, Settings | None):
            raise InputError(
                "Experiment: takes Settings, or settings by name; those of a recipe or a file are "
                "atoll.make_runs(atoll.read_experiment(NAME))"
            )
        require("schedule", schedule, Schedule | None)
        if changes or settings is None:
            (settings,) = make_runs({} if settings is None else resolved(settings), None, named(changes))
        clients = clients or Clients(settings)
        initial = initial or InitialModel(settings, clients)
        conditions = conditions or Conditions(settings, clients, initial)
        vars(self).update(settings=settings, schedule=schedule, fixed_clustering=fixed_clustering)
        vars(self).update(clients=clients, initial=initial, conditions=conditions)

    @cached_property
    def plan(self) -> ClusterPlan:
        """The clustering from each round on, and the duration of everyone's work."""
        return ClusterPlan(self.settings, self.clients, self.initial, self.conditions, self.fixed_clustering)

    @cached_property
    def planned(self) -> PlannedMethod:
        """The method, and its privacy cost."""
        return PlannedMethod(self.settings, self.clients, self.initial, self.conditions, self.plan, self.schedule)

    @cached_property
    def training(self) -> ClientTraining:
        """The trainer of the clients, and the initial models."""
        return ClientTraining(self.settings, self.clients, self.initial, self.planned)

    @cached_property
    def traffic(self) -> Traffic:
        """The size in bytes of models, messages and updates."""
        return Traffic(self.initial, self.planned, self.training)

    @cached_property
    def execution(self) -> Execution:
        """The run's executor, and the evaluators of its models."""
        return Execution(self.settings, self.clients, self.initial, self.planned, self.training, self.traffic)

    @property
    def population(self) -> Population:
        """The population that trains."""
        return self.clients.population

    @property
    def clustering(self) -> Clustering:
        """The clustering, the first one if clients move; a single cluster if the method uses none."""
        return self.plan.clustering

    @property
    def module(self) -> nn.Module:
        """The initial model, drawn from the seed."""
        return self.initial.module

    @property
    def method(self) -> Method:
        """The method with its whole schedule, up to the end of any privacy budget."""
        return self.planned.method

    def given(self, known: ReportedClients) -> "Experiment":
        """Return the experiment planned from its clients' reports; clients and model are shared."""
        conditions = Conditions(self.settings, self.clients, self.initial, known)
        return replace(self, conditions=conditions, fixed_clustering=known.clustering)

    def beside(self, settings: Settings) -> "Experiment":
        """Return the experiment with other settings; clients, model and network are shared if unchanged.

        For comparing many plans of one fleet, whose network alone may take a gigabyte.
        """
        if not self.clients.serve(settings):
            return Experiment(settings)
        if not self.initial.serves(settings):
            return Experiment(settings, None, self.clients)
        conditions = self.conditions if self.conditions.serve(settings) else None
        return Experiment(settings, None, self.clients, self.initial, conditions)

    def at(self, round_: int) -> "Experiment":
        """Return the experiment with the data that clients hold in a round; all else is shared."""
        if not self.clients.dealt.later:
            return self
        clients, now = self.clients.at(round_), copy(self)
        training, execution = (replace(each, clients=clients) for each in (self.training, self.execution))
        vars(now).update(clients=clients, training=training, execution=execution)
        return now

    @telling_of_gpus()
    def check(self) -> None:
        """Make everything that can be made before training, so that bad input is found before anything is written."""
        self.check_parts()
        require_made(self.method, self.training.rehearse())
        if self.execution.choice.name == "stacked":  # which refuses limits of memory, and graphs
            self.execution.make_executor().close()
        require_made(self.planned.tests_by_client and self.clients.test)

    def check_parts(self) -> None:
        """Make everything that needs no schedule, as any other use of a clustering would."""
        require_made(self.initial.device, self.plan.rule, self.module)
