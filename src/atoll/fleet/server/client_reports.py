"""Reported data about clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.client_columns import slot_table
from atoll.data.dealing.class_counts import exact_counts
from atoll.data.population import Population, Stated
from atoll.fleet.agreed.messages import ClientReport
from atoll.fleet.agreed.randomised_response import estimate
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError


@dataclass(frozen=True, eq=False)
class ReportedTable:
    """Known data about the clients, one row each.

    Attributes:
        samples: number of samples, [clients]; NaN if unknown.
        utc_offset: hours, [clients]; NaN if unknown.
        slots: slots of the day in which each client can train; None if unknown.
        class_counts: samples of each class, or unbiased estimates, [clients, classes]; None unless all report them.
    """

    samples: Floats
    utc_offset: Floats
    slots: tuple[tuple[int, ...] | None, ...]
    class_counts: Floats | None = None


def reported_table(reports: Mapping[int, ClientReport], clients: int) -> ReportedTable:
    """Return reported data about `clients` clients."""
    rows = [reports.get(client) for client in range(clients)]
    return ReportedTable(
        samples=_column(rows, "samples"),
        utc_offset=_column(rows, "utc_offset"),
        slots=tuple(None if row is None else row.slots for row in rows),
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
    """
    sizes = np.where(np.isnan(table.samples), population.sizes, table.samples).astype(np.int64)
    counts = None
    if table.class_counts is not None:
        classes = population.data.classes
        if table.class_counts.shape[1] != classes:
            raise InputError(f"clients report {table.class_counts.shape[1]} classes, but the data have {classes}")
        counts = _whole_counts(table.class_counts, sizes)
    stated = population.stated if counts is None and np.array_equal(sizes, population.sizes) else Stated(sizes, counts)
    known = population.attributes
    attributes = dict(known) | {name: rows for name, rows in _attributes(population, table).items() if rows is not None}
    unchanged = all(name in known and np.array_equal(rows, known[name]) for name, rows in attributes.items())
    if stated is population.stated and unchanged:
        return population
    return replace(population, stated=stated, attributes=attributes)


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
