"""Which column of a table is what."""

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.data.tabular.source import TableSource
from atoll.support.errors import InputError

Names = str | list[str] | None


@dataclass(frozen=True)
class Roles:
    """The columns by what they are for; each is for one thing.

    Attributes:
        target: what is predicted; several are as many labels or numbers.
        client: who holds a row; several together.
        group: the client's planted group.
        split: what the row is for.
        time: the order of a client's rows.
        id: the row's name.
        inputs: what is predicted from.
    """

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
        return tuple(dict.fromkeys((*self.target, *self.client, *self.group, *self.split, *self.time, *self.id)))


def find_roles(
    source: TableSource,
    target: Names,
    client: Names = None,
    group: Names = None,
    split: Names = None,
    time: Names = None,
    id: Names = None,
    inputs: Names = None,
    may_repeat: bool = False,
) -> Roles:
    """Return the columns that settings name; inputs are all others, unless they are named, too.

    With `may_repeat` the target is an input too, as where rows come after each other.

    Raises:
        InputError: a column that is not there, no target, or no inputs.
    """
    named = {"target": target, "client": client, "group": group, "split": split, "time": time, "id": id}
    found = {role: _columns(source, role, names) for role, names in named.items()}
    if not found["target"]:
        raise InputError("data.target is not set: it names the column that is predicted")
    for role in ("group", "split", "time", "id"):
        if len(found[role]) > 1:
            raise InputError(f"data.{role} = {list(found[role])}: must be one column")
    taken = {name for role, names in found.items() for name in names if not (may_repeat and role == "target")}
    chosen = _columns(source, "inputs", inputs) or tuple(
        name for name in source.schema.names if name not in taken and name not in source.added
    )
    refused = found["split"] + found["id"] + (() if may_repeat else found["target"])
    if leaking := [name for name in chosen if name in refused]:
        raise InputError(f"data.inputs: column {leaking[0]!r} says what is predicted or tested; leave it out")
    if not chosen:
        raise InputError(f"{source.name}: no column is left for data.inputs")
    return Roles(**found, inputs=chosen)


def _columns(source: TableSource, role: str, names: Names) -> tuple[str, ...]:
    listed: Sequence[str] = [] if names is None else [names] if isinstance(names, str) else names
    if names is not None and not listed:
        raise InputError(f"data.{role} = []: names no column; name one, or leave it out")
    return tuple(dict.fromkeys(source.require(f"data.{role}", name) for name in listed))
