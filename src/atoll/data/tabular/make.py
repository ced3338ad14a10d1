"""A data set from a table and its settings."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dataset import Dataset
from atoll.data.files.join import PIXEL_SCALE
from atoll.data.tabular.arrow import as_damage
from atoll.data.tabular.encoders import Encoder
from atoll.data.tabular.inputs import (
    RowEncoder,
    encode,
    fit,
    is_dense,
    make_encoder,
    read_dense,
    warn_of_exceptions,
    warn_of_names,
)
from atoll.data.tabular.roles import Roles, find_roles
from atoll.data.tabular.source import CSV, TableSource
from atoll.data.tabular.table_rows import (
    LEFT_OUT,
    TEST,
    TRAIN,
    Codes,
    Labels,
    Uses,
    collect,
    hold_out,
    holders_of,
    in_order,
    only,
)
from atoll.data.tabular.table_settings import Wanted
from atoll.data.tabular.table_targets import Targets, read_targets, with_classes_of
from atoll.data.tabular.tokens import Tokens, read_tokens
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.wording import show


@dataclass(frozen=True, eq=False)
class Windows:
    """The samples that a table's rows make.

    Attributes:
        inputs: the rows of each sample's input, [samples, window].
        targets: the row of each sample's target, [samples].
    """

    inputs: Ids
    targets: Ids


def find_windows(uses: Uses, owners: Codes, times: Any, window: int, horizon: int) -> Windows:
    """Return all windows of `window` consecutive rows of one client, by time, and the row `horizon` after the last.

    Gaps in time are ignored, and rows that are left out do not exist. A window has the use of its target's row, but a
    training window that contains a test row is left out.
    """
    rows = np.flatnonzero(uses != LEFT_OUT)
    order = rows[in_order(owners[rows], times[rows])]
    own, when = owners[order], times[order]
    if (doubled := np.flatnonzero((own[1:] == own[:-1]) & (when[1:] == when[:-1]))).size:
        one, other = order[doubled[0]], order[doubled[0] + 1]
        raise InputError(f"data.time: rows {one} and {other} have the same client and the same time")
    last = np.arange(window - 1 + horizon, len(order))
    last = last[own[last - window + 1 - horizon] == own[last]]
    places = last[:, None] - horizon - np.arange(window)[::-1]
    tested = np.concatenate([[0], np.cumsum(uses[order] == TEST)])
    looks_ahead = (uses[order[last]] == TRAIN) & (tested[last - horizon + 1] > tested[last - horizon - window + 1])
    made = Windows(order[places[~looks_ahead]], order[last[~looks_ahead]])
    for use, what in ((TRAIN, "training"), (TEST, "the test")):
        if not (uses[made.targets] == use).any():
            raise InputError(
                f"data.window = {window}: no client has {window} rows and one {horizon} later for {what}; lower it"
            )
    return made


Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """What is known of each row.

    Attributes:
        uses: for training, for the test, or left out.
        targets: what is predicted.
        owners: the client that holds it.
        groups: its client's planted group.
        times: numbers in the order of time.
    """

    uses: Uses
    targets: Targets
    owners: Labels | None = None
    groups: Labels | None = None
    times: Array | None = None


def make_table(source: TableSource, wanted: Wanted, is_known: bool = False) -> Dataset:
    """Return a table as a data set; the columns of a known one are as they must be, and bring no warnings."""
    with as_damage(source.name, others=()):
        return _make(source, wanted, is_known)


def _make(source: TableSource, wanted: Wanted, is_known: bool) -> Dataset:
    roles = find_roles(source, wanted)
    if wanted.inputs is None and not is_known:
        warn_of_names(source, [name for name in roles.inputs if name not in (wanted.categorical or ())])
    encoders = [] if wanted.tokenizer else _encoders_of(source, roles, wanted)
    rows = _read_rows(source, roles, wanted)
    windows = _windows_of(rows, wanted)
    tokens = read_tokens(source, roles.inputs, rows.uses, wanted) if wanted.tokenizer else None
    samples = tokens.rows if tokens else np.arange(len(rows.uses)) if windows is None else windows.targets
    rows, own_tests = _with_enough(rows, samples, wanted, source.name)
    train, test = (samples[rows.uses[samples] == use] for use in (TRAIN, TEST))
    targets = rows.targets
    if len(train) and targets.loss == "cross-entropy":
        targets = with_classes_of(targets, roles.target[0], train, test)
    if not (len(train) and len(test)):
        what = "the test" if len(train) else "training"
        raise InputError(f"{source.name}: no row is for {what}; see data.split, data.test_every and data.min_samples")
    (inputs, test_inputs), names = _inputs_of(source, roles, encoders, rows.uses, tokens or windows)
    if not is_known:
        warn_of_exceptions(encoders, wanted.categorical or ())
    owners = rows.owners and only(rows.owners, rows.uses <= TEST * own_tests)  # of training alone where tests are apart
    groups = rows.groups and only(rows.groups, rows.uses != LEFT_OUT)
    causal, is_csv = targets.loss == "next-token", source.pieces[0].name.endswith(CSV)
    named = {
        "inputs": tuple(names),
        "targets": targets.names,
        "owners": owners.names if owners else (),
        "groups": groups.names if groups else (),
    }
    return Dataset(
        name=source.name,
        inputs=inputs,
        targets=inputs if causal else targets.values[train],
        test_inputs=test_inputs,
        test_targets=test_inputs if causal else targets.values[test],
        classes=len(targets.names) if targets.loss == "cross-entropy" else 0,
        scale=PIXEL_SCALE if inputs.dtype == np.uint8 else 1.0,
        loss=targets.loss,
        groups=groups.codes[train] if groups else None,
        test_groups=groups.codes[test] if groups else None,
        owners=owners.codes[train] if owners else None,
        test_owners=owners.codes[test] if owners and own_tests else None,
        names={key: each for key, each in named.items() if each},
        encode=None if tokens or windows else RowEncoder(source.schema, roles.inputs, encoders, is_csv),
    )


def _read_rows(source: TableSource, roles: Roles, wanted: Wanted) -> Rows:
    table, uses = collect(source, roles, wanted.missing == "drop")
    owners, groups, times = holders_of(table, roles, uses != LEFT_OUT)
    targets = read_targets(table, roles, wanted.task, uses, source.schema)
    if not (roles.split or (uses == TEST).any()):
        uses = hold_out(uses, None if owners is None else owners.codes, times, wanted.test_every)
        if targets.loss == "cross-entropy":  # held-out rows train after all if no training row has their class
            taught = np.bincount(targets.values[uses == TRAIN], minlength=len(targets.names)) > 0
            uses = np.where((uses == TEST) & ~taught[targets.values], TRAIN, uses).astype(np.int8)
    return Rows(uses, targets, owners, groups, times)


def _windows_of(rows: Rows, wanted: Wanted) -> Windows | None:
    if wanted.window is None or rows.times is None:
        return None
    owners = np.zeros(len(rows.uses), np.int32) if rows.owners is None else rows.owners.codes
    return find_windows(rows.uses, owners, rows.times, wanted.window, wanted.horizon)


def _with_enough(rows: Rows, samples: Ids, wanted: Wanted, source: str) -> tuple[Rows, bool]:
    """Leave out clients with too few samples; return the rows, and whether test rows belong to clients that train."""
    if rows.owners is None:
        return rows, False
    own, uses = rows.owners.codes[samples], rows.uses[samples]
    held = np.bincount(own[uses == TRAIN], minlength=len(rows.owners.names))
    tested = np.bincount(own[uses == TEST], minlength=len(held))
    apart = not tested[held > 0].any()  # the test has clients of its own
    short = (held < (wanted.min_samples or 1)) & ~(apart & (tested > 0))
    if wanted.min_samples is None:
        short &= np.bincount(rows.owners.codes[rows.uses != LEFT_OUT], minlength=len(held)) > 0
        if short.any():
            name = rows.owners.names[int(np.flatnonzero(short)[0])]
            raise InputError(
                f"{source}: client {show(name)} has no sample for training ({int(short.sum())} such clients); "
                "data.min_samples = 1 leaves such clients out"
            )
        return rows, not apart
    return replace(rows, uses=np.where(short[rows.owners.codes], LEFT_OUT, rows.uses).astype(np.int8)), not apart


def _encoders_of(source: TableSource, roles: Roles, wanted: Wanted) -> list[Encoder]:
    """Return the inputs' encoders; none if they are one column of arrays or images."""
    if is_dense(source.schema, roles.inputs):
        wanted.refuse_encoding("on a column of arrays or images")
        return []
    return [make_encoder(source.schema.field(name), wanted) for name in roles.inputs]


def _inputs_of(
    source: TableSource, roles: Roles, encoders: list[Encoder], uses: Uses, windows: Windows | Tokens | None
) -> tuple[list[Array], list[str]]:
    """Return the training and test inputs, and the names of their numbers."""
    kept = [uses == TRAIN, uses == TEST]
    if isinstance(windows, Tokens):
        return [windows.values[rows[windows.rows]] for rows in kept], []
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
