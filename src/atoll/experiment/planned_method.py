"""The method of a run, with its whole schedule."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal
from warnings import warn

from atoll.clustering.clustering import Clustering, without_empty
from atoll.engine.method import Method
from atoll.engine.stages import Need
from atoll.experiment.chosen_stages import add_stages, choose_clients
from atoll.experiment.clients import Clients
from atoll.experiment.cluster_plan import ClusterPlan
from atoll.experiment.conditions import Conditions
from atoll.experiment.drifting import require_begun
from atoll.experiment.faults import add_faults
from atoll.experiment.foresight import foresee
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.privacy import Private, plan_privacy, read_mechanism
from atoll.privacy.noise import from_seed, from_system
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event, Schedule
from atoll.schedules.packed import pack
from atoll.schedules.recorded import require_sound
from atoll.schedules.schedule_files import fitting
from atoll.secure.requirements import refuse_cohorts
from atoll.settings.choices import method_kind, method_needs
from atoll.settings.plugins import call
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, SettingWarning

_NEARLY = 0.9  # of where a run is cut; the next event may not have fitted


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
    def clustering(self) -> Clustering:
        """The method's clustering: without empty clusters, unless its clusters are a network's aggregators."""
        whole = self.plan.clustering
        return whole if method_needs(self.settings, "network") else without_empty(whole)

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
        method = _make_method(self.settings, self._offered(), len(population), lambda: self.plan.phases)
        require_begun(self.clients.dealt, method.schedule)
        method, clock = _put_on_clock(self.settings, method, self.plan.clock)
        method = choose_clients(self.settings, method, conditions.reported, clock)
        method = _until(self.settings, method, "virtual_seconds")
        method = add_faults(self.settings, method, conditions.reported, clock, conditions.availability)
        return _until(self.settings, method, "client_updates")

    def _offered(self) -> dict[str, Any]:
        """Return what a method may request besides its own settings and the phases."""
        conditions = self.conditions
        offered: dict[str, Any] = {
            "population": conditions.reported,
            "clustering": self.clustering,
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
        if method_needs(self.settings, "model_bytes"):
            offered["model_bytes"] = max(1, self.initial.bytes_without(self.initial.stays))
        if method_needs(self.settings, "encoder"):
            offered["encoder"] = self.initial.encoder()
        elif (unused := self.settings.method.encoder) != "start":
            raise InputError(f"method.encoder = {unused!r}: method.name = {self.settings.method.name!r} embeds nothing")
        return offered


def _make_method(settings: Settings, offered: Mapping[str, Any], clients: int, phases: Callable[[], Any]) -> Method:
    """Return the method that the settings name, as its function makes it.

    Besides its own settings the function may request what is `offered`, and on a network the `phases` of all rounds,
    which are made only after a few rounds have been tried, since they may be many.
    """
    wanted, make = settings.method, method_kind(settings).make
    given = {**dict(wanted), **offered}
    if ":" not in wanted.name:  # a custom method may use the number of rounds in any way
        foresee(settings, lambda rounds: call("method.name", make, {**given, "rounds": rounds}, wanted.model_extra))
    if asks_for(make, "network"):
        given["phases"] = phases()
    method = call("method.name", make, given, wanted.model_extra)
    told = f"method.name = {wanted.name!r}"
    if ":" not in wanted.name and (wanted.get("clusters") or 0) > clients:
        raise InputError(f"method.clusters = {wanted.get('clusters')}: must be at most data.clients = {clients}")
    if not isinstance(method, Method):
        raise InputError(f"{told}: must return an atoll.Method, it returned {type(method).__name__!r}")
    if method.labels is not None and len(method.labels) != clients:
        raise InputError(f"{told}: gave Method.labels for {len(method.labels)} clients, but there are {clients}")
    if ":" in wanted.name:
        require_sound(method.schedule, clients, told)
        if not method.finds_clusters and any(e.clusters is None and len(e.cohort) for e in method.schedule.events):
            raise InputError(f"{told}: an event of its schedule names no clusters, and no Method.assign finds them")
    return replace(method, told=partial(_told_by, settings))


def _told_by(settings: Settings, need: Need) -> str:
    """Return the setting because of which the method lacks what a stage may need."""
    wanted, faults = settings.method, settings.faults
    if need in (Need.MEAN, Need.MEAN_OF_MODELS) and wanted.combine != "mean":
        return f"method.combine = {wanted.combine!r}"
    if need in (Need.NO_LOSSES, Need.NO_DRAWING) and wanted.select != "uniform":
        return f"method.select = {wanted.select!r}"
    if need is Need.ONE_START:
        return f"method.restarts = {wanted.get('restarts')}"
    if need is Need.NO_SCREENING:
        if faults.max_update_norm is not None:
            return f"faults.max_update_norm = {faults.max_update_norm:g}"
        if faults.usual_norms not in (None, "off"):
            return f"faults.usual_norms = {faults.usual_norms!r}"
        return "faults.tolerate = true" if faults.tolerate else f"faults.attack = {faults.attack!r}"
    return f"method.name = {wanted.name!r}"


def _until(settings: Settings, method: Method, limit: Literal["virtual_seconds", "client_updates"]) -> Method:
    """Return the method with its schedule cut where `run` says; warn if `rounds` ends it long before."""
    most, schedule, by_time = settings.run.get(limit), method.schedule, limit == "virtual_seconds"
    if most is None:
        return method
    cut = schedule.until(most, math.inf) if by_time else schedule.until(math.inf, most)
    if len(cut) == len(schedule):
        last = schedule.events[-1].seconds if by_time else sum(event.client_updates for event in schedule.events)
        if last < _NEARLY * most:
            told = f"run.{limit} = {most:g}: rounds = {settings.rounds} ends the run at {last:.4g}{' s' * by_time}"
            warn(f"{told} already; raise rounds to use all of it", SettingWarning, 2)
    return replace(method, schedule=cut)


def _put_on_clock(settings: Settings, method: Method, clock: Clock) -> tuple[Method, Clock | None]:
    """Return the method, and the clock of its schedule; None if the method keeps its own time.

    A custom function that asks for no clock makes rounds of one second, and would lead in virtual time; its rounds take
    what their clients need. If its events take other seconds, there is a `SettingWarning`.
    """
    if method_needs(settings, "clock"):
        return method, method.clock or clock
    has_own = any(method_needs(settings, name) for name in ("network", "phases", "pace", "deadline_seconds"))
    if ":" not in settings.method.name or has_own:
        return method, None
    events = method.schedule.events
    if method.arrivals is None and all({each.seconds - 1, *each.began} == {i} for i, each in enumerate(events)):
        return replace(method, schedule=replace(method.schedule, events=pack(_timed(events, clock)))), clock
    told = "takes no `clock`, so its virtual seconds are its own and not those of other methods"
    warn(f"method.name = {settings.method.name!r}: {told}; compare it by rounds or client updates", SettingWarning, 2)
    return replace(method, own_seconds=True), None


def _timed(events: Sequence[Event], clock: Clock) -> Iterator[Event]:
    """Yield events one after the other, each as long as its slowest client takes."""
    now = 0.0
    for event in events:
        seconds = event.intra_rounds * clock.event_seconds(event.cohort, now) if len(event.cohort) else 0.0
        began, now = now, now + seconds
        yield replace(event, began=(began,) * len(event.active), seconds=now)
