"""Reported and measured data about clients, and the client files that settings can name."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dealing.class_counts import exact_counts
from atoll.data.population import Population, Stated, slot_table
from atoll.fleet.agreed.messages import ClientReport
from atoll.fleet.agreed.randomised_response import estimate
from atoll.fleet.server.measured_times import MeasuredTimes
from atoll.network.network_records import write_direct
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.files import write_atomically


@dataclass(frozen=True, eq=False)
class ReportedTable:
    """Known data about the clients, one row each.

    Attributes:
        samples: number of samples, [clients]; NaN if unknown.
        utc_offset: hours, [clients]; NaN if unknown.
        slots: slots of the day in which each client can train; None if unknown.
        seconds_per_sample: training time, [clients]; NaN if unknown.
        upload_seconds: round-trip time without training, [clients]; NaN if unknown.
        class_counts: samples of each class, or unbiased estimates, [clients, classes]; None unless all report them.
    """

    samples: Floats
    utc_offset: Floats
    slots: tuple[tuple[int, ...] | None, ...]
    seconds_per_sample: Floats
    upload_seconds: Floats
    class_counts: Floats | None = None


def reported_table(
    reports: Mapping[int, ClientReport], clients: int, measured: MeasuredTimes | None = None
) -> ReportedTable:
    """Return reported data about `clients` clients; measurements made here take precedence."""
    rows = [reports.get(client) for client in range(clients)]
    reported = _column(rows, "seconds_per_sample")
    here = np.full(clients, np.nan) if measured is None else measured.seconds_per_sample
    return ReportedTable(
        samples=_column(rows, "samples"),
        utc_offset=_column(rows, "utc_offset"),
        slots=tuple(None if row is None else row.slots for row in rows),
        seconds_per_sample=np.where(np.isnan(here), reported, here),
        upload_seconds=np.full(clients, np.nan) if measured is None else measured.upload_seconds,
        class_counts=_class_counts(rows),
    )


def only_samples(table: ReportedTable) -> ReportedTable:
    """Return the table as if clients had reported only their samples."""
    clients = len(table.samples)
    return replace(table, utc_offset=np.full(clients, np.nan), slots=(None,) * clients, class_counts=None)


def as_reported(population: Population, table: ReportedTable) -> Population:
    """Return the population with reported instead of assumed data; itself if they agree.

    Samples, UTC offsets and slots are replaced client by client where known. Class counts are used if all clients
    report them: estimates are clipped at 0 and rounded so that they sum to the client's samples.

    Raises:
        InputError: the number of classes differs from the data's.
    """
    sizes = np.where(np.isnan(table.samples), population.sizes, table.samples).astype(np.int64)
    counts = None
    if table.class_counts is not None:
        classes = population.data.classes
        if table.class_counts.shape[1] != classes:
            raise InputError(f"clients report {table.class_counts.shape[1]} classes, but the data have {classes}")
        counts = _whole_counts(table.class_counts, sizes)
    same = np.array_equal(sizes, population.sizes)
    stated = None if same and counts is None else Stated(sizes, counts)
    attributes = dict(population.attributes)
    attributes |= {name: rows for name, rows in _attributes(population, table).items() if rows is not None}
    if stated is None and attributes.keys() == population.attributes.keys() and _agree(attributes, population):
        return population
    return replace(population, stated=stated, attributes=attributes)


def write_tables(table: ReportedTable, folder: Path, clusters: int) -> dict[str, Path]:
    """Write the files that settings accept, and return each path by its setting.

    - ``data.clients_file``: client, and utc_offset and slots if all clients report them;
    - ``network.clients_file``: client, and samples and seconds_per_sample if all are known;
    - ``network.file``: the same upload seconds to every aggregator, if all are known.

    Raises:
        InputError: the folder cannot be created.
        RunError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror or error})") from error
    data = {"utc_offset": _cells(table.utc_offset)}
    if all(slots is not None for slots in table.slots):
        data["slots"] = [" ".join(map(str, slots or ())) for slots in table.slots]
    network = {"samples": _cells(table.samples, whole=True), "seconds_per_sample": _cells(table.seconds_per_sample)}
    written = {
        "data.clients_file": _write(folder / "clients.csv", data),
        "network.clients_file": _write(folder / "speeds.csv", network),
    }
    if not np.isnan(table.upload_seconds).any():
        write_direct(folder / "links.csv", table.upload_seconds.tolist(), clusters)
        written["network.file"] = folder / "links.csv"
    return {setting: path for setting, path in written.items() if path is not None}


def _whole_counts(estimates: Floats, sizes: Ids) -> Ids:
    """Return non-negative counts that sum to the sizes, in proportion to the estimates, [clients, classes]."""
    clipped = np.maximum(estimates, 0.0)
    clipped[clipped.sum(axis=1) == 0] = 1.0  # nothing is known about them
    shares = clipped / clipped.sum(axis=1, keepdims=True)
    rows = [exact_counts(row[None], int(size), np.array([-1])) for row, size in zip(shares, sizes, strict=True)]
    return np.concatenate(rows)


def _attributes(population: Population, table: ReportedTable) -> dict[str, npt.NDArray[Any] | None]:
    """Return each column from the clients' reports, or else from the population; None where neither has it."""
    known, offset, slots = population.attributes, table.utc_offset, None
    with_slots = np.array([row is not None for row in table.slots])
    if np.isnan(offset).any():
        own = known["longitude"] / 15 if "longitude" in known else np.full(len(population), np.nan)
        offset = np.where(np.isnan(offset), known.get("utc_offset", own), offset)
    if with_slots.all() or (with_slots.any() and "slots" in known):
        before = [np.flatnonzero(row).tolist() for row in known.get("slots", ())]
        slots = slot_table([before[k] if row is None else row for k, row in enumerate(table.slots)])
    reported = not np.isnan(table.utc_offset).all() and not np.isnan(offset).any()
    return {"utc_offset": offset if reported else None, "slots": slots}


def _agree(attributes: Mapping[str, npt.NDArray[Any]], population: Population) -> bool:
    return all(np.array_equal(rows, population.attributes[name]) for name, rows in attributes.items())


def _write(path: Path, columns: Mapping[str, list[str]]) -> Path | None:
    """Write the columns that have cells; no file without any."""
    known = {name: cells for name, cells in columns.items() if cells}
    if not known:
        return None
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["client", *known])
    writer.writerows([client, *row] for client, row in enumerate(zip(*known.values(), strict=True)))
    write_atomically(path, file.getvalue().encode())
    return path


def _cells(values: Floats, whole: bool = False) -> list[str]:
    """Return a column's exact cells; none if a client's value is unknown."""
    if np.isnan(values).any():
        return []
    return [str(int(value)) if whole else repr(float(value)) for value in values]


def _column(rows: Sequence[ClientReport | None], name: str) -> Floats:
    values = [None if row is None else getattr(row, name) for row in rows]
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _class_counts(rows: Sequence[ClientReport | None]) -> Floats | None:
    counted = [_estimated(row) for row in rows if row is not None and row.class_counts is not None]
    if len(counted) < len(rows) or len({len(each) for each in counted}) != 1:
        return None
    return np.stack(counted)


def _estimated(report: ClientReport) -> Floats:
    counts = np.array(report.class_counts, np.int64)
    return counts.astype(float) if report.epsilon is None else estimate(counts, report.epsilon)
