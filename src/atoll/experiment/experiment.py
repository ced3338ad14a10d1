"""From settings to objects: the parts of one run."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import nn

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.experiment.client_training import ClientTraining
from atoll.experiment.clients import Clients
from atoll.experiment.cluster_plan import ClusterPlan
from atoll.experiment.conditions import Conditions
from atoll.experiment.execution import Execution
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.planned_method import PlannedMethod
from atoll.experiment.reported_clients import ReportedClients
from atoll.experiment.traffic import Traffic
from atoll.schedules.events import Schedule
from atoll.settings.experiment_file import make_runs, resolved
from atoll.settings.given_objects import named
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.requiring import require, require_made


@dataclass(frozen=True, init=False)
class Experiment:
    """The objects of one run, in parts; each object is made from the settings when it is first asked for.

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
        clients: which clients there are, and what data they hold.
        initial: the model that the run begins with.
        conditions: what clients report, when they are there, and the networks that link them.
        fixed_clustering: one to use instead of the settings'; None: none.
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
        """Lay changes by name, such as ``rounds=5`` or ``clustering=function``, over the settings or the defaults.

        Args:
            settings: all settings.
            schedule: one to replay in the place of the method's own.
            clients: those of another experiment, to share; None: the settings'.
            initial: likewise.
            conditions: likewise.
            fixed_clustering: one to use instead of the settings'.
            changes: settings by name.

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
        clients = clients or Clients(settings)
        initial = initial or InitialModel(settings, clients)
        conditions = conditions or Conditions(settings, clients, initial)
        vars(self).update(settings=settings, schedule=schedule, fixed_clustering=fixed_clustering)
        vars(self).update(clients=clients, initial=initial, conditions=conditions)

    @cached_property
    def plan(self) -> ClusterPlan:
        """Who is in which cluster from when on, and how long everyone's work takes."""
        return ClusterPlan(self.settings, self.clients, self.initial, self.conditions, self.fixed_clustering)

    @cached_property
    def planned(self) -> PlannedMethod:
        """The method, and what privacy costs."""
        return PlannedMethod(self.settings, self.clients, self.initial, self.conditions, self.plan, self.schedule)

    @cached_property
    def training(self) -> ClientTraining:
        """What trains the clients, and the models that they begin with."""
        return ClientTraining(self.settings, self.clients, self.initial, self.planned)

    @cached_property
    def traffic(self) -> Traffic:
        """How many bytes models, messages and updates have."""
        return Traffic(self.initial, self.planned, self.training)

    @cached_property
    def execution(self) -> Execution:
        """What carries the run out, and what measures its models."""
        return Execution(self.settings, self.clients, self.initial, self.planned, self.training, self.traffic)

    @property
    def population(self) -> Population:
        """The population that trains."""
        return self.clients.population

    @property
    def clustering(self) -> Clustering:
        """The clustering, for clients that move the first; a single cluster where the method has no use for one."""
        return self.plan.clustering

    @property
    def module(self) -> nn.Module:
        """The initial model, drawn from the seed."""
        return self.initial.module

    @property
    def method(self) -> Method:
        """The method, with its whole schedule; with privacy, to the end of its budget."""
        return self.planned.method

    def given(self, known: ReportedClients) -> "Experiment":
        """Return the experiment planned by what its clients report; clients and model are shared."""
        conditions = Conditions(self.settings, self.clients, self.initial, known)
        return replace(self, conditions=conditions, fixed_clustering=known.clustering)

    def beside(self, settings: Settings) -> "Experiment":
        """Return the experiment with other settings; clients, model and network are shared where these make the same.

        For comparing many plans of one fleet, whose network alone may take a gigabyte.
        """
        if not self.clients.serve(settings):
            return Experiment(settings)
        if not self.initial.serves(settings):
            return Experiment(settings, None, self.clients)
        conditions = self.conditions if self.conditions.serve(settings) else None
        return Experiment(settings, None, self.clients, self.initial, conditions)

    def check(self) -> None:
        """Make everything that can be made before training, so that bad input is met before anything is written."""
        self.check_parts()
        require_made(self.method, self.training.rehearse(), self.execution.choice)

    def check_parts(self) -> None:
        """Make what no schedule is needed for: whatever else a clustering is wanted for would meet it."""
        require_made(self.initial.device, self.plan.rule, self.module)
