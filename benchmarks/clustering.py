"""Measure how the time and memory of FedUC's clustering grow with clients and aggregators, and plot them.

Run:  python benchmarks/clustering.py --out DIR [--largest 100000]

Every case runs in a process of its own, with one thread: class-share deviations of ten classes, aggregators on a
square grid, and a time limit of twice what clusters of equal size with mean uploads would take. With --radio clients
are placed in a square, uploads follow from positions and powers as in a run, and there is no limit; seconds of more
than 134 million pairs are then computed when needed. Writes growth.json and growth.png; seconds are processor time,
which other programs on the machine disturb least.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from atoll.clustering.feduc.greedy import feduc_labels
from atoll.clustering.feduc.problem import PATTERNS, Pattern, Problem
from atoll.network.network import Network
from atoll.network.topology import TOPOLOGIES, neighbours_of
from atoll.network.wireless import draw_watts, grid_positions, place_clients, wireless_network
from atoll.report.figures.style import PALETTE, STYLE, WIDTH_INCHES, use_log_scale

CLASSES = 10
RADIO_BYTES = 636_000  # a model, the MLP
MEAN_UPLOAD_SECONDS = 0.2
SIZES = ((1_000, 10), (1_000, 100), (3_000, 100), (10_000, 100), (10_000, 400), (30_000, 400), (100_000, 1_000))
LARGEST_DECENTRALISED = 1_000_000  # clients x aggregators: they cost O(M^2) a client


def some_network(clients: int, aggregators: int, rng: np.random.Generator) -> Network:
    """Return a network of random seconds."""
    rows = _rows_of(aggregators)
    exchange = rng.uniform(0.05, 0.3, (aggregators, aggregators))
    np.fill_diagonal(exchange, 0)
    return Network(
        rng.uniform(0.5, 2.0, clients),
        rng.uniform(0, 2 * MEAN_UPLOAD_SECONDS, (clients, aggregators)),
        rng.uniform(0.05, 0.3, aggregators),
        exchange,
        neighbours_of(TOPOLOGIES["grid"](rows=rows, columns=aggregators // rows)),
    )


def radio_network(clients: int, aggregators: int, rng: np.random.Generator) -> Network:
    """Return a network of random positions and powers, in cells of 10 m; the mean upload takes about as long."""
    rows = _rows_of(aggregators)
    side_metres = 10.0 * aggregators**0.5
    aggregators_xy, server_xy = grid_positions(rows, aggregators // rows, side_metres)
    clients_xy, watts = place_clients(clients, side_metres, rng), draw_watts(clients, rng)
    topology = TOPOLOGIES["grid"](rows=rows, columns=aggregators // rows)
    computing = rng.uniform(0.5, 2.0, clients)
    return wireless_network(clients_xy, aggregators_xy, server_xy, computing, watts, RADIO_BYTES, topology)


def _rows_of(aggregators: int) -> int:
    return next(r for r in range(int(aggregators**0.5), 0, -1) if aggregators % r == 0)


def some_problem(pattern: Pattern, clients: int, aggregators: int, radio: bool = False) -> Problem:
    rng = np.random.default_rng(0)
    network = (radio_network if radio else some_network)(clients, aggregators, rng)
    sizes = rng.integers(20, 100, clients).astype(np.float64)
    shares = rng.dirichlet(np.full(CLASSES, 0.3), clients)
    limit = np.inf if radio else 2.0 + 2 * MEAN_UPLOAD_SECONDS * clients / aggregators
    return Problem(
        pattern,
        network,
        sizes,
        shares - np.average(shares, axis=0, weights=sizes),
        np.full(aggregators, limit),
        steps=10_000,
    )


def measure(pattern: Pattern, clients: int, aggregators: int, radio: bool = False) -> dict[str, Any]:
    """Cluster once in this process; the memory is the process's peak, problem and libraries included."""
    problem = some_problem(pattern, clients, aggregators, radio)
    began, wall_began = time.process_time(), time.perf_counter()
    labels = feduc_labels(problem)
    seconds, wall_seconds = time.process_time() - began, time.perf_counter() - wall_began
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return {
        "pattern": pattern,
        "clients": clients,
        "aggregators": aggregators,
        "seconds": seconds,
        "wall_seconds": wall_seconds,
        "gigabytes": int(status["VmHWM"].split()[0]) / 1e6,
        "largest_cluster": int(np.bincount(labels).max()),
    }


def measure_apart(pattern: Pattern, clients: int, aggregators: int) -> dict[str, Any]:
    """Cluster in a new process with one thread."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", pattern, str(clients), str(aggregators)]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | one_thread)
    return dict(json.loads(made.stdout))


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 3.4), layout="constrained")
        for axes, key, label in zip(
            figure.subplots(1, 2), ("seconds", "gigabytes"), ("Processor seconds", "Peak memory, GB"), strict=True
        ):
            for pattern, colour in zip(PATTERNS, PALETTE, strict=False):
                own = [row for row in rows if row["pattern"] == pattern]
                own.sort(key=lambda row: row["clients"] * row["aggregators"])
                pairs = [row["clients"] * row["aggregators"] for row in own]
                axes.plot(pairs, [row[key] for row in own], marker="o", markersize=4, color=colour, label=pattern)
            axes.set(xscale="log", xlabel="Clients × aggregators", ylabel=label)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.xaxis.set_minor_locator(NullLocator())
            values = [row[key] for row in rows]
            if key == "seconds":
                use_log_scale(axes, min(values) / 1.5, 1.5 * max(values))
            else:
                axes.set_ylim(0, 1.1 * max(values))
            axes.grid(True)
            axes.legend(loc="upper left")
        figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for growth.json and growth.png")
    parser.add_argument("--largest", type=int, default=100_000, help="leave out cases with more clients")
    parser.add_argument("--one", nargs=3, metavar=("PATTERN", "CLIENTS", "AGGREGATORS"), help="print one case as JSON")
    parser.add_argument("--radio", action="store_true", help="with --one: uploads follow from positions")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]), int(given.one[2]), given.radio)))
        return
    if given.out is None:
        parser.error("--out is needed")
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    print(f"{'pattern':8}{'clients':>9}{'aggregators':>13}{'seconds':>10}{'wall':>9}{'GB':>7}{'largest':>9}")
    for clients, aggregators in SIZES:
        for pattern in PATTERNS:
            too_large = pattern.startswith("dec") and clients * aggregators > LARGEST_DECENTRALISED
            if clients > given.largest or too_large:
                continue
            row = measure_apart(pattern, clients, aggregators)
            rows.append(row)
            print(
                f"{pattern:8}{clients:9}{aggregators:13}{row['seconds']:10.2f}{row['wall_seconds']:9.2f}"
                f"{row['gigabytes']:7.2f}{row['largest_cluster']:9}",
                flush=True,
            )
    (given.out / "growth.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    plot(rows, given.out / "growth.png")


if __name__ == "__main__":
    main()
