"""Measure the time and memory that it takes to turn a table into clients, and the cost of an event.

Run:  python benchmarks/tables.py --out DIR [--rows 5000000] [--clients 100000]

Writes tables of 20 columns (a client, a class, a category of 8 and 17 numbers), a client's rows all over the file, as
Parquet and as CSV into the folder, and a hundredth of the same. Each is loaded in a process of its own, from the
settings to a population, whose peak memory is reported, libraries included; then FedAvg's events of 100 clients are
timed, the median of 15 in processor seconds. Writes tables.json. The exit code is 1 if the whole table takes 60 s or 2
GB or more, or its event 1.1 times as long as the small table's or more.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from atoll import Experiment, init, make_runs, train

NUMBERS = 17
EVENTS = 15
MOST_SECONDS, MOST_BYTES, MOST_TIMES = 60.0, 2e9, 1.1
CHUNK = 500_000


def write_tables(folder: Path, rows: int, clients: int) -> None:
    rng = np.random.default_rng(0)
    parquet = csv = None
    for low in range(0, rows, CHUNK):
        chunk = make_chunk(rng, np.arange(low, min(low + CHUNK, rows)), clients)
        parquet = parquet or pq.ParquetWriter(folder / f"{rows}.parquet", chunk.schema)
        csv = csv or pyarrow.csv.CSVWriter(folder / f"{rows}.csv", chunk.schema)
        parquet.write_table(chunk)
        csv.write_table(chunk)
    for writer in filter(None, (parquet, csv)):
        writer.close()


def make_chunk(rng: np.random.Generator, rows: Any, clients: int) -> pa.Table:
    owners = rows * 48_271 % clients  # every client has rows / clients of them, all over the file
    values = rng.normal(size=(NUMBERS, len(rows))).round(4)
    columns: dict[str, Any] = {
        "client": pa.array([f"person-{owner}" for owner in owners.tolist()]),
        "class": pa.array((values[0] + owners % 3 > 1).astype(np.int64)),
        "kind": pa.array(np.array([*"abcdefgh"])[rng.integers(8, size=len(rows))]),
    }
    return pa.table(columns | {f"x{i}": pa.array(each) for i, each in enumerate(values)})


def measure(file: Path, clients: int) -> dict[str, float]:
    """Load the table in this process; return seconds, bytes at the peak, and an event's processor seconds."""
    import torch

    torch.set_num_threads(1)
    data = {"dataset": "table", "root": str(file), "target": "class", "client": "client", "partition": "natural"}
    local, run = {"steps": 2, "batch_size": 10}, {"executor": "serial"}
    method = {"name": "fedavg", "fraction": 100 / clients}
    begin, worked = time.perf_counter(), time.process_time()
    table = {"rounds": EVENTS, "data": {**data, "clients": clients}, "local": local, "method": method, "run": run}
    settings = make_runs(table)[0]
    experiment = Experiment(settings)
    population = experiment.population
    seconds, worked = time.perf_counter() - begin, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    executor = experiment.execution.make_executor()
    times = [time.process_time()]
    for _ in train(experiment.method, executor, init(experiment.method, experiment.training.initial_models()[0])):
        times.append(time.process_time())
    executor.close()
    event = statistics.median(np.diff(times).tolist())
    loaded = {"load_seconds": seconds, "load_processor_seconds": worked, "peak_bytes": peak}
    return {"clients": len(population), **loaded, "event_seconds": event}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.clients)))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for rows, clients in ((given.rows // 100, given.clients // 100), (given.rows, given.clients)):
        write_tables(given.out, rows, clients)
        for ending in ("parquet", "csv"):
            file = given.out / f"{rows}.{ending}"
            command = [
                sys.executable,
                __file__,
                "--out",
                str(given.out),
                "--measure",
                str(file),
                "--clients",
                str(clients),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[file.name] = {**json.loads(done.stdout), "file_bytes": file.stat().st_size}
            print(file.name, found[file.name], flush=True)
    (given.out / "tables.json").write_text(json.dumps(found, indent=2) + "\n")
    return judge(
        [found[f"{rows}.{ending}"] for ending in ("parquet", "csv") for rows in (given.rows // 100, given.rows)]
    )


def judge(found: list[dict[str, float]]) -> int:
    """Return 1 if something exceeds its limit."""
    slow = [each for each in found if each["load_seconds"] >= MOST_SECONDS or each["peak_bytes"] >= MOST_BYTES]
    ratios = [large["event_seconds"] / small["event_seconds"] for small, large in (found[:2], found[2:])]
    print("an event's ratio:", ", ".join(f"{ratio:.2f}" for ratio in ratios))
    return int(bool(slow) or max(ratios) >= MOST_TIMES)


if __name__ == "__main__":
    sys.exit(main())
