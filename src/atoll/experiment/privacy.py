"""From settings to privacy: who is trusted, a private method, and the privacy cost of its schedule."""

import warnings
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import nn

from atoll.clustering.named_clusterings import CLUSTERINGS, WITHOUT_DATA
from atoll.engine.method import Method
from atoll.local.models import Model
from atoll.methods.named_methods import ACCOUNTED
from atoll.methods.selection import SELECTIONS
from atoll.privacy.accounting import require_accounting
from atoll.privacy.clipping import CLIP, shape_of
from atoll.privacy.mechanism import Cost, Mechanism
from atoll.privacy.named_trusts import TRUSTS
from atoll.privacy.needs import refuse_module
from atoll.privacy.noise import Noise
from atoll.privacy.privacy_plan import Plan
from atoll.privacy.private_release import make_private
from atoll.schedules.events import Schedule
from atoll.schedules.packed import pack
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call, resolve
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings
from atoll.support.arrays import Ids
from atoll.support.errors import InputError, SettingWarning


@dataclass(frozen=True, eq=False)
class Private:
    """The privacy cost of a run.

    Attributes:
        plan: the cost of the method's schedule, which ends before the budget is exceeded.
        most_releases: maximum number of releases per client within the budget; None: there is no budget.
        events_planned: number of events without a budget.
        is_fleet: whether it is for a fleet, where noise comes from the system's entropy.
    """

    mechanism: Mechanism
    plan: Plan
    most_releases: int | None
    events_planned: int
    is_fleet: bool

    def carried(self, device: str) -> Model:
        """Return what initial models carry in addition: the clipping norm, if it adapts."""
        if self.mechanism.quantile is None:
            return {}
        return {CLIP: torch.tensor(self.mechanism.clip, dtype=torch.float64, device=device)}

    @property
    def ends_early(self) -> str:
        """A sentence on where the budget ends the run; empty if it does not."""
        kept, wanted = len(self.plan.schedule), self.mechanism
        if kept == self.events_planned:
            return ""
        return (
            f"privacy.epsilon = {wanted.epsilon}: is spent after event {kept} of {self.events_planned}, where the run "
            "ends"
        )


def read_mechanism(settings: Settings) -> Mechanism | None:
    """Return the mechanism of the settings; None: there is no privacy."""
    wanted = settings.privacy
    return call("privacy.trust", TRUSTS[wanted.trust], dict(wanted))  # type: ignore[no-any-return]


def plan_privacy(settings: Settings, mechanism: Mechanism, schedule: Schedule, cost: Cost, clients: int) -> Private:
    """Return the cost of a schedule of private events, up to the end of the budget."""
    plan = Plan(schedule, clients, cost, mechanism.delta)
    if mechanism.delta >= 1 / clients:
        warnings.warn(
            f"privacy.delta = {mechanism.delta:g}: is at least 1 / data.clients = {1 / clients:g}, so publishing a "
            "random client's data would count as private",
            SettingWarning,
            stacklevel=2,
        )
    planned, most = len(schedule), None
    if mechanism.epsilon is not None:
        most = plan.most_releases(mechanism.epsilon)
        plan = _until_spent(plan, mechanism.epsilon, most)
    return Private(mechanism, plan, most, planned, settings.run.executor == "fleet")


def hide(
    settings: Settings, mechanism: Mechanism, method: Method, sizes: Ids, module: nn.Module, noise: Noise
) -> Method:
    """Return the private method, whatever its cost."""
    require_accounting()
    _refuse_settings(settings, mechanism)
    refuse_module(module, mechanism)
    private = make_private(method, mechanism, shape_of(module, method.rule), sizes, noise)
    if settings.run.executor == "fleet":  # its nodes randomise the choice before sending it
        *before, stage = private.stages
        private = replace(private, stages=(*before, replace(stage, assign=None)))
    return private


def _until_spent(plan: Plan, epsilon: float, most: int) -> Plan:
    """Return the plan of the events that the budget covers."""
    schedule, lasting = plan.schedule, plan.within(most)
    if not plan.worst_after[lasting]:
        raise InputError(
            f"privacy.epsilon = {epsilon:g}: the first event alone costs {plan.epsilon_after(lasting + 1):.3g}; "
            "raise it, or privacy.noise"
        )
    kept = replace(schedule, events=pack(islice(schedule.events, lasting)), rounds=schedule.rounds_done(lasting))
    return replace(plan, schedule=kept)


def _refuse_settings(settings: Settings, mechanism: Mechanism) -> None:
    """Reject settings that the mechanism cannot account for."""
    trust, kind = f"privacy.trust = {mechanism.trust!r}", method_kind(settings)
    if kind.make not in ACCOUNTED:
        raise InputError(
            f"{trust}: cannot be used with method.name = {settings.method.name!r}: no proof bounds one client's effect "
            "on what is released"
        )
    if settings.method.weights == "samples" and mechanism.samples_cap is None:
        raise InputError(
            f"method.weights = 'samples': with {trust} no client's weight may exceed 1; set privacy.samples_cap to "
            "weight clients by their samples up to that number"
        )
    if settings.method.weights == "equal" and mechanism.samples_cap is not None:
        raise InputError(f"method.weights = 'equal': does not go with privacy.samples_cap = {mechanism.samples_cap}")
    if settings.method.select not in SELECTIONS:
        raise InputError(
            f"{trust}: method.select = {settings.method.select!r} is your own function, which may choose clients "
            "by their data"
        )
    if mechanism.trust == "aggregator" and not asks_for(kind.make, "network"):
        raise InputError(
            f"{trust}: method.name = {settings.method.name!r} has no aggregators between clients and server; use "
            "'server' or 'client'"
        )
    clustering = settings.clustering.method
    if not asks_for(kind.make, "clustering") or mechanism.clusters_are_public:
        return
    if resolve("clustering.method", clustering, CLUSTERINGS) not in WITHOUT_DATA:
        raise InputError(
            f"{trust}: clustering.method = {clustering!r} uses clients' data, which the clusters then reveal; use "
            "another, or set privacy.clusters_are_public = true if that is no secret"
        )
