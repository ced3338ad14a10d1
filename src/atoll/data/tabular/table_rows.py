"""What is known of rows: their client, group and order, and whether they are for training or the test."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from atoll.data.tabular.arrow import compact
from atoll.data.tabular.column_types import is_discrete, is_missing, is_text, kind_of_values, plain, whole_column
from atoll.data.tabular.roles import Roles
from atoll.data.tabular.source import SPLITS, TableSource
from atoll.support.arrays import Ids, Mask
from atoll.support.errors import InputError
from atoll.support.wording import natural, show

if TYPE_CHECKING:
    import pyarrow as pa

Codes = npt.NDArray[np.int32]
Uses = npt.NDArray[np.int8]

TRAIN, TEST, LEFT_OUT = 0, 1, 2
_USES = {"train": TRAIN, "test": TEST, "other": LEFT_OUT}


@dataclass(frozen=True, eq=False)
class Labels:
    """A column of names, numbered in their natural order.

    Attributes:
        codes: the number of each row's name, [rows].
        names: by number.
    """

    codes: Codes
    names: tuple[str, ...]


def collect(source: TableSource, roles: Roles, drop: bool) -> "tuple[pa.Table, Uses]":
    """Return all columns but the inputs, and each row's use as far as columns, files' names and missing values say.

    To `drop` is to leave out rows that lack an input.
    """
    import pyarrow as pa

    wanted = roles.about_rows or roles.inputs[:1]
    columns = [*wanted, *(name for name in roles.inputs if drop and name not in wanted)]
    batches, uses = list[pa.RecordBatch](), [np.zeros(0, np.int8)]
    for piece in source.pieces:
        for batch in piece.read(columns):
            use = np.full(batch.num_rows, _USES[piece.split or "train"], np.int8)
            for name in roles.inputs if drop else ():
                use[is_missing(batch.column(name))] = LEFT_OUT
            batches.append(compact(batch.select(list(wanted))))
            uses.append(use)
    if not sum(batch.num_rows for batch in batches):
        raise InputError(f"{source.name}: has no rows")
    table, known = pa.Table.from_batches(batches).unify_dictionaries(), np.concatenate(uses)
    if roles.id:
        _require_unique(table, roles.id[0])
    return table, _uses_of(table, roles.split[0], known) if roles.split else known


def holders_of(table: "pa.Table", roles: Roles, kept: Mask) -> tuple[Labels | None, Labels | None, Any]:
    """Return each row's client, its client's group and its time, if columns say so; those not kept may lack them."""
    owners = labels_of(table, roles.client, "data.client", kept) if roles.client else None
    groups = labels_of(table, roles.group, "data.group", kept) if roles.group else None
    if owners is not None and groups is not None:
        _require_one_group(owners, groups, kept)
    return owners, groups, _times_of(table, roles.time[0]) if roles.time else None


def _require_one_group(owners: Labels, groups: Labels, kept: Mask) -> None:
    """Refuse a client in two groups, since whole clients train together."""
    of_client = np.zeros(len(owners.names), np.int32)
    of_client[owners.codes[kept]] = groups.codes[kept]
    odd = np.flatnonzero(kept & (of_client[owners.codes] != groups.codes))
    if len(odd):
        client, own = owners.codes[odd[0]], (of_client[owners.codes[odd[0]]], groups.codes[odd[0]])
        raise InputError(
            f"data.group: client {show(owners.names[client])} is in the groups {show(groups.names[own[1]])} and "
            f"{show(groups.names[own[0]])}; name the group's column in data.client too, which splits such clients"
        )


def labels_of(table: "pa.Table", names: Sequence[str], setting: str, rows: Mask | None = None) -> Labels:
    """Return columns of names as numbers; several columns are joined with " / ". By default all rows need a value."""
    first, *others = (_one_column(table, name, setting, rows) for name in names)
    for other in others:
        pairs = first.codes.astype(np.int64) * len(other.names) + other.codes
        known, codes = np.unique(pairs, return_inverse=True)
        told = [f"{first.names[k // len(other.names)]} / {other.names[k % len(other.names)]}" for k in known.tolist()]
        first = Labels(codes.astype(np.int32), tuple(told))
    return first


def _one_column(table: "pa.Table", name: str, setting: str, rows: Mask | None) -> Labels:
    import pyarrow as pa

    column = whole_column(table, name)
    lacking = is_missing(column) & (True if rows is None else rows)
    if lacking.any():
        at = int(np.flatnonzero(lacking)[0])
        raise InputError(f"{setting} = {name!r}: row {at} of the table, counted from 0, lacks it")
    kind = kind_of_values(column)
    if pa.types.is_floating(kind):
        column = _whole(column, name, setting)
    elif not (is_text(kind) or is_discrete(kind)):
        raise InputError(f"{setting} = {name!r}: the column holds {kind}; it must hold texts, whole numbers or dates")
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    texts = [" ".join(str(value).split())[:200] for value in encoded.dictionary.to_pylist()]
    order = sorted(range(len(texts)), key=lambda i: natural(texts[i]))
    rank = np.empty(len(texts), np.int32)
    rank[order] = np.arange(len(texts))
    codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return Labels(rank[codes] if len(texts) else codes.astype(np.int32), tuple(texts[i] for i in order))


def _whole(column: "pa.Array", name: str, setting: str) -> "pa.Array":
    import pyarrow as pa

    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InputError(f"{setting} = {name!r}: the column holds numbers that are not whole") from error


def _times_of(table: "pa.Table", name: str) -> Ids | npt.NDArray[np.float64]:
    """Return a column of times as numbers in the same order."""
    import pyarrow as pa

    column = plain(whole_column(table, name))
    if is_missing(column).any():
        raise InputError(f"data.time = {name!r}: the column lacks values; every row needs a time")
    if is_text(column.type):
        column = _parsed(column, name)
    if pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    if pa.types.is_date32(column.type) or pa.types.is_time32(column.type):
        column = column.cast(pa.int32())
    if not (pa.types.is_integer(column.type) or pa.types.is_temporal(column.type)):
        raise InputError(f"data.time = {name!r}: the column holds {column.type}; it must hold dates, times or numbers")
    return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)


def _parsed(column: "pa.Array", name: str) -> "pa.Array":
    import pyarrow as pa

    try:
        return column.cast(pa.timestamp("us"))
    except pa.ArrowInvalid as error:
        odd = next(iter(re.findall("string: '(.*)' as a scalar", str(error))), None)
        raise InputError(
            f"data.time = {name!r}: {show(odd)} is not an ISO date, such as 2024-03-31 or 2024-03-31 12:00; rewrite "
            "the column"
        ) from error


def _uses_of(table: "pa.Table", name: str, known: Uses) -> Uses:
    """Return each row's use by a column of ``train``, ``test`` and ``validation``; the last are left out."""
    labels = labels_of(table, [name], "data.split")
    odd = [text for text in labels.names if text.lower() not in SPLITS]
    if odd:
        raise InputError(
            f"data.split = {name!r}: the column holds {show(odd[0])}; it must hold train or test, or validation for "
            "rows to leave out"
        )
    told = np.array([_USES[SPLITS[text.lower()]] for text in labels.names], np.int8)[labels.codes]
    return np.where(known == LEFT_OUT, known, told).astype(np.int8)


def hold_out(uses: Uses, owners: Codes | None, times: Any, every: int) -> Uses:
    """Hold out one row in `every` of each client's for the test: its latest ones, or without times every such row.

    A client with fewer rows keeps them all for training.
    """
    if every < 2:
        raise InputError(f"data.test_every = {every}: must be at least 2")
    rows = np.flatnonzero(uses != LEFT_OUT)
    own = np.zeros(len(rows), np.int32) if owners is None else owners[rows]
    order = in_order(own, None if times is None else times[rows])
    sizes = np.bincount(own)
    begin = np.cumsum(sizes) - sizes
    sorted_own = own[order]
    place = np.arange(len(rows)) - begin[sorted_own]
    size = sizes[sorted_own]
    is_test = place % every == every - 1 if times is None else place >= size - size // every
    held = np.zeros_like(uses)
    held[uses == LEFT_OUT] = LEFT_OUT
    held[rows[order[is_test]]] = TEST
    return held


def in_order(owners: Codes, times: Any) -> Ids:
    """Return rows client by client, each client's by time, or without times in the order of the file."""
    return np.asarray(np.argsort(owners, kind="stable") if times is None else np.lexsort((times, owners)))


def _require_unique(table: "pa.Table", name: str) -> None:
    """Refuse names that several rows share."""
    import pyarrow.compute as pc

    column = table.column(name)
    if pc.count_distinct(column, mode="all").as_py() < len(column):
        doubled = next(pair["values"] for pair in column.value_counts().to_pylist() if pair["counts"] > 1)
        raise InputError(f"data.id = {name!r}: several rows are called {show(doubled)}; ids must be unique")


def only(labels: Labels, rows: Mask | Ids) -> Labels:
    """Return the labels with the names that these rows use, renumbered; other rows' codes mean nothing."""
    used = np.unique(labels.codes[rows])
    renumbered = np.zeros(len(labels.names), np.int32)
    renumbered[used] = np.arange(len(used))
    return Labels(renumbered[labels.codes], tuple(labels.names[i] for i in used.tolist()))
