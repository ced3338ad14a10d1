"""``clusterings.jsonl``: the clustering and samples behind each part of a live run's plan."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population, Stated
from atoll.experiment.conditions import ReportedClients
from atoll.support.errors import InputError, reason_of
from atoll.support.files import whole_lines
from atoll.support.limits import StrictRecord

Seconds = list[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None]


class Clustered(StrictRecord):
    """A line of ``clusterings.jsonl``: the basis of the plan from an event on.

    Attributes:
        event: the first event that it applies to; work already under way is not affected.
        clusters: number of clusters; None, here and below, if the method has no clustering.
        labels: each client's cluster, -1 for none.
        hours: UTC time of day at which each cluster trains; None: any.
        kept: why the clustering was kept; None: it is new.
        seconds_per_sample: measured training time by client; None if unknown.
        compute_seconds: of one local training, in the same way.
        upload_seconds: round-trip time without training, in the same way.
    """

    event: Annotated[int, Field(ge=0)]
    round: Annotated[int, Field(ge=0)]
    clusters: Annotated[int, Field(ge=1)] | None
    labels: list[Annotated[int, Field(ge=-1)]] | None
    hours: list[float] | None
    samples: list[Annotated[int, Field(ge=1)]]
    moved: Annotated[int, Field(ge=0)] = 0
    kept: str | None = None
    seconds_per_sample: Seconds
    compute_seconds: Seconds
    upload_seconds: Seconds


def as_told(population: Population, line: Clustered) -> ReportedClients:
    """Return the population's clients, with a line's samples and clustering."""
    sizes = np.array(line.samples, np.int64)
    if not np.array_equal(sizes, population.sizes):
        counts = None if population.stated is None else population.stated.class_counts
        population = replace(population, stated=Stated(sizes, counts))
    if line.labels is None or line.clusters is None:
        return ReportedClients(population)
    hours = None if line.hours is None else tuple(line.hours)
    return ReportedClients(population, Clustering(np.array(line.labels, np.int64), line.clusters, hours))


def read_clusterings(path: Path, clients: int, hint: str = "") -> list[Clustered]:
    """Return a run's lines, without one torn by a crash; what is told of a damaged file ends with the hint."""
    lines: list[Clustered] = []
    try:
        for text in whole_lines(path, path.parent):
            line = Clustered.model_validate_json(text)
            rows = (line.samples, line.labels, line.seconds_per_sample, line.compute_seconds, line.upload_seconds)
            if {len(row) for row in rows if row is not None} != {clients}:
                raise ValueError("another number of clients")
            lines.append(line)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)})") from error
    except ValueError as error:  # pydantic's are such
        raise InputError(f"{path} is damaged (line {len(lines) + 1}){hint}") from error
    return lines
