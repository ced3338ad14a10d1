"""Measure the virtual time in which clusterings reach Table VI's accuracies on the paper's network.

Run:  python benchmarks/progress.py [--networks 5] [--seeds 3] [--patterns censyn ...] [--mnist] [--out rows.jsonl]

The network is FedUC's: 100 clients of one label each, 16 aggregators, T' = 5. A network is where clients are and how
fast they compute and send; a seed decides who has which data, and the training. The data are the digits, with seconds a
sample and a bandwidth that make computing and sending as long as with MNIST and the paper's network; `--mnist` takes
MNIST itself (recipe feduc-table-6 at scale tiny), which takes minutes a run. Every synchronous event is a probe, and
every eighth asynchronous one. In the decentralised patterns the accuracy is the aggregators' mean. A run ends at the
last target, or after 600 s. "feduc" is Algorithm 2 as printed, "opened" the same with a client at every aggregator;
ComAw is the nearest aggregator. With `--out`, existing rows are not run again.
"""

import argparse
import itertools
import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from atoll import Experiment, Settings, make_runs, read_experiment
from atoll.experiment.network_clients import NetworkClients
from atoll.network.wireless import draw_watts
from atoll.runs.run import RunProgress, run_events
from atoll.support.estimates import estimate
from atoll.support.seeds import generator

PATTERNS = ("censyn", "cenasy", "decsyn", "decasy")
TARGETS = (0.5, 0.6, 0.7, 0.8)
SECONDS = 600.0
CLUSTERINGS: dict[str, dict[str, Any]] = {
    "comaw": {"method": "comaw"},
    "dataw": {"method": "dataw"},
    "feduc": {"method": "feduc", "time_limit": 3.0},
    "opened": {"method": "feduc", "opening": "first", "time_limit": 3.0},
    "time": {"method": "feduc", "objective": "time", "seconds": SECONDS, "refine": True, "time_limit": 100.0},
    "progress": {"method": "feduc", "objective": "progress"},
}
SAMPLES = 60_000 / 1_437  # of MNIST for one of the digits
BYTES = 2_678_824 / 60_040  # of the paper's model for one of mlp's on the digits
DIGITS: dict[str, Any] = {
    "rounds": 20_000,
    "data": {"dataset": "digits", "partition": "one-label", "size_ratio": 3, "clients": 100},
    "model": {"name": "mlp"},
    "local": {"lr": 0.05, "steps": 1, "batch_size": 16},
    "clustering": {"clusters": 16},
    "network": {"seconds_per_sample": [0.001 * SAMPLES, 0.003 * SAMPLES], "bandwidth_hz": 10e6 / BYTES},
    "method": {"name": "hierarchical", "intra_rounds": 5},
    "run": {"virtual_seconds": SECONDS, "executor": "weighted", "evaluate_samples": 500},
}


def table_of(is_mnist: bool, seed: int, pattern: str, clustering: str) -> dict[str, Any]:
    table: dict[str, Any] = DIGITS
    if is_mnist:
        runs = make_runs(read_experiment("feduc-table-6"), "tiny")
        settings = next(each for each in runs if (each.panel, each.label) == ("CenSyn", "ComAw"))
        table = settings.model_dump(exclude_none=True, exclude={"label", "panel", "description"})
    every = 5 if pattern.endswith("syn") else 40
    return {
        **table,
        "seed": seed,
        "clustering": {"clusters": 16, **CLUSTERINGS[clustering]},
        "method": {**table["method"], "pattern": pattern},
        "run": {**table["run"], "evaluate_every": every},
    }


def write_network(settings: Settings, path: Path) -> None:
    """Write where these settings' clients are, how strongly they send, and how long they take on a sample."""
    xy = Experiment(settings).conditions.networks[0].clients_xy
    assert xy is not None
    watts = draw_watts(len(xy), generator(settings.seed, "powers"), *settings.network.client_milliwatts)
    columns = (
        range(len(xy)),
        *xy.T.tolist(),
        (1000 * watts).tolist(),
        NetworkClients(settings, len(xy)).speeds.tolist(),
    )
    lines = [",".join(map(repr, row)) for row in zip(*columns, strict=True)]
    path.write_text("\n".join(["client,x,y,power,seconds_per_sample", *lines]) + "\n", encoding="utf-8")


def settings_on(clients: Path, is_mnist: bool, network: int, seed: int, pattern: str, clustering: str) -> Settings:
    """Return a run's settings, and write the file of its network's clients."""
    (drawn,) = make_runs(table_of(is_mnist, network, pattern, "comaw"))
    write_network(drawn, clients)
    table = table_of(is_mnist, 10 * network + seed, pattern, clustering)
    table["network"] = {**table["network"], "clients_file": str(clients)}
    (settings,) = make_runs(table)
    return settings


def measure(is_mnist: bool, network: int, seed: int, pattern: str, clustering: str) -> dict[str, Any]:
    """Return a run's probes until it has met all targets: virtual seconds, accuracies and client updates."""
    column = "test_accuracy" if pattern.startswith("cen") else "mean_cluster_accuracy"
    with tempfile.TemporaryDirectory() as folder:
        clients = Path(folder) / "clients.csv"
        experiment = Experiment(settings_on(clients, is_mnist, network, seed, pattern, clustering))
        with closing(run_events(experiment, Path(folder) / "run")) as steps:
            rows = list(until_met(steps, column))
    names = ("virtual_time", column, "client_updates")
    probes = [[row[name] for name in names] for row in rows]
    return {"network": network, "seed": seed, "pattern": pattern, "clustering": clustering, "probes": probes}


def until_met(steps: Iterable[RunProgress], column: str) -> Iterator[dict[str, Any]]:
    for row in (step.row for step in steps):
        if row is not None:
            yield row
            if row[column] >= TARGETS[-1]:
                return


def seconds_of(row: dict[str, Any]) -> list[float]:
    """Return the virtual seconds to each target; inf if it is missed."""
    return [next((s for s, level, _ in row["probes"] if level >= target), math.inf) for target in TARGETS]


def report(rows: list[dict[str, Any]]) -> None:
    """Print the table's rows over what all clusterings have run: means with 95 % intervals, and against the best."""
    for pattern in PATTERNS:
        found: dict[tuple[int, int], dict[str, list[float]]] = {}
        for row in rows:
            if row["pattern"] == pattern:
                found.setdefault((row["network"], row["seed"]), {})[row["clustering"]] = seconds_of(row)
        whole = [each for each in found.values() if len(each) == len(CLUSTERINGS)]
        for place, target in enumerate(TARGETS if whole else ()):
            runs = {name: [each[name][place] for each in whole] for name in CLUSTERINGS}
            rivals = [name for name in CLUSTERINGS if name != "progress"]
            best = min(rivals, key=lambda name: float(np.mean(runs[name])))
            ratio = np.divide(runs["progress"], runs[best])
            cells = " | ".join(with_interval(runs[name], 0) for name in CLUSTERINGS)
            print(
                f"{pattern} | {target:.0%} | {cells} | {np.mean(runs['progress']) / np.mean(runs[best]):.3f}, ", end=""
            )
            print(f"run by run {with_interval(ratio.tolist(), 2)} of {best}, {len(whole)} runs each")


def with_interval(values: list[float], digits: int) -> str:
    """Return a mean with its 95 % interval over all runs, or how many met the target if some did not."""
    if not np.isfinite(values).all():
        return f"{np.isfinite(values).sum()} of {len(values)}"
    found = estimate(values)
    half = "" if found.high is None else f" ± {found.high - found.mean:.{digits}f}"
    return f"{found.mean:.{digits}f}{half}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=PATTERNS)
    parser.add_argument("--mnist", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = asked.out.read_text(encoding="utf-8").splitlines() if asked.out and asked.out.exists() else []
    rows = [json.loads(line) for line in lines]
    names = ("network", "seed", "pattern", "clustering")
    known = {tuple(row[name] for name in names) for row in rows}
    for seed, network in itertools.product(range(asked.seeds), range(asked.networks)):
        for run in itertools.product([network], [seed], asked.patterns, CLUSTERINGS):
            if run in known:
                continue
            rows.append(measure(asked.mnist, *run))
            if asked.out:
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    report(rows)


if __name__ == "__main__":
    main()
