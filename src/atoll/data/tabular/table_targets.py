"""What is predicted: a class, several labels that each apply or not, or real numbers."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np
import numpy.typing as npt

from atoll.data.tabular.column_types import is_numeric, numbers, whole_column
from atoll.data.tabular.roles import Roles
from atoll.data.tabular.table_rows import TEST, Labels, Uses, labels_of, only
from atoll.data.tabular.table_settings import Task
from atoll.support.arrays import Ids, Mask
from atoll.support.errors import InputError, SettingWarning
from atoll.support.wording import show

if TYPE_CHECKING:
    import pyarrow as pa

MOST_CLASSES = 2**16
_PLAINLY_CLASSES = 100  # more different whole numbers than these may be quantities
_RARELY_CLASSES = 20  # more than these often are, such as ages


@dataclass(frozen=True, eq=False)
class Targets:
    """What is predicted of each row.

    Attributes:
        values: class numbers as int64 [rows], or float32 [rows] or [rows, labels].
        names: of classes or labels.
    """

    values: npt.NDArray[Any]
    loss: str
    names: tuple[str, ...]


def read_targets(table: "pa.Table", roles: Roles, task: Task | None, uses: Uses, schema: "pa.Schema") -> Targets:
    """Return the targets; those of rows that are left out mean nothing.

    Without `task`, texts, booleans and up to 100 different whole numbers are classes, other numbers regression, and
    several columns of zeros and ones are labels.
    """
    kept = uses <= TEST
    if task == "causal":
        return Targets(np.zeros(0, np.float32), "next-token", ())
    found = task or _task_of(table, roles.target, kept)
    if found == "classes":
        if len(roles.target) > 1:
            raise InputError(
                f"data.task = 'classes': needs one column, but data.target = {list(roles.target)} names several"
            )
        return _classes(table, roles.target[0], uses, schema)
    values = np.stack([_column(table, name, kept) for name in roles.target], axis=1)
    if found == "labels":
        _require_binary(values[kept], roles.target)
        return Targets(values.astype(np.float32), "binary-cross-entropy", roles.target)
    with np.errstate(over="ignore"):
        values = (values if len(roles.target) > 1 else values[:, 0]).astype(np.float32)
    if not np.isfinite(values[kept]).all():
        told = repr(roles.target[0]) if len(roles.target) == 1 else str(list(roles.target))
        raise InputError(f"data.target = {told}: holds numbers that are not finite in 32 bits")
    return Targets(values, "squared", roles.target)


def _task_of(table: "pa.Table", names: tuple[str, ...], kept: Mask) -> Task:
    import pyarrow as pa

    kinds = [table.schema.field(name).type for name in names]
    if len(names) > 1:
        is_binary = all(is_numeric(kind) for kind in kinds) and all(
            np.isin(_column(table, name, kept)[kept], (0, 1)).all() for name in names
        )
        return "labels" if is_binary else "regression"
    if not is_numeric(kinds[0]) or pa.types.is_boolean(kinds[0]):
        return "classes"
    if not pa.types.is_integer(kinds[0]):
        return "regression"
    if (count := len(np.unique(_column(table, names[0], kept)[kept]))) <= _PLAINLY_CLASSES:
        if count > _RARELY_CLASSES:
            told = f"its {count} different whole numbers are taken as {count} classes"
            hint = "set data.task = 'regression' to predict a number, or 'classes' to silence this"
            warn(f"data.target = {names[0]!r}: {told}; {hint}", SettingWarning, 2)
        return "classes"
    raise InputError(
        f"data.target = {names[0]!r}: has {count} different whole numbers; set data.task to 'regression' or 'classes'"
    )


def _classes(table: "pa.Table", name: str, uses: Uses, schema: "pa.Schema") -> Targets:
    labels = only(labels_of(table, [name], "data.target", uses <= TEST), uses <= TEST)
    if len(labels.names) > MOST_CLASSES:
        raise InputError(f"data.target = {name!r}: has {len(labels.names)} classes; at most {MOST_CLASSES} are allowed")
    return Targets(labels.codes.astype(np.int64), "cross-entropy", _told_names(labels, name, schema))


def with_classes_of(targets: Targets, name: str, train: Ids, test: Ids) -> Targets:
    """Return the targets with the classes of these samples alone; refuse one that only the test has."""
    if only_tested := np.setdiff1d(targets.values[test], targets.values[train]).tolist():
        raise InputError(
            f"data.target = {name!r}: only test rows have the class {show(targets.names[only_tested[0]])}; training "
            "rows must have every class"
        )
    labels = only(Labels(targets.values, targets.names), train)
    if len(labels.names) == 1:
        told = f"has one value only, {show(labels.names[0])}, in the rows that are used"
        raise InputError(f"data.target = {name!r}: {told}; there is nothing to predict")
    return Targets(labels.codes.astype(np.int64), targets.loss, labels.names)


def _told_names(labels: Labels, name: str, schema: "pa.Schema") -> tuple[str, ...]:
    """Return the classes' names, from Hugging Face's metadata if there are any."""
    try:
        told = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][name]["names"]
        return tuple(str(told[int(each)]) for each in labels.names)
    except (KeyError, ValueError, TypeError, IndexError, RecursionError):
        return labels.names


def _column(table: "pa.Table", name: str, kept: Mask) -> npt.NDArray[np.float64]:
    column = whole_column(table, name)
    if not is_numeric(column.type):
        shown = next((show(value) for value in column.to_pylist() if value is not None), "nothing")
        raise InputError(f"data.target = {name!r}: must hold numbers for this task, it holds {shown}")
    values = numbers(column)
    if np.isnan(values[kept]).any():
        at = int(np.flatnonzero(np.isnan(values) & kept)[0])
        raise InputError(f"data.target = {name!r}: row {at} of the table, counted from 0, lacks it")
    return values


def _require_binary(values: npt.NDArray[np.float64], names: tuple[str, ...]) -> None:
    for name, column in zip(names, values.T, strict=True):
        if not np.isin(column, (0, 1)).all():
            raise InputError(f"data.task = 'labels': column {name!r} must hold only 0 and 1, or true and false")
