"""From settings to privacy: what is trusted, a method whose clients it hides, and what its schedule will cost."""

import warnings
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import nn

from atoll.clustering.named_clusterings import CLUSTERINGS, WITHOUT_DATA
from atoll.codecs.coded_trainer import MakeCoded
from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.models import Model
from atoll.methods.named_methods import ACCOUNTED
from atoll.methods.selection import SELECTIONS
from atoll.privacy.accounting import require_accounting
from atoll.privacy.clipping import CLIP, shape_of
from atoll.privacy.mechanism import Mechanism
from atoll.privacy.named_trusts import TRUSTS
from atoll.privacy.noise import Noise, from_seed, from_system
from atoll.privacy.privacy_plan import Plan
from atoll.privacy.private_release import Publisher, make_private
from atoll.privacy.requirements import refuse_module, refuse_unproven
from atoll.schedules.packed import pack
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call, resolve
from atoll.settings.sections import Settings
from atoll.settings.signatures import asks_for
from atoll.support.arrays import Ids
from atoll.support.errors import InputError, SettingWarning


@dataclass(frozen=True, eq=False)
class Private:
    """A method with privacy, and what it costs.

    Attributes:
        method: its schedule ends before the budget is exceeded.
        mechanism: what is hidden, and how.
        plan: what the method's schedule costs.
        most_releases: that any client may take part in within the budget; None: there is no budget.
        events_planned: events that there would be without a budget.
        is_fleet: whether it is for a fleet, where noise is the system's.
    """

    method: Method
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


def add_privacy(
    settings: Settings, mechanism: Mechanism, method: Method, population: Population, module: nn.Module
) -> Private:
    """Return the method with its clients hidden, up to the end of the budget.

    Args:
        settings: all settings.
        mechanism: what they want hidden.
        method: as it is without.
        population: its clients, as they report what they hold.
        module: the initial model, a copy.

    Raises:
        InputError: anything of which it is not proven that one client's effect is bounded; or a budget that does not
            last for an event.
    """
    is_fleet = settings.run.executor == "fleet"
    noise = from_system if is_fleet else from_seed(settings.seed)
    private = hide(settings, mechanism, method, population.sizes, module, noise)
    if is_fleet:  # whose nodes add noise to updates, and tell a cluster at random, before anything leaves them
        private = replace(private, assign=method.assign)
    assert isinstance(private.release, Publisher)
    plan = Plan(private.schedule, len(population), private.release.cost, mechanism.delta)
    if mechanism.delta >= 1 / len(population):
        warnings.warn(
            f"privacy.delta = {mechanism.delta:g}: is no less than 1 / data.clients = {1 / len(population):g}, so that "
            "a mechanism which gives a client away at random would pass",
            SettingWarning,
            stacklevel=2,
        )
    planned, most = len(plan.schedule), None
    if mechanism.epsilon is not None:
        most = plan.most_releases(mechanism.epsilon)
        plan = _until_spent(plan, mechanism.epsilon, most)
        private = replace(private, schedule=plan.schedule)
    return Private(private, mechanism, plan, most, planned, is_fleet)


def hide(
    settings: Settings, mechanism: Mechanism, method: Method, sizes: Ids, module: nn.Module, noise: Noise
) -> Method:
    """Return the method with its clients hidden, whatever that costs; where updates are coded, it is after the noise.

    Args:
        settings: all settings.
        mechanism: what they want hidden.
        method: as it is without.
        sizes: samples of each client, [clients].
        module: the initial model, a copy.
        noise: where noise comes from.

    Raises:
        InputError: anything of which it is not proven that one client's effect is bounded.
    """
    require_accounting()
    _refuse_settings(settings, mechanism)
    refuse_module(module, mechanism)
    coded = method.trainer if isinstance(method.trainer, MakeCoded) else None
    bare = method if coded is None else replace(method, trainer=coded.make)
    refuse_unproven(bare, mechanism, _told(settings, method))
    private = make_private(bare, mechanism, shape_of(module, method.rule), sizes, noise)
    return private if coded is None else replace(private, trainer=replace(coded, make=private.trainer))


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


def _told(settings: Settings, method: Method) -> str:
    rule = settings.method.combine
    return f"method.combine = {rule!r}" if rule != "mean" else f"method.name = {settings.method.name!r}"


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
    _refuse_codec(settings, mechanism)
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


def _refuse_codec(settings: Settings, mechanism: Mechanism) -> None:
    """Refuse a codec that comes before the noise, but for one that makes of each update alone what is then clipped."""
    codec = settings.travel.codec
    if codec == "none" or mechanism.is_local:  # after the noise anything may be done to an update
        return
    told = f"privacy.trust = {mechanism.trust!r}: does not go with travel.codec = {codec!r}"
    if ":" in codec:
        raise InputError(f"{told}, a function of your own, which may mix one client's update with another's")
    if settings.travel.feedback:
        raise InputError(
            f"{told} and travel.feedback = true, by which clients keep what one update lost for the next; set it to "
            "false, or trust = 'client', where updates are coded after the noise"
        )
