"""The population: one sample pool, and clients as ranges of indices into it."""

import io
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from atoll.data.array_inputs import as_array, kind_of
from atoll.data.dataset import Dataset
from atoll.data.dealing.partition_file import digest_of
from atoll.data.dealing.ranges import DrawnIndices, Parts, Ranges, within
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.requiring import require

_FORM = "must be an array [clients, samples] of indices, or a list with one array of indices per client"
_CHUNK = 100_000  # clients handled at a time when counting classes


@dataclass(frozen=True, eq=False)
class Stated:
    """What clients report to hold, when their samples are elsewhere.

    Attributes:
        sizes: samples of each client, int64 [clients].
        class_counts: samples of each class, int64 [clients, classes]; None if not reported.
    """

    sizes: Ids
    class_counts: Ids | None = None


@dataclass(frozen=True, eq=False)
class Population:
    """Clients that share one pool: client k holds the samples ``indices[offsets[k]:offsets[k + 1]]``.

    A million clients with 50 samples each take 200 MB of indices besides the pool.

    Attributes:
        data: the pool and the test set.
        indices: int32 [total], positions in the pool; or `DrawnIndices`.
        offsets: int64 [clients + 1].
        attributes: further facts, one row per client: ``utc_offset`` (hours), ``longitude`` (degrees), ``slots``
            (bool [clients, slots of the day]).
        stated: reported sizes and class counts; the samples here are then mere placeholders.
        later: (first round, indices) of each later phase, ascending, if clients' data change during the run; a client
            holds equally many samples in all of them.
    """

    data: Dataset
    indices: npt.NDArray[np.int32]
    offsets: Ids
    attributes: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    stated: Stated | None = None
    later: tuple[tuple[int, npt.NDArray[np.int32]], ...] = ()

    def __post_init__(self) -> None:
        """Refuse indices outside the pool, clients without samples, and attributes with a wrong number of rows."""
        require("data", self.data, Dataset)
        indices: Any = self.indices
        if not isinstance(indices, DrawnIndices):
            object.__setattr__(self, "indices", within(indices, len(self.data)))
        object.__setattr__(self, "offsets", _ascending(self.offsets, len(self.indices)))
        empty = np.flatnonzero(self.sizes == 0)
        if len(empty):
            raise InputError(f"client {empty[0]} has no samples ({len(empty)} such clients); every client needs one")
        later = tuple((int(first), within(indices, len(self.data))) for first, indices in self.later)
        if any(len(indices) != len(self.indices) for _, indices in later):
            raise InputError("later: must have as many indices in each phase; clients' numbers of samples are fixed")
        object.__setattr__(self, "later", later)
        for name, rows in self.attributes.items():
            if len(rows) != len(self):
                raise InputError(f"attribute {name!r} has {len(rows)} rows, but data.clients = {len(self)}")

    def __repr__(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return f"Population({len(self):,} clients of {self.data.name!r}, {each} samples each)"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> Ids:
        """Samples of each client, n_k, [clients]."""
        return np.diff(self.offsets) if self.stated is None else self.stated.sizes

    @property
    def shares(self) -> Floats:
        """Share of all samples that each client holds, p_k = n_k / n, [clients]."""
        return np.asarray(self.sizes / self.sizes.sum())

    def samples(self, client: int) -> npt.NDArray[np.int32]:
        """Return the positions in the pool of one client's samples (a view, not a copy)."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def class_counts(self) -> Ids:
        """Return how many samples of each class each client holds, [clients, classes].

        For regression, which has no classes, planted groups are counted instead.
        """
        if self.stated is not None and self.stated.class_counts is not None:
            return self.stated.class_counts
        classes = self.data.classes or int(self.data.groups_of(np.arange(len(self.data))).max()) + 1
        held = np.diff(self.offsets)
        counts = np.empty((len(self), classes), np.int64)
        for low in range(0, len(self), _CHUNK):
            sizes = held[low : low + _CHUNK]
            begin = self.offsets[low]
            rows = self.indices[begin : begin + sizes.sum()]
            labels = self.data.labels_of(rows) if self.data.classes else self.data.groups_of(rows)
            cells = np.repeat(np.arange(len(sizes)), sizes) * classes + labels
            counts[low : low + _CHUNK] = np.bincount(cells, minlength=len(sizes) * classes).reshape(-1, classes)
        return counts

    def groups(self) -> Ids:
        """Return the planted group of each client, that of its first sample, [clients]."""
        if self.data.groups is None and len(self.data) == len(self.data.inputs):  # nothing is planted
            return np.zeros(len(self), np.int64)
        return self.data.groups_of(self.indices[self.offsets[:-1]]).astype(np.int64)

    def pooled(self) -> "Population":
        """Return the population with a single client that holds the union of all clients' data."""
        return Population(self.data, self.indices, self.offsets[[0, -1]], later=self.later)

    def at(self, round_: int) -> "Population":
        """Return the clients with the data that they hold in a round: themselves, unless their data change."""
        return self._phases[self.phase_of(round_)] if self.later else self

    def phase_of(self, round_: int) -> int:
        """Return the number of the phase that a round belongs to, from 0."""
        return bisect_right(self.phase_rounds, round_) - 1

    @cached_property
    def phase_rounds(self) -> tuple[int, ...]:
        """The first round of each phase."""
        return 0, *(first for first, _ in self.later)

    @cached_property
    def _phases(self) -> "list[Population]":
        """The clients with the data of each phase."""
        return [replace(self, indices=held, later=()) for held in (self.indices, *(rows for _, rows in self.later))]


def make_population(
    data: Dataset, parts: Parts, attributes: Mapping[str, npt.NDArray[Any]] | None = None
) -> Population:
    """Make a population from a partition: an array [clients, samples] of indices, or one index array per client.

    Raises:
        InputError: if an index is outside the pool, or a client has no samples.
    """
    held = as_ranges(parts)
    if not len(held) or not len(held.indices):
        raise InputError("data.partition: the partition has no samples for any client")
    return Population(data, cast("npt.NDArray[np.int32]", held.indices), held.offsets, attributes or {})


def as_ranges(parts: Parts) -> Ranges:
    """Return a partition of any form as ranges of one array."""
    if isinstance(parts, Ranges):
        return parts
    if isinstance(parts, np.ndarray) and parts.ndim == 2:
        return Ranges(parts.reshape(-1), np.arange(len(parts) + 1) * parts.shape[1])
    rows = rows_of_clients(parts)
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    return Ranges(np.concatenate(rows) if rows else np.empty(0, int), np.concatenate([[0], ends]))


def partition_as_bytes(population: Population, tests: Population) -> bytes:
    """Return both pools' partitions as the .npz file that the partition `file` reads."""
    stream = io.BytesIO()
    held = {
        f"{pool}{name}": value
        for pool, each in (("", population), ("test_", tests))
        for name, value in (
            ("indices", np.asarray(each.indices)),
            ("offsets", each.offsets),
            ("digest", np.array(digest_of(each.data.labels))),
        )
    }
    np.savez_compressed(stream, **held)  # type: ignore[arg-type]
    return stream.getvalue()


def rows_of_clients(parts: Any, told: str = "data.partition") -> list[Ids]:
    """Return one flat index array per client."""
    if not isinstance(parts, Iterable) or (isinstance(parts, np.ndarray) and parts.ndim != 2):
        raise InputError(f"{told}: {_FORM}, not {kind_of(parts)}")
    found = []
    for client, row in enumerate(parts):
        if isinstance(row, np.ndarray) and row.dtype.kind in "iu" and row.ndim == 1 and len(row):
            found.append(row)  # the usual case, maybe a million times
            continue
        first = row[0] if isinstance(row, list | tuple) and row else row
        if isinstance(first, bool) or "bool" in str(getattr(first, "dtype", "")):
            raise InputError(f"{told}: client {client} has a mask of booleans; give np.flatnonzero(mask), its indices")
        array = as_array(f"{told}: client {client}", row)
        if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
            raise InputError(f"{told}: {_FORM}; client {client} has {kind_of(array)}")
        found.append(array if len(array) else array.astype(np.int64))
    return found


def _ascending(offsets: Any, indices: int) -> Ids:
    """Return where each client's indices begin, and where the last client's end."""
    array = np.asarray(offsets)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 2 or (np.diff(array.astype(np.int64)) < 0).any():
        raise InputError("offsets: must be ascending whole numbers, one per client and one for the end")
    if array[0] != 0 or array[-1] != indices:
        raise InputError(f"offsets: must begin with 0 and end with the number of indices, {indices}")
    return array.astype(np.int64, copy=False)
