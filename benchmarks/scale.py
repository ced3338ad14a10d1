"""Measure how an event's time, the set-up and the memory grow with clients, cohort, model and clusters, and plot them.

Run:  python benchmarks/scale.py --out DIR [--largest 1000000]

Runs are carried out as `atoll run` does, on a synthetic pool of MNIST's size and one thread. A sweep's runs take turns
in one process, an event each, so that other programs on the machine disturb all of them alike; seconds are processor
time. Set-up and peak memory are those of a process of its own for each run. Writes scale.json and scale.png. The exit
code is 1 if an event's time grows with the number of clients outside the cohort.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from atoll import Dataset, Experiment, make_runs, run_events
from atoll.report.figures.style import PALETTE, STYLE, WIDTH_INCHES, use_log_scale
from atoll.runs.run import RunProgress

SAMPLES = 50  # of each client
REPEATS = 9
EVENTS = 3  # between one turn of a run and the next
LARGEST_SLOPE = 0.02  # of log seconds against log clients
LARGEST_RATIO = 1.10  # of an event's seconds with the most clients to those with the fewest


@dataclass(frozen=True)
class Case:
    """One run: FedAvg, or FedCluster where there are several clusters."""

    clients: int = 10_000
    cohort: int = 100
    model: str = "mlp"
    clusters: int = 1
    indices: str = "held"


SWEEPS: dict[str, list[Case]] = {
    "clients": [Case(clients=n) for n in (1_000, 10_000, 100_000, 1_000_000)],
    "drawn": [Case(clients=n, indices="drawn") for n in (1_000, 100_000, 1_000_000, 15_000_000)],
    "cohort": [Case(cohort=k) for k in (10, 30, 100, 300, 1_000, 10_000)],
    "model": [Case(model=name, cohort=10) for name in ("mlp", "cnn", "lr", "alexnet")],
    "clusters": [Case(clusters=m, clients=100_000) for m in (10, 30, 100, 300, 1_000)],
}


def pool(root: str | None = None) -> Dataset:
    """Return a pool of random images with as many samples as MNIST, in bytes."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60_000, 1, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, 60_000)
    return Dataset("synthetic", images, labels, images[:1_000], labels[:1_000], 10, 1 / 255)


def make_experiment(case: Case) -> Experiment:
    """Return the run; clients share the pool's samples, since a million of them hold more than there are."""
    table = {
        "name": "scale",
        "rounds": -(-(REPEATS + 1) * EVENTS // case.clusters),
        "data": {
            "dataset": "scale:pool",
            "partition": "major-class",
            "clients": case.clients,
            "samples": SAMPLES,
            "indices": case.indices,
        },
        "model": {"name": case.model},
        "local": {"lr": 0.001, "steps": 2, "batch_size": 10},
        "clustering": {"method": "random", "clusters": case.clusters},
        "method": {
            "name": "fedavg" if case.clusters == 1 else "fedcluster",
            "fraction": min(1.0, case.cohort * case.clusters / case.clients),
        },
        "run": {"executor": "serial", "evaluate_every": 10**6, "evaluate_samples": 1_000},
    }
    return Experiment(make_runs(table)[0])


def take(progress: Generator[RunProgress], events: int) -> float:
    """Return the processor seconds per event of a run's next events."""
    began = time.process_time()
    for _ in range(events):
        next(progress)
    return (time.process_time() - began) / events


def measure_alone(case: Case) -> dict[str, Any]:
    """Set up a run and do some events; the memory is the process's peak, with the pool and the libraries."""
    began = time.process_time()
    experiment = make_experiment(case)
    with tempfile.TemporaryDirectory() as folder, closing(run_events(experiment, Path(folder) / "run")) as progress:
        next(progress)
        setup = time.process_time() - began
        take(progress, EVENTS)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return {
        **asdict(case),
        "parameters": sum(p.numel() for p in experiment.module.parameters()),
        "setup_seconds": setup,
        "gigabytes": int(status["VmHWM"].split()[0]) / 1e6,
    }


def measure_in_turns(cases: list[Case]) -> npt.NDArray[np.float64]:
    """Return the processor seconds per event, [repeats, cases], after a first turn of all runs that does not count."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [run_events(make_experiment(case), Path(folder) / str(i)) for i, case in enumerate(cases)]
        for progress in runs:
            next(progress)
        seconds = [[take(progress, EVENTS) for progress in runs] for _ in range(REPEATS + 1)]
        for progress in runs:
            progress.close()
    return np.array(seconds[1:])


def apart(*arguments: str) -> Any:
    """Return what this program prints in a new process with one thread."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *arguments]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | one_thread)
    return json.loads(made.stdout)


def growth_of(clients: list[int], seconds: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the log-log slope of seconds against clients, and the ratio of the last case's seconds to the first's.

    Args:
        clients: of each case, ascending.
        seconds: [repeats, cases]; each repeat is compared with itself, and the median over repeats is taken.
    """
    ratios = np.median(seconds / seconds[:, :1], axis=0)
    return float(np.polyfit(np.log(clients), np.log(ratios), 1)[0]), float(ratios[-1])


def fault_of(slope: float, ratio: float) -> str | None:
    """Return a sentence if an event's cost grows with the clients, else None."""
    if slope <= LARGEST_SLOPE and ratio <= LARGEST_RATIO:
        return None
    return (
        f"the cost of an event grows with the number of clients: slope {slope:.3f} (at most {LARGEST_SLOPE}), "
        f"{ratio:.2f} times as long with the most clients as with the fewest (at most {LARGEST_RATIO})"
    )


def plot(sweeps: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw a column for each sweep; clients whose indices are drawn are a second curve beside those that are held."""
    rows = {"event_seconds": "Seconds an event", "setup_seconds": "Seconds of set-up", "gigabytes": "Peak memory, GB"}
    labels = {
        "clients": "Clients",
        "cohort": "Clients in the cohort",
        "parameters": "Parameters",
        "clusters": "Clusters",
    }
    places = {name: {"drawn": "clients", "model": "parameters"}.get(name, name) for name in sweeps}
    columns = list(dict.fromkeys(places.values()))
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 5.6), layout="constrained")
        panels = figure.subplots(len(rows), len(columns), sharex="col", sharey="row", squeeze=False)
        for line, (key, label) in zip(panels, rows.items(), strict=True):
            line[0].set_ylabel(label)
            for name, measured in sweeps.items():
                axes, x = line[columns.index(places[name])], [row[places[name]] for row in measured]
                style = {
                    "color": PALETTE[name == "drawn"],
                    "label": f"indices {'drawn' if name == 'drawn' else 'held'}",
                }
                axes.plot(x, [row[key] for row in measured], marker="o", markersize=4, **style)
                axes.grid(True)
            if key == "event_seconds":
                values = [row[key] for measured in sweeps.values() for row in measured]
                use_log_scale(
                    line[0], min(values) / 1.5, 1.5 * max(values)
                )  # after the whole row, which shares its axis
            else:
                line[0].set_ylim(bottom=0)
        for axes, name in zip(panels[-1], columns, strict=True):
            axes.set_xlabel(labels[name])
            if name != "parameters":
                axes.set_xscale("log")
                axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if {"clients", "drawn"} <= sweeps.keys():
            panels[1][columns.index("clients")].legend(loc="upper left")
        figure.savefig(path)


def measure_sweep(name: str, cases: list[Case]) -> tuple[list[dict[str, Any]], npt.NDArray[np.float64]]:
    """Measure and print one sweep."""
    seconds = np.array(apart("--turns", json.dumps([asdict(case) for case in cases])))
    rows = []
    for case, own in zip(cases, np.median(seconds, axis=0), strict=True):
        row = apart("--alone", json.dumps(asdict(case))) | {"event_seconds": float(own)}
        rows.append(row)
        print(
            f"{name:10}{row['clients']:9}{row['cohort']:8}{row['parameters']:12}{row['clusters']:10}"
            f"{row['setup_seconds']:10.2f}{1e3 * row['event_seconds']:12.1f}{row['gigabytes']:8.2f}",
            flush=True,
        )
    return rows, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for scale.json and scale.png")
    parser.add_argument("--largest", type=int, default=15_000_000, help="leave out runs with more clients")
    parser.add_argument("--only", choices=SWEEPS, action="append", help="measure this sweep only; repeatable")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measure_alone(replace(Case(), **json.loads(given.alone)))))
        return
    if given.turns:
        print(json.dumps(measure_in_turns([Case(**each) for each in json.loads(given.turns)]).tolist()))
        return
    if given.out is None:
        parser.error("--out is needed")
    sweeps = {name: [case for case in SWEEPS[name] if case.clients <= given.largest] for name in given.only or SWEEPS}
    for name in ("clients", "drawn"):
        if len(sweeps.get(name, "ab")) < 2:
            parser.error(f"--largest {given.largest}: must be at least {SWEEPS[name][1].clients} for {name}")
    given.out.mkdir(parents=True, exist_ok=True)
    print(f"{'sweep':10}{'clients':>9}{'cohort':>8}{'parameters':>12}{'clusters':>10}{'set-up s':>10}", end="")
    print(f"{'ms an event':>12}{'GB':>8}")
    measured = {name: measure_sweep(name, cases) for name, cases in sweeps.items() if cases}
    report: dict[str, Any] = {name: rows for name, (rows, _) in measured.items()}
    faults = []
    for name in {"clients", "drawn"} & set(measured):
        rows, seconds = measured[name]
        slope, ratio = growth_of([row["clients"] for row in rows], seconds)
        print(f"{name}: slope of seconds against clients {slope:.4f}; the most take {ratio:.3f} times the fewest's")
        faults.append(fault_of(slope, ratio))
        report[name + " growth"] = {"slope": slope, "ratio": ratio}
    (given.out / "scale.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    plot({name: rows for name, (rows, _) in measured.items()}, given.out / "scale.png")
    if any(faults):
        sys.exit("\n".join(filter(None, faults)))


if __name__ == "__main__":
    main()
