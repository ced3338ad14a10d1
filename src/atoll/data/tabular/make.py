"""From a table and what its columns are to a data set."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.datasets import Dataset
from atoll.data.files.join import PIXEL_SCALE
from atoll.data.tabular.arrow import as_damage
from atoll.data.tabular.encoders import Encoder, Missing, make_encoder
from atoll.data.tabular.inputs import encode, fit, is_dense, read_dense
from atoll.data.tabular.roles import Names, Roles, find_roles
from atoll.data.tabular.source import TableSource
from atoll.data.tabular.table_rows import (
    LEFT_OUT,
    TEST,
    TRAIN,
    Labels,
    Uses,
    collect,
    hold_out,
    labels_of,
    only,
    require_unique,
    times_of,
    uses_of,
)
from atoll.data.tabular.table_targets import Targets, Task, read_targets
from atoll.data.tabular.windows import Windows, find_windows
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.wording import show

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Wanted:
    """The settings of `read_table`, which says what each means."""

    target: Names = None
    client: Names = None
    group: Names = None
    split: Names = None
    time: Names = None
    id: Names = None
    inputs: Names = None
    categorical: list[str] | None = None
    text: list[str] | None = None
    task: Task | None = None
    missing: Missing = "refuse"
    categories: int = 100
    hashes: int = 1024
    window: int | None = None
    horizon: int = 1
    test_every: int = 5
    min_samples: int | None = None

    @property
    def about_rows(self) -> set[str]:
        """All columns that are named for something else than inputs."""
        named = self.target, self.client, self.group, self.split, self.time, self.id
        return {name for names in named if names for name in ([names] if isinstance(names, str) else names)}


@dataclass(frozen=True, eq=False)
class Rows:
    """What is known of each row.

    Attributes:
        uses: for training, for the test, or left out.
        targets: what is predicted.
        owners: who holds it.
        groups: its client's planted group.
        times: its place in the order of time.
    """

    uses: Uses
    targets: Targets
    owners: Labels | None = None
    groups: Labels | None = None
    times: Array | None = None


def make_table(source: TableSource, wanted: Wanted) -> Dataset:
    """Return a table as a data set.

    Raises:
        InputError: what does not fit, in one sentence.
    """
    with as_damage(source.name, others=()):
        return _make(source, wanted)


def _make(source: TableSource, wanted: Wanted) -> Dataset:
    roles = _roles_of(source, wanted)
    encoders = _encoders_of(source, roles, wanted)
    rows = _read_rows(source, roles, wanted)
    windows = _windows_of(rows, wanted)
    samples = np.arange(len(rows.uses)) if windows is None else windows.targets
    rows, own_tests = _with_enough(rows, samples, wanted, source.name)
    parts = [samples[rows.uses[samples] == use] for use in (TRAIN, TEST)]
    for part, what in zip(parts, ("training", "the test"), strict=True):
        if not len(part):
            raise InputError(
                f"{source.name}: no row is for {what}; see data.split, data.test_every and data.min_samples"
            )
    (inputs, test_inputs), names = _inputs_of(source, roles, encoders, rows.uses, windows)
    owners = None if rows.owners is None else only(rows.owners, rows.uses != LEFT_OUT)
    groups = None if rows.groups is None else only(rows.groups, rows.uses != LEFT_OUT)
    targets = rows.targets
    named = {
        "inputs": tuple(names),
        "targets": targets.names,
        "owners": () if owners is None else owners.names,
        "groups": () if groups is None else groups.names,
    }
    return Dataset(
        name=source.name,
        inputs=inputs,
        targets=targets.values[parts[0]],
        test_inputs=test_inputs,
        test_targets=targets.values[parts[1]],
        classes=len(targets.names) if targets.loss == "cross-entropy" else 0,
        scale=PIXEL_SCALE if inputs.dtype == np.uint8 else 1.0,
        loss=targets.loss,
        groups=None if groups is None else groups.codes[parts[0]],
        test_groups=None if groups is None else groups.codes[parts[1]],
        owners=None if owners is None else owners.codes[parts[0]],
        test_owners=None if owners is None or not own_tests else owners.codes[parts[1]],
        names={key: each for key, each in named.items() if each},
    )


def _roles_of(source: TableSource, wanted: Wanted) -> Roles:
    roles = find_roles(
        source,
        target=wanted.target,
        client=wanted.client,
        group=wanted.group,
        split=wanted.split,
        time=wanted.time,
        id=wanted.id,
        inputs=wanted.inputs,
        may_repeat=wanted.window is not None,
    )
    if wanted.window is not None and not roles.time:
        raise InputError(f"data.window = {wanted.window}: needs data.time, by which rows follow each other")
    for setting in ("categorical", "text"):
        for name in getattr(wanted, setting) or []:
            if source.require(f"data.{setting}", name) not in roles.inputs:
                raise InputError(f"data.{setting}: column {name!r} is none of data.inputs")
    return roles


def _read_rows(source: TableSource, roles: Roles, wanted: Wanted) -> Rows:
    table, uses = collect(source, roles, wanted.missing == "drop")
    if roles.id:
        require_unique(table, roles.id[0])
    if roles.split:
        uses = uses_of(table, roles.split[0], uses)
    kept = uses != LEFT_OUT
    owners = labels_of(table, roles.client, "data.client", kept) if roles.client else None
    groups = labels_of(table, roles.group, "data.group", kept) if roles.group else None
    if owners is not None and groups is not None:
        _require_one_group(owners, groups, kept)
    times = times_of(table, roles.time[0]) if roles.time else None
    targets = read_targets(table, roles, wanted.task, uses, source.schema)
    if not (roles.split or (uses == TEST).any()):
        uses = hold_out(uses, None if owners is None else owners.codes, times, wanted.test_every)
        uses = _with_all_classes(uses, targets)
    return Rows(uses, targets, owners, groups, times)


def _with_all_classes(uses: Uses, targets: Targets) -> Uses:
    """Return uses with rows for training again, whose class only rows that were held out have."""
    if targets.loss != "cross-entropy":
        return uses
    taught = np.bincount(targets.values[uses == TRAIN], minlength=len(targets.names)) > 0
    return np.where((uses == TEST) & ~taught[targets.values], TRAIN, uses).astype(np.int8)


def _require_one_group(owners: Labels, groups: Labels, kept: Array) -> None:
    """Refuse a client that is in two groups: whoever trains together must be whole clients."""
    of_client = np.zeros(len(owners.names), np.int32)
    of_client[owners.codes[kept]] = groups.codes[kept]
    odd = np.flatnonzero(kept & (of_client[owners.codes] != groups.codes))
    if len(odd):
        client, own = owners.codes[odd[0]], (of_client[owners.codes[odd[0]]], groups.codes[odd[0]])
        raise InputError(
            f"data.group: client {show(owners.names[client])} is in the groups {show(groups.names[own[1]])} and "
            f"{show(groups.names[own[0]])}; a client is in one, name the group's column in data.client too to part it"
        )


def _windows_of(rows: Rows, wanted: Wanted) -> Windows | None:
    if wanted.window is None or rows.times is None:
        return None
    owners = np.zeros(len(rows.uses), np.int32) if rows.owners is None else rows.owners.codes
    return find_windows(rows.uses, owners, rows.times, wanted.window, wanted.horizon)


def _with_enough(rows: Rows, samples: Ids, wanted: Wanted, source: str) -> tuple[Rows, bool]:
    """Return rows without those of clients that have too few samples, and whether test rows are of clients that train.

    Raises:
        InputError: a client that cannot train, where the settings do not leave it out.
    """
    if rows.owners is None:
        return rows, False
    own, uses = rows.owners.codes[samples], rows.uses[samples]
    held = np.bincount(own[uses == TRAIN], minlength=len(rows.owners.names))
    tested = np.bincount(own[uses == TEST], minlength=len(held))
    has_rows = np.bincount(rows.owners.codes[rows.uses != LEFT_OUT], minlength=len(held)) > 0
    idle = has_rows & (held == 0)
    if wanted.min_samples is None and not idle.any():
        return rows, True
    if not (tested[held > 0]).any() and not (idle & (tested == 0)).any():  # new clients for the test
        return rows, False
    if wanted.min_samples is None:
        name = rows.owners.names[int(np.flatnonzero(idle)[0])]
        raise InputError(
            f"{source}: client {show(name)} has no sample for training ({int(idle.sum())} such clients); "
            "data.min_samples = 1 leaves such clients out"
        )
    short = held < wanted.min_samples
    return replace(rows, uses=np.where(short[rows.owners.codes], LEFT_OUT, rows.uses).astype(np.int8)), True


def _encoders_of(source: TableSource, roles: Roles, wanted: Wanted) -> list[Encoder]:
    """Return what encodes the inputs; nothing where they are one column of arrays or images."""
    if is_dense(source.schema, roles.inputs):
        if wanted.window is not None:
            raise InputError(f"data.window = {wanted.window}: is for columns of numbers, not of arrays or images")
        return []
    given = wanted.missing, wanted.categories, wanted.hashes, wanted.categorical or (), wanted.text or ()
    return [make_encoder(source.schema.field(name), *given) for name in roles.inputs]


def _inputs_of(
    source: TableSource, roles: Roles, encoders: list[Encoder], uses: Uses, windows: Windows | None
) -> tuple[list[Array], list[str]]:
    """Return the inputs of the samples for training and for the test, and what their numbers are called."""
    kept = [uses == TRAIN, uses == TEST]
    if not encoders:
        return read_dense(source, roles.inputs[0], kept), []
    fit(source, encoders, uses)
    names = [name for encoder in encoders for name in encoder.names]
    if not names:
        raise InputError(f"{source.name}: no value of data.inputs is left for training")
    if windows is None:
        return list(encode(source, encoders, kept)), names
    (block,) = encode(source, encoders, [uses != LEFT_OUT])
    place = np.cumsum(uses != LEFT_OUT) - 1
    return [block[place[windows.inputs[uses[windows.targets] == use]]] for use in (TRAIN, TEST)], names
