"""The method of a run, with its whole schedule."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from atoll.clustering.clustering import without_empty
from atoll.engine.engine import Method
from atoll.experiment.clients import Clients
from atoll.experiment.cluster_plan import ClusterPlan
from atoll.experiment.conditions import Conditions
from atoll.experiment.faults import add_faults
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.method import make_method, until
from atoll.experiment.modules import let_stay
from atoll.experiment.privacy import Private, add_privacy, read_mechanism
from atoll.experiment.secure import check_cohorts, sum_securely
from atoll.experiment.selecting import choose_clients
from atoll.experiment.update_coding import code_updates
from atoll.schedules.events import Schedule
from atoll.schedules.schedule_files import fitting
from atoll.settings.choices import method_needs
from atoll.settings.sections import Settings
from atoll.support.errors import InputError


@dataclass(frozen=True, eq=False)
class PlannedMethod:
    """The method of a run, with its whole schedule, made when it is first asked for.

    Attributes:
        settings: all settings.
        clients: those that there are.
        initial: the model.
        conditions: that clients train under.
        plan: the clusters.
        schedule: one to replay in the place of the method's own; None: none.
    """

    settings: Settings
    clients: Clients
    initial: InitialModel
    conditions: Conditions
    plan: ClusterPlan
    schedule: Schedule | None

    @cached_property
    def method(self) -> Method:
        """The method, with its whole schedule; with privacy, to the end of its budget."""
        return self._unprotected if self.private is None else self.private.method

    @cached_property
    def private(self) -> Private | None:
        """The method with its clients hidden, and what that costs; None: the settings want none of it."""
        mechanism = read_mechanism(self.settings)
        if mechanism is None:
            return None
        if self.schedule is not None:
            raise InputError(
                f"--schedule: does not go with privacy.trust = {mechanism.trust!r}, which accounts for the method's own"
            )
        reported = self.conditions.reported
        return add_privacy(self.settings, mechanism, self._unprotected, reported, self.initial.copy())

    @cached_property
    def _unprotected(self) -> Method:
        """The method as if there were no privacy."""
        conditions, population = self.conditions, self.clients.population
        clock = self.plan.clock if method_needs(self.settings, "clock") else None
        method = make_method(self.settings, self._offered(), len(population), lambda: self.plan.phases)
        method = choose_clients(self.settings, method, conditions.reported, clock)
        method = until(self.settings, method)
        method = add_faults(self.settings, method, population, clock, conditions.availability)
        method = code_updates(self.settings, let_stay(self.settings, method, self.initial.module))
        method = sum_securely(self.settings, method, conditions.reported.sizes, self.initial.module)
        if self.schedule is not None:
            replayed = fitting(self.schedule, method.schedule, len(population))
            method = replace(method, schedule=replayed, arrivals=None)
        check_cohorts(method, conditions.reported.sizes)
        return method

    def _offered(self) -> dict[str, Any]:
        """Return what a method may ask for, besides its own settings and the phases."""
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
        return offered
