"""The methods that are compared: those of ``methods.toml``, and a user's own."""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from atoll.runs.data_files import digest_of_file
from atoll.settings.plugins import resolve
from atoll.support.errors import InputError
from atoll.support.seeds import generator
from atoll.support.wording import unknown
from atoll.sweep.axes import Axis, combinations

ALONE, REFERENCE = "local", "fedavg"
"""Training alone, which a federation must beat, and the method whose costs are the budgets."""


@dataclass(frozen=True)
class Contestant:
    """A method that takes part.

    Attributes:
        name: its name on the command line and in files' names.
        title: its name in tables.
        settings: what it sets over a suite's settings.
        axes: the settings that its trials vary, with their values.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    axes: tuple[Axis, ...]

    @property
    def code(self) -> str:
        """The digest of the file that makes a method of one's own; empty for built-in ones."""
        with suppress(InputError):  # of one that cannot run, which is told where it would
            if ":" in self.name:
                resolve("method.name", self.name, {})
                return digest_of_file(Path(str(sys.modules[self.name.partition(":")[0]].__file__)))
        return ""

    def trials(self, number: int) -> list[list[str]]:
        """Return ``section.key=value`` texts for each trial: a fixed draw from all combinations, without repetition."""
        each = list(combinations(self.axes))
        drawn = generator(0, "trials", len(each)).permutation(len(each))[:number]
        return [[f"{axis.name}={text}" for axis, text in zip(self.axes, each[i], strict=True)] for i in drawn]


def find_contestants(names: Sequence[str] = ()) -> list[Contestant]:
    """Return the methods of these names, by default all; of a user's own (``module:function``) the rate alone."""
    known = _known()
    if len(set(names)) < len(names):
        raise InputError(f"--methods {','.join(names)}: names a method twice")
    if odd := [name for name in names if name not in known and ":" not in name]:
        raise InputError(f"--methods {odd[0] or repr('')}: {unknown(odd[0], known)}, or module:function for your own")
    rates = tuple(axis for axis in known[REFERENCE].axes if axis.name == "local.lr")
    return [known.get(name) or Contestant(name, name, {"method": {"name": name}}, rates) for name in names or known]


@cache
def _known() -> dict[str, Contestant]:
    table = tomllib.loads((resources.files("atoll.benchmark") / "methods.toml").read_text(encoding="utf-8"))
    shared = table.pop("shared")
    found = {}
    for name, own in table.items():
        axes = (Axis(key, tuple(map(str, values))) for key, values in {**shared, **own.get("over", {})}.items())
        found[name] = Contestant(name, own["title"], own["set"], tuple(axes))
    return found
