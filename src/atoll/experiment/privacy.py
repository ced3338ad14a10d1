"""From settings to privacy: what is trusted, a method whose clients it hides, and what its schedule will cost."""

import warnings
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import nn

from atoll.clustering.named_clusterings import CLUSTERINGS, WITHOUT_DATA
from atoll.engine.engine import Method
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
    """What the privacy of a run's clients costs.

    Attributes:
        mechanism: what is hidden, and how.
        plan: what the method's schedule costs; the schedule ends before the budget is exceeded.
        most_releases: that any client may take part in within the budget; None: there is no budget.
        events_planned: events that there would be without a budget.
        is_fleet: whether it is for a fleet, where noise is the system's.
    """

    mechanism: Mechanism
    plan: Plan
    most_releases: int | None
    events_planned: int
    is_fleet: bool

    def carried(self, device: str) -> Model:
        """Return what the first models carry besides: where updates are clipped, if that adapts."""
        if self.mechanism.quantile is None:
            return {}
        return {CLIP: torch.tensor(self.mechanism.clip, dtype=torch.float64, device=device)}

    @property
    def ends_early(self) -> str:
        """Where the run ends by its budget, as a sentence; an empty text if it does not."""
        kept, wanted = len(self.plan.schedule), self.mechanism
        if kept == self.events_planned:
            return ""
        return (
            f"privacy.epsilon = {wanted.epsilon}: is spent after event {kept} of {self.events_planned}, where the run "
            "ends"
        )


def read_mechanism(settings: Settings) -> Mechanism | None:
    """Return what the settings want hidden, and how; None: nothing.

    Raises:
        InputError: settings that cannot be.
    """
    wanted = settings.privacy
    if wanted.trust not in TRUSTS:
        raise InputError(f"privacy.trust = {wanted.trust!r}: must be one of {', '.join(TRUSTS)}; it takes no function")
    return call("privacy.trust", TRUSTS[wanted.trust], dict(wanted))  # type: ignore[no-any-return]


def plan_privacy(settings: Settings, mechanism: Mechanism, schedule: Schedule, cost: Cost, clients: int) -> Private:
    """Return what a schedule of private events costs, up to the end of the budget.

    Args:
        settings: all settings.
        mechanism: what they want hidden.
        schedule: of all events.
        cost: of an average, to each client that takes part in it.
        clients: how many there are.

    Raises:
        InputError: a budget that does not last for an event.
    """
    plan = Plan(schedule, clients, cost, mechanism.delta)
    if mechanism.delta >= 1 / clients:
        warnings.warn(
            f"privacy.delta = {mechanism.delta:g}: is no less than 1 / data.clients = {1 / clients:g}, so that "
            "a mechanism which gives a client away at random would pass",
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
    """Return the method with its clients hidden, whatever that costs.

    Args:
        settings: all settings.
        mechanism: what they want hidden.
        method: as it is without, with the stages before the noise.
        sizes: samples of each client, [clients].
        module: the initial model, a copy.
        noise: where noise comes from.

    Raises:
        InputError: anything of which it is not proven that one client's effect is bounded.
    """
    require_accounting()
    _refuse_settings(settings, mechanism)
    refuse_module(module, mechanism)
    private = make_private(method, mechanism, shape_of(module, method.rule), sizes, noise)
    if settings.run.executor == "fleet":  # whose nodes tell a cluster at random, before anything leaves them
        *before, stage = private.stages
        private = replace(private, stages=(*before, replace(stage, assign=None)))
    return private


def _until_spent(plan: Plan, epsilon: float, most: int) -> Plan:
    """Return the plan of the events that the budget lasts for."""
    schedule, lasting = plan.schedule, plan.within(most)
    if not lasting:
        raise InputError(
            f"privacy.epsilon = {epsilon:g}: the first event alone costs {plan.epsilon_after(1):.3g}; raise it, or "
            "privacy.noise"
        )
    kept = replace(schedule, events=pack(islice(schedule.events, lasting)), rounds=schedule.rounds_done(lasting))
    return replace(plan, schedule=kept)


def _refuse_settings(settings: Settings, mechanism: Mechanism) -> None:
    """Refuse what a mechanism cannot account for, by its settings."""
    trust, kind = f"privacy.trust = {mechanism.trust!r}", method_kind(settings)
    if kind.make not in ACCOUNTED:
        raise InputError(
            f"{trust}: does not go with method.name = {settings.method.name!r}, of which it is not proven how far one "
            "client can move what is released"
        )
    if settings.method.weights == "samples" and mechanism.samples_cap is None:
        raise InputError(
            f"method.weights = 'samples': with {trust} no client may weigh more than 1; set privacy.samples_cap, and "
            "clients weigh as their samples to that many"
        )
    if settings.method.select not in SELECTIONS:
        raise InputError(
            f"{trust}: method.select = {settings.method.select!r} is a function of your own, which may choose clients "
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
            f"{trust}: clustering.method = {clustering!r} goes by what clients hold, which the clusters then tell; use "
            "another, or set privacy.clusters_are_public = true if that is no secret"
        )
