"""From settings to faults: a method with client dropout and a robust combine rule, and the attackers."""

from dataclasses import replace
from functools import partial
from itertools import starmap

import numpy as np
import numpy.typing as npt

from atoll.aggregation.mean import Combine, is_weighted_mean, needs_only_mean, says
from atoll.aggregation.robust import ROBUST, TIMES_BYZANTINE
from atoll.aggregation.screening import Screening, UsualNorms
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.engine.stages import Need, Stage
from atoll.experiment.network_clients import NetworkClients
from atoll.faults.attacks import COLLUSIONS, Colluding, attacking, claim_samples, draw_attackers
from atoll.faults.availability import Availability, read_availability
from atoll.faults.dropouts import lose_clients
from atoll.methods.parts.equal_clients import weigh_equally
from atoll.schedules.clock import Clock
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call, resolve
from atoll.settings.sections import FaultSettings
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, reading
from atoll.support.wording import show

_SINGLE = ("weighted", "stacked")  # executors that never hold a single client's result, or fail on an invalid one


def add_faults(
    settings: Settings, method: Method, population: Population, clock: Clock | None, availability: Availability | None
) -> Method:
    """Return the method with the combine rule, screening and client dropout of the settings."""
    wanted = settings.faults
    _require_clients(settings)
    combine, schedule = _choose_combine(settings, method), method.schedule
    keeps = asks_for(method_kind(settings).make, "deadline_seconds")
    if wanted.deadline_seconds is not None and clock is None and not keeps:
        told = f"faults.deadline_seconds = {wanted.deadline_seconds:g}: cannot be used with method.name ="
        raise InputError(f"{told} {settings.method.name!r}, which has no parameter clock or deadline_seconds")
    if wanted.max_update_norm is not None and any(Need.NUMBERS in stage.lacks for stage in method.stages):
        told = f"faults.max_update_norm = {wanted.max_update_norm:g}: cannot be used with method.name ="
        raise InputError(f"{told} {settings.method.name!r}, whose clients send no update of the model they received")
    timed = None if wanted.deadline_seconds is None else clock
    if wanted.dropout or wanted.slots_per_day is not None or availability is not None or timed:
        slots = _read_slots(wanted, population)
        schedule = lose_clients(schedule, settings.seed, wanted.dropout, slots, timed, availability)
        if not any(len(event.cohort) for event in schedule.events):
            raise InputError(
                f"faults.dropout = {show(wanted.dropout)}, faults.slots_per_day = {show(wanted.slots_per_day)}, "
                f"faults.availability_file = {show(wanted.availability_file)}: leave no client in any event"
            )
    made = replace(method, schedule=schedule, combine=combine, screening=_make_screening(settings, len(population)))
    return weigh_equally(made) if _weighs_equally(settings, method, population) else made


def make_availability(settings: Settings, clients: int) -> Availability | None:
    """Return the clients' availability and speeds from `faults.availability_file`; None without it."""
    if (path := settings.faults.availability_file) is None:
        return None
    _require_clients(settings)
    with reading("faults.availability_file"):
        return read_availability(path, NetworkClients(settings, clients).names)


def as_claimed(settings: Settings, population: Population) -> Population:
    """Return the population as its clients report it; attackers may lie."""
    wanted = settings.faults
    if wanted.claimed_samples == 1 or not wanted.attackers:
        return population
    attackers = draw_attackers(wanted.attackers, len(population), settings.seed)
    return claim_samples(population, attackers, wanted.claimed_samples)


def attack_stage(settings: Settings, clients: int) -> Stage | None:
    """Return the stage at which some clients attack, or may fail; None if the settings ask for neither."""
    wanted = settings.faults
    if not wanted.attackers and not wanted.tolerate:
        return None
    if wanted.attackers and wanted.attack == "not-finite" and not wanted.tolerate:
        told = "faults.attack = 'not-finite':"
        raise InputError(f"{told} needs faults.tolerate = true, since such results cannot be combined")
    attackers = draw_attackers(wanted.attackers, clients, settings.seed)
    stage = attacking(attackers, wanted.attack, wanted.attack_strength, wanted.claimed_loss, settings.seed)
    return stage if wanted.attackers else replace(stage, told="faults.tolerate = true")


def require_single_results(settings: Settings) -> None:
    """Reject an executor that does not train client by client if single clients may fail or attack."""
    wanted, executor = settings.faults, settings.run.executor
    needing = [name for name in ("attackers", "tolerate") if getattr(wanted, name)]
    if needing and executor in _SINGLE:
        told = f"run.executor = {executor!r}: does not train client by client, which faults.{needing[0]} needs;"
        raise InputError(f"{told} use 'serial', 'cores', 'ray' or 'auto'")


def loses_clients(settings: Settings) -> bool:
    """Return whether clients that a schedule would ask are planned to be away or late."""
    wanted = settings.faults
    timed = (wanted.deadline_seconds, wanted.slots_per_day, wanted.availability_file)
    return bool(wanted.dropout) or any(value is not None for value in timed)


def is_counted(settings: Settings) -> bool:
    """Return whether a run's rows count faults."""
    judged = settings.faults.tolerate or settings.faults.max_update_norm is not None
    return bool(loses_clients(settings) or judged or usual_norms(settings) != "off")


def usual_norms(settings: Settings) -> UsualNorms:
    """Return what becomes of updates that are much longer than usual; where nothing is set, by who sees updates."""
    if settings.faults.usual_norms is not None:
        return settings.faults.usual_norms
    is_seen = settings.run.executor == "fleet" and settings.privacy.trust == "none" and not settings.secure.sums
    return "refuse" if is_seen else "off"


def _make_screening(settings: Settings, clients: int) -> Screening | None:
    """Return the checks of results, and who colludes before them; None: all results are combined unchecked."""
    wanted = settings.faults
    usual = usual_norms(settings)
    scale = 0.0 if usual == "off" else settings.local.lr * settings.local.lr_factor
    limits = wanted.tolerate, wanted.max_update_norm, usual, scale
    if wanted.attackers and wanted.attack in COLLUSIONS:
        attackers = frozenset(draw_attackers(wanted.attackers, clients, settings.seed).tolist())
        return Colluding(*limits, attackers, wanted.attack, wanted.attack_strength)
    screening = Screening(*limits)
    return screening if screening != Screening(tolerate=False) else None


def _require_clients(settings: Settings) -> None:
    """Reject faults if there are no clients that could fail."""
    name, wanted = settings.method.name, settings.faults
    if not (why := method_kind(settings).why_one_place):
        return
    changed = [key for key, value in dict(wanted).items() if value != FaultSettings.model_fields[key].default]
    for setting in changed[:1] if is_counted(settings) or wanted.attackers else []:
        raise InputError(f"faults.{setting}: cannot be used with method.name = {name!r}, {why}")


def _weighs_equally(settings: Settings, method: Method, population: Population) -> bool:
    """Return whether a cohort's clients are weighted equally; `method` is as its name makes it."""
    wanted = settings.method
    if wanted.weights is not None and not is_weighted_mean(method.combine):
        raise InputError(
            f"method.weights = {wanted.weights!r}: is for methods that take the mean of models, but "
            f"method.name = {wanted.name!r} combines otherwise"
        )
    if wanted.weights is None:
        # On a fleet clients report their sample counts themselves, so a rule weighted by them is not robust to lies.
        return settings.run.executor == "fleet" and wanted.combine != "mean"
    pairs = ((event.weights, population.sizes[event.cohort]) for event in method.schedule.events)
    if not all(starmap(np.array_equal, pairs)) if wanted.weights == "samples" else method.prepare is not None:
        told = f"cannot be used with method.name = {wanted.name!r}, which weighs clients its own way"
        raise InputError(f"method.weights = {wanted.weights!r}: {told}")
    return wanted.weights == "equal"


def _choose_combine(settings: Settings, method: Method) -> Combine:
    """Return the rule that the settings name; `mean` keeps the method's own."""
    wanted = settings.method
    if wanted.combine == "mean":
        return method.combine
    if not is_weighted_mean(method.combine):
        option = wanted.get("option", "models")
        told = f"method.option = {option!r}" if option != "models" else f"method.name = {wanted.name!r}"
        raise InputError(
            f"method.combine = {wanted.combine!r}: replaces the mean of models, but {told} combines otherwise"
        )
    if wanted.combine in TIMES_BYZANTINE and (byzantine := wanted.get("byzantine")) is not None:
        _require_enough(method, wanted.combine, byzantine)
    rule = call("method.combine", resolve("method.combine", wanted.combine, ROBUST), dict(wanted), wanted.model_extra)
    if not callable(rule):
        raise InputError(f"method.combine = {wanted.combine!r}: must return a combine rule, a function")
    # A new object, since the rule may be a user's function that is also used elsewhere.
    return rule if needs_only_mean(rule) else says("median_of_losses")(partial(rule))


def _require_enough(method: Method, rule: str, byzantine: int) -> None:
    """Reject a rule that needs more clients than some cluster's cohort has, even if all take part."""
    least = min(
        len(event.cohort) if event.clusters is None else int(np.unique(event.clusters, return_counts=True)[1].min())
        for event in method.schedule.occupied.events
    )
    times = TIMES_BYZANTINE[rule]
    if least < (needed := times * byzantine + 3):
        most = (least - 3) // times
        advice = f"give at most {most}" if most > 0 else "use another rule, or larger cohorts"
        raise InputError(
            f"method.byzantine = {byzantine}: {rule} needs {times} x {byzantine} + 3 = {needed} clients in each "
            f"cohort, the smallest has {least}; {advice}"
        )


def _read_slots(wanted: FaultSettings, population: Population) -> npt.NDArray[np.bool_] | None:
    """Return who is available in which slot of the day, [clients, slots]; None: everyone, always."""
    if (count := wanted.slots_per_day) is None:
        return None
    if "slots" not in population.attributes:
        raise InputError(
            f"faults.slots_per_day = {count}: needs data.clients_file with a column slots, the times of each client"
        )
    slots = population.attributes["slots"]
    if slots.shape[1] > count:
        raise InputError(f"faults.slots_per_day = {count}: a client lists slot {slots.shape[1] - 1}, counted from 0")
    return np.pad(slots, ((0, 0), (0, count - slots.shape[1])))
