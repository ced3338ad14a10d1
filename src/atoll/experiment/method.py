"""From settings to a method with its whole schedule."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal
from warnings import warn

from atoll.engine.engine import Method
from atoll.engine.stages import Need
from atoll.experiment.foresight import foresee
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, SettingWarning

_NEARLY = 0.9  # of where a run is cut; the next event may not have fitted


def make_method(settings: Settings, offered: Mapping[str, Any], clients: int, phases: Callable[[], Any]) -> Method:
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
    if not isinstance(method, Method):
        raise InputError(f"{told}: must return an atoll.Method, it returned {type(method).__name__!r}")
    if method.labels is not None and len(method.labels) != clients:
        raise InputError(f"{told}: gave Method.labels for {len(method.labels)} clients, but there are {clients}")
    return replace(method, told=partial(told_by, settings))


def told_by(settings: Settings, need: Need) -> str:
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


def until(settings: Settings, method: Method, limit: Literal["virtual_seconds", "client_updates"]) -> Method:
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
