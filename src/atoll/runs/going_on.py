"""Whether a run can go on, and for how long: its kind, data and schedule, and the longer run that it is to become."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.experiment.experiment import Experiment
from atoll.fleet.agreed.comparable import plain
from atoll.runs.data_files import digest_of_file, digests_of, files_of
from atoll.runs.fingerprint import LENGTH, as_written, differences, flatten
from atoll.runs.rows import Recorder
from atoll.runs.run_files import HAPPENED
from atoll.runs.run_folder import RunFolder
from atoll.runs.stopping import Stopping
from atoll.schedules.events import FROM_SERVER, Event, Schedule
from atoll.schedules.recorded import line_of
from atoll.schedules.schedule_files import digest_of, write_schedule
from atoll.settings.experiment_file import overlay, resolved
from atoll.settings.validation import Settings, validate
from atoll.support.errors import InputError, refusing
from atoll.support.untrusted import read_json
from atoll.support.wording import show


def require_kind(folder: RunFolder, is_live: bool, replayed: Schedule | None) -> None:
    """Reject a run of another kind: on a fleet or not, with the method's schedule or another."""
    if is_live and not folder.happened.exists():
        raise InputError(f"--resume: {folder.path} was run in simulation, and cannot continue on a fleet")
    if not is_live and folder.happened.exists():
        raise InputError(
            f"--resume: {folder.path} was run on a fleet, and can only continue on one; to simulate it, give its "
            f"{HAPPENED} as --schedule of another run"
        )
    before = _environment(folder).get("replayed")
    if before != (None if replayed is None else digest_of(replayed)):
        how = "without" if before is None else "with another" if replayed else "with a"
        raise InputError(f"--resume: {folder.path} was run {how} --schedule; continue in the same way")


def changed_data(folder: RunFolder, settings: Settings, kind: str = "") -> str:
    """Return which file (of `kind`) is not as it was when the run was started, in words; nothing if unknown."""
    now, files = digests_of(settings), files_of(settings)
    before = _environment(folder)["data"] if (folder.path / "environment.json").is_file() else now
    for name in sorted(before.keys() | now.keys()):
        if name.startswith(kind) and before.get(name) != now.get(name):
            what = "is new" if name not in before else "is missing" if name not in now else "has changed"
            return f"{name} ({files.get(name, settings.data.root)}) {what} since {folder.path} was started"
    return ""


def mend_schedule(folder: RunFolder, schedule: Schedule) -> list[str]:
    """Rewrite the schedule if its file is missing or damaged, and say so; resuming does not read it."""
    with suppress(OSError):
        if digest_of_file(folder.schedule) == _environment(folder).get("schedule"):
            return []
    write_schedule(folder.schedule, schedule)
    return [f"{folder.schedule} was missing or damaged, and has been rewritten"]


def _environment(folder: RunFolder) -> dict[str, Any]:
    """Return the content of ``environment.json``."""
    path = folder.path / "environment.json"
    with refusing(f"{path} is missing or damaged", ValueError):
        environment = read_json(path, folder.path)
        if not isinstance(environment, dict) or not isinstance(environment.get("data"), dict):
            raise ValueError("it is not as it was written")
    return environment


def is_longer(folder: RunFolder, recorder: Recorder) -> bool:
    """Return whether a folder's run, finished or stopped, goes on to the recorder's length; refuse if it cannot."""
    settings, before = recorder.experiment.settings, folder.settings_table()
    old, new = flatten(before), flatten(as_written(settings))
    changed = [key for key in LENGTH if old.get(key) != new.get(key)]
    if recorder.experiment.schedule is not None:
        return False
    if changed and not differences({**old, **{key: new.get(key) for key in changed}}, settings):
        told = ", ".join(f"{key} was {show(old.get(key))}, is now {show(new.get(key))}" for key in changed)
        run = {key.removeprefix("run."): old.get(key) for key in LENGTH if key.startswith("run.")}
        first = Experiment(validate(overlay(resolved(settings), {"rounds": old["rounds"], "run": run})))
        if why := _why_not(folder, first, recorder.experiment):
            method = recorder.experiment.method
            is_start = method.starts == 1 and method.schedule.has_server and not method.stays
            instead = f"; a new run may begin from it, with model.start = '{folder.path}'" * is_start
            raise InputError(f"--resume: {folder.path} cannot go on ({told}): {why}{instead}")
        return True
    if folder.is_finished and folder.stopped_otherwise(settings) and not differences(before, settings):
        stopping = Stopping(recorder.rules)
        stopping.resume(folder.rows())
        return not stopping.why
    return False


def _why_not(folder: RunFolder, first: Experiment, longer: Experiment) -> str:
    """Return why a run cannot become a longer one, and what to do; empty if it can."""
    measured, whole = max((row["event"] for row in folder.rows()), default=0), len(longer.method.schedule)
    done = max([measured, *(int(each.stem[6:]) for each in folder.path.glob("checkpoint/event-*.json"))])
    if longer.planned.private is not None or folder.happened.exists():
        return "its privacy budget, or its fleet, was planned for the first length"
    is_over = folder.is_finished and not folder.summary().get("stopped")
    if done > whole or (done == whole and (is_over or measured < done)):
        settings = flatten(longer.settings.model_dump())
        limits = " or ".join(name for name in reversed(LENGTH) if settings[name] is not None)
        return f"it has done {done} events, and the new schedule has {whole}; raise {limits}"
    old, new = first.method, longer.method
    unlike = [r for r, (a, b) in enumerate(zip(old.rule.rates, new.rule.rates, strict=False)) if a != b]
    if unlike or bool(old.rule.rates) != bool(new.rule.rates):
        at = f"from round {unlike[0]} on" if unlike else "throughout"
        return f"learning rates would differ {at}; keep what follows from rounds, by local.T_max or local.total_steps"
    tried = [sum(event.round < each.restart_rounds for event in each.schedule.events) for each in (old, new)]
    if new.restarts > 1 and tried[0] != tried[1]:
        return f"its start was chosen after {tried[0]} rounds, not after method.restart_rounds = {new.restart_rounds}"
    if old.schedule.clusters != new.schedule.clusters:
        return "its schedule would differ throughout"
    if _parts(old) != _parts(new):
        return "what clients do depends on rounds"
    last = min(len(old.schedule), whole) - 1
    for one, other in zip(old.schedule.events, new.schedule.events, strict=False):
        pair = [one, other]
        if one.index == last:  # a schedule's last event has nobody to give the server's models to
            pair = [replace(e, starts=tuple(each for each in e.starts if each[1] != FROM_SERVER)) for e in pair]
        if len({json.dumps(line_of(event, 0)) for event in pair}) > 1:
            return f"its schedule would differ from event {one.index} on"
    return ""


def with_starts(state: State, events: Sequence[Event]) -> State:
    """Return the state with what its last event hands out of the server's, which a shorter schedule's may not."""
    if state.server is None or not state.events_done:
        return state
    given = [cluster for cluster, mix in events[state.events_done - 1].starts if mix == FROM_SERVER]
    starts = tuple(state.server if cluster in given else model for cluster, model in enumerate(state.starts))
    usual = tuple(state.norms if cluster in given else norms for cluster, norms in enumerate(state.usual))
    return replace(state, starts=starts, usual=usual)


def _parts(method: Method) -> list[Any]:
    """Return what training depends on besides the schedule and its rates, as far as it can be compared."""
    found: list[Any] = [replace(method.rule, rates=()), method.trained_by, *((s.name, s.digest) for s in method.stages)]
    found += [method.assign, method.combine, method.server_rule, method.regroup, method.shared, method.starts]
    made: list[Any] = []
    for each in found:
        with suppress(InputError):
            made.append(plain(each, "the method"))
    return made
