"""The method of a run, with its whole schedule."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from atoll.clustering.clustering import without_empty
from atoll.engine.engine import Method
from atoll.experiment.chosen_stages import add_stages
from atoll.experiment.clients import Clients
from atoll.experiment.clock import put_on_clock
from atoll.experiment.cluster_plan import ClusterPlan
from atoll.experiment.conditions import Conditions
from atoll.experiment.faults import add_faults
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.method import make_method, until
from atoll.experiment.privacy import Private, plan_privacy, read_mechanism
from atoll.experiment.selecting import choose_clients
from atoll.privacy.noise import from_seed, from_system
from atoll.schedules.events import Schedule
from atoll.schedules.schedule_files import fitting
from atoll.secure.requirements import refuse_cohorts
from atoll.settings.choices import method_needs
from atoll.settings.validation import Settings
from atoll.support.errors import InputError


@dataclass(frozen=True, eq=False)
class PlannedMethod:
    """The method of a run, with its whole schedule, made on first use."""

    settings: Settings
    clients: Clients
    initial: InitialModel
    conditions: Conditions
    plan: ClusterPlan
    schedule: Schedule | None

    @property
    def method(self) -> Method:
        """The method with its whole schedule, up to the end of any privacy budget."""
        return self._made[0]

    @property
    def tests_by_client(self) -> bool:
        """Whether each client is tested with one of several models: there is neither a server's nor aggregators'."""
        has_aggregators = not self.method.finds_clusters and method_needs(self.settings, "phases")
        return not self.method.schedule.has_server and not has_aggregators

    @property
    def private(self) -> Private | None:
        """The privacy cost; None: the settings ask for no privacy."""
        return None if read_mechanism(self.settings) is None else self._made[1]

    @cached_property
    def _made(self) -> tuple[Method, Private | None]:
        """The method, and its privacy cost."""
        settings, sizes = self.settings, self.conditions.reported.sizes
        mechanism = read_mechanism(settings)
        if mechanism is not None and self.schedule is not None:
            raise InputError(
                f"--schedule: cannot be used with privacy.trust = {mechanism.trust!r}, which accounts "
                "for the method's own"
            )
        noise = from_system if settings.run.executor == "fleet" else from_seed(settings.seed)
        method = add_stages(settings, self._without_stages(), sizes, deepcopy(self.initial.module), noise)
        method = self._replaying(method)
        if (start := settings.model.start) is not None and method.starts > 1:
            raise InputError(
                f"model.start = {start!r}: cannot be used with method.name = {settings.method.name!r}, whose clusters "
                "start from models that differ"
            )
        if method.fixed is not None:
            refuse_cohorts(method, method.fixed, sizes)
        if mechanism is None:
            return method, None
        cost = next(stage.cost for stage in method.stages if stage.cost)
        private = plan_privacy(settings, mechanism, method.schedule, cost, len(sizes))
        return replace(method, schedule=private.plan.schedule), private

    def _replaying(self, method: Method) -> Method:
        """Return the method with the schedule to replay, if there is one."""
        if self.schedule is None:
            return method
        replayed = fitting(self.schedule, method.schedule, len(self.clients.population))
        return replace(method, schedule=replayed, arrivals=None)

    def _without_stages(self) -> Method:
        """Return the method without the stages that the settings add."""
        conditions, population = self.conditions, self.clients.population
        method = make_method(self.settings, self._offered(), len(population), lambda: self.plan.phases)
        method, clock = put_on_clock(self.settings, method, self.plan.clock)
        method = choose_clients(self.settings, method, conditions.reported, clock)
        method = until(self.settings, method, "virtual_seconds")
        method = add_faults(self.settings, method, population, clock, conditions.availability)
        return until(self.settings, method, "client_updates")

    def _offered(self) -> dict[str, Any]:
        """Return what a method may request besides its own settings and the phases."""
        conditions, clustering = self.conditions, self.plan.clustering
        offered: dict[str, Any] = {
            "population": conditions.reported,
            "clustering": clustering if method_needs(self.settings, "network") else without_empty(clustering),
            "rule": self.plan.rule,
            "rounds": self.settings.rounds,
            "clock": self.plan.clock,
            "deadline_seconds": self.settings.faults.deadline_seconds,
            "pace": None if conditions.availability is None else conditions.availability.pace,
            "seed": self.settings.seed,
        }
        if method_needs(self.settings, "network"):
            offered["network"] = conditions.networks[0]
        if method_needs(self.settings, "module"):
            offered["module"] = self.initial.copy()
        if method_needs(self.settings, "encoder"):
            offered["encoder"] = self.initial.encoder()
        elif (unused := self.settings.method.encoder) != "start":
            raise InputError(f"method.encoder = {unused!r}: method.name = {self.settings.method.name!r} embeds nothing")
        return offered
