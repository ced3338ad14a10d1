"""Clients' measurements in a run on a fleet, as settings for plans.

An event on a fleet waits for its slowest client, whose time is its training plus everything else between request and
reply. Clients do not measure the rest: the server's own work, and that the slowest client varies. It is estimated from
the run's events and added to the seconds of every training.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from atoll.experiment.experiment import Experiment
from atoll.experiment.network_clients import NetworkClients
from atoll.network.links import WATTS
from atoll.network.network_records import write_direct
from atoll.planner.candidates import with_changes
from atoll.runs.run_files import HAPPENED, MEASURED
from atoll.schedules.events import Event
from atoll.schedules.schedule_files import read_schedule
from atoll.settings.choices import method_needs, uses_network
from atoll.settings.validation import Settings, validate
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, refusing
from atoll.support.files import csv_text, make_folder, write_atomically
from atoll.support.limits import StrictRecord
from atoll.support.untrusted import read_bytes, read_toml

CLIENTS, LINKS = "clients.csv", "links.csv"
FILES = (CLIENTS, LINKS)
_UNUSED = ("trace_file", "metres_per_round", "recluster_every", "aggregators_file", "frequencies")
_LEAST = 1e-9  # seconds of a training that was too short to measure

_Seconds = list[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None]


class _Measured(StrictRecord):
    replies: list[Annotated[int, Field(ge=0)]]
    seconds_per_sample: _Seconds
    compute_seconds: _Seconds
    upload_seconds: _Seconds


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measurements of a run on a fleet.

    Attributes:
        seconds_per_sample: of training, [clients].
        compute_seconds: of one training, [clients].
        upload_seconds: of a round trip without training, with the estimated rest, [clients].
        lost: share of trainings whose results never arrived or, without `faults.deadline_seconds`, too late.
        events: how many took place.
        seconds: that they took.
    """

    folder: Path
    settings: Settings
    seconds_per_sample: Floats
    compute_seconds: Floats
    upload_seconds: Floats
    lost: float
    events: int
    seconds: float

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.compute_seconds)


def read_measurements(folder: Path) -> Measurements:
    """Return the measurements in a run's folder; clients that never answered get the median of the others."""
    told = f"--from {folder}"
    if not (folder / HAPPENED).is_file() or not (folder / MEASURED).is_file():
        raise InputError(f"{told}: must be the folder of a run on a fleet, with {HAPPENED} and {MEASURED}")
    with refusing(f"{told}: is damaged", ValueError):
        found = _Measured.model_validate_json(read_bytes(folder / MEASURED, folder))
        settings = validate(read_toml(folder / "config.toml", folder))
        events = read_schedule(folder / HAPPENED, "--from").events
    rows = (found.seconds_per_sample, found.compute_seconds, found.upload_seconds)
    if {len(row) for row in rows} != {len(found.replies)} or not any(found.replies):
        raise InputError(f"{told}: {MEASURED} has no client's times")
    zeta, compute, upload = (np.where(np.isnan(row), np.nanmedian(row), row) for row in np.array(rows, np.float64))
    lost = sum(event.dropped + event.late * (settings.faults.deadline_seconds is None) for event in events)
    return Measurements(
        folder=folder,
        settings=settings,
        seconds_per_sample=np.maximum(zeta, _LEAST),
        compute_seconds=compute,
        upload_seconds=upload + _on_top(events, compute + upload),
        lost=lost / (lost + sum(event.client_updates for event in events)) if lost else 0.0,
        events=len(events),
        seconds=events[-1].seconds,
    )


def _on_top(events: Sequence[Event], busy: Floats) -> float:
    """Return by how many seconds a training in an event exceeds its slowest client's, including the server's work.

    An event lasts until the next one begins or, if that began earlier, as with clusters that work in parallel, until
    it merges.
    """
    more = [
        (max(event.seconds, min(after.began or (0,))) - event.began[0]) / event.intra_rounds - busy[event.cohort].max()
        for event, after in zip(events, (*events[1:], events[-1]), strict=True)
        if len(event.cohort)
    ]
    return max(0.0, float(np.mean(more))) if more else 0.0


def apply(measured: Measurements, settings: Settings, out: Path) -> Settings:
    """Return settings with the measured seconds and failures, and write the files that they name.

    If a network is needed, every client reaches every aggregator in its own seconds, and all else takes no time.
    """
    experiment, known = Experiment(settings), NetworkClients(settings, measured.clients)
    if settings.data.clients != measured.clients:
        told = f"--from {measured.folder}: has {measured.clients} clients"
        raise InputError(f"{told}, but data.clients = {settings.data.clients}")
    if settings.network.file and uses_network(settings) and not method_needs(settings, "network"):
        told = f"--from {measured.folder}: clustering.method = {settings.clustering.method!r} goes by network.file"
        raise InputError(f"{told}, whose links what was measured replaces; have another clustering in run and plan")
    make_folder(out)
    whole = measured.upload_seconds / experiment.beside(measured.settings).initial.upload_share  # clocks multiply by it
    changes = [f"network.clients_file={out / CLIENTS}", f"faults.dropout={min(measured.lost, 0.99):.4g}"]
    if method_needs(experiment.settings, "network"):
        samples, power = known.samples(experiment.population.sizes), known.table and known.table.power
        zeta = np.maximum(measured.compute_seconds / samples, _LEAST)
        watts = {} if power is None else dict(zip(WATTS, astuple(power), strict=True))
        _write(out / CLIENTS, {"client": known.names, "seconds_per_sample": zeta, "samples": samples, **watts})
        write_direct(out / LINKS, dict(zip(known.names, whole, strict=True)), settings.clustering.clusters)
        changes += [f"network.file={out / LINKS}", *(f"network.{name}=" for name in _UNUSED), "network.downloads=false"]
    else:
        seconds = {"seconds_per_sample": measured.seconds_per_sample, "upload_seconds": whole}
        xy = experiment.conditions.networks[0].clients_xy if uses_network(settings) else None
        if xy is not None:  # by which they are clustered
            seconds |= {"x": xy[:, 0], "y": xy[:, 1], "power": 1000 * known.watts}
        _write(out / CLIENTS, {"client": range(measured.clients), **seconds})
    return with_changes(settings, ["network.file=", *changes, "run.executor=auto"])


def predicted_seconds(measured: Measurements, out: Path) -> float:
    """Return the predicted duration of the run itself, for the events that took place."""
    schedule = Experiment(apply(measured, measured.settings, out)).method.schedule
    return schedule.events[min(measured.events, len(schedule)) - 1].seconds


def _write(path: Path, columns: Mapping[str, Iterable[Any]]) -> None:
    write_atomically(path, csv_text([columns, *zip(*columns.values(), strict=True)]).encode())
