"""Which column of a table plays which role."""

from dataclasses import dataclass

from atoll.data.tabular.source import TableSource
from atoll.data.tabular.table_settings import ABOUT_ROWS, Names, Wanted, names_in
from atoll.support.errors import InputError


@dataclass(frozen=True)
class Roles:
    """Columns by role, as `Wanted` describes them; a column has one role."""

    target: tuple[str, ...]
    client: tuple[str, ...]
    group: tuple[str, ...]
    split: tuple[str, ...]
    time: tuple[str, ...]
    id: tuple[str, ...]
    inputs: tuple[str, ...]

    @property
    def about_rows(self) -> tuple[str, ...]:
        """All columns but the inputs."""
        return tuple(dict.fromkeys(name for role in ABOUT_ROWS for name in getattr(self, role)))


def find_roles(source: TableSource, wanted: Wanted) -> Roles:
    """Return the columns that the settings name; without `inputs`, all remaining columns are inputs.

    With a window, earlier targets are inputs too.
    """
    found = {role: _columns(source, role, getattr(wanted, role)) for role in ABOUT_ROWS}
    for role in ("group", "split", "time", "id"):
        if len(found[role]) > 1:
            raise InputError(f"data.{role} = {list(found[role])}: must be one column")
    may_repeat = wanted.window is not None
    taken = {name for role, names in found.items() for name in names if not (may_repeat and role == "target")}
    inputs = _columns(source, "inputs", wanted.inputs) or tuple(
        name for name in source.schema.names if name not in taken and name not in source.added
    )
    refused = found["split"] + found["id"] + (() if may_repeat else found["target"])
    if leaking := [name for name in inputs if name in refused]:
        raise InputError(f"data.inputs: column {leaking[0]!r} gives away the target or the split; leave it out")
    if not inputs:
        raise InputError(f"{source.name}: no column is left for data.inputs")
    if may_repeat and not found["time"]:
        raise InputError(f"data.window = {wanted.window}: needs data.time, which orders the rows")
    for setting in ("categorical", "text"):
        for name in getattr(wanted, setting) or []:
            if source.require(f"data.{setting}", name) not in inputs:
                raise InputError(f"data.{setting}: column {name!r} is not among data.inputs")
    return Roles(**found, inputs=inputs)


def _columns(source: TableSource, role: str, names: Names) -> tuple[str, ...]:
    if names == []:
        raise InputError(f"data.{role} = []: names no column; name one, or leave it out")
    return tuple(dict.fromkeys(source.require(f"data.{role}", name, names_in(names)) for name in names_in(names)))
