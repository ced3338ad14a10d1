"""Variants of an experiment: on a fleet, or with a given schedule."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from atoll.experiment.experiment import Experiment
from atoll.experiment.faults import usual_norms
from atoll.fleet.agreed.agreement import agree, require_fleet
from atoll.fleet.agreed.messages import most_bytes
from atoll.fleet.agreed.transport import Fleet
from atoll.fleet.server.attendance import Attendance
from atoll.fleet.server.fleet_executor import FleetExecutor
from atoll.fleet.server.joining import Joined, wait_for_nodes
from atoll.fleet.server.notices import Notices
from atoll.fleet.server.reclustering import require_reclustering
from atoll.fleet.server.soundness import Soundness
from atoll.schedules.schedule_files import read_schedule
from atoll.support.errors import InputError
from atoll.support.requiring import require_made


def replaying(experiment: Experiment, schedule: Path | str) -> Experiment:
    """Return the experiment with the events of a run folder's ``happened.jsonl`` or ``schedule.npz`` as its schedule.

    A run on a fleet is replayed in this process, with results bit-identical to those of nodes.
    """
    settings, events = experiment.settings, read_schedule(Path(schedule))
    happened = Path(schedule).suffix == ".jsonl" or any(event.answered is not None for event in events.events)
    if happened and usual_norms(settings) == "refuse":  # the file says whose were refused
        settings = settings.but("faults", usual_norms="note")
    if settings.run.executor == "fleet":
        settings = settings.but("run", executor="serial")
    made = replace(experiment, settings=settings, schedule=events)
    require_made(made.method)
    return made


def with_fleet(experiment: Experiment) -> Experiment:
    """Return the experiment with ``run.executor = "fleet"``."""
    settings = experiment.settings
    if experiment.schedule is not None:
        raise InputError("--schedule: recorded events are replayed in simulation, not on a fleet")
    require_fleet(settings)
    require_reclustering(experiment)
    if settings.faults.deadline_seconds is not None:
        raise InputError(
            f"faults.deadline_seconds = {settings.faults.deadline_seconds:g}: is for simulation; with run.executor = "
            "'fleet' set fleet.deadline_seconds"
        )
    if (restarts := settings.method.get("restarts", 1)) > 1:
        raise InputError(f"method.restarts = {restarts}: is for simulation; with run.executor = 'fleet' set 1")
    return experiment if settings.run.executor == "fleet" else Experiment(settings.but("run", executor="fleet"))


def join(experiment: Experiment, fleet: Fleet, tell: Callable[[str], None]) -> tuple[FleetExecutor, Joined]:
    """Wait for enough nodes, and tell what changes; return the executor that trains on them, and the nodes."""
    settings = experiment.settings
    agreement = agree(settings, experiment.population.data, experiment.module, experiment.method)
    fleet.allow(most_bytes(agreement.sent_form))
    fleet_settings = settings.fleet
    joined = wait_for_nodes(fleet, agreement, fleet_settings.nodes, fleet_settings.wait_seconds, tell)
    # Sums of updates are not models that can be measured; private runs clip every update anyway.
    is_sound = Soundness(experiment.execution.make_evaluator()) if experiment.method.release is None else lambda _: True
    executor = FleetExecutor(
        fleet,
        joined.nodes,
        agreement,
        fleet_settings.deadline_seconds,
        joined.samples,
        is_sound,
        Attendance(fleet_settings.strikes, tell),
        Notices(tell),
    )
    executor.left_out |= joined.left_out
    return executor, joined
