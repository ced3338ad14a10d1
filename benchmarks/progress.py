"""Measure the virtual time in which clusterings reach Table VI's accuracies on the paper's network.

Run:  python benchmarks/progress.py [--networks 5] [--patterns censyn ...] [--mnist] [--out rows.jsonl]

The network is FedUC's: 100 clients of one label each, 16 aggregators, T' = 5. The data are the digits, with seconds a
sample and a bandwidth that make computing and sending as long as with MNIST and the paper's network; `--mnist` takes
MNIST itself (recipe feduc-table-6 at scale tiny), which takes minutes a run. Every synchronous event is a probe, and
every eighth asynchronous one. In the decentralised patterns the accuracy is the aggregators' mean. With `--out` rows
that are there already are not run again.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import atoll
from atoll import make_runs, read_experiment

PATTERNS = ("censyn", "cenasy", "decsyn", "decasy")
TARGETS = (0.5, 0.6, 0.7, 0.8)
SECONDS = 600.0
CLUSTERINGS: dict[str, dict[str, Any]] = {
    "comaw": {"method": "comaw"},
    "dataw": {"method": "dataw"},
    "feduc": {"method": "feduc", "opening": "first", "time_limit": 3.0},
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


def measure(is_mnist: bool, seed: int, pattern: str, clustering: str) -> dict[str, Any]:
    history = atoll.run(table_of(is_mnist, seed, pattern, clustering)).history
    levels = history["test_accuracy" if pattern.startswith("cen") else "mean_cluster_accuracy"]
    met = [np.flatnonzero(levels >= target) for target in TARGETS]
    seconds = [float(history["virtual_time"][probes[0]]) if len(probes) else None for probes in met]
    return {"seed": seed, "pattern": pattern, "clustering": clustering, "seconds": seconds, "end": float(levels[-1])}


def report(rows: list[dict[str, Any]]) -> None:
    """Print each row of the table: mean seconds over the networks that all have, and progress against the best."""
    for pattern in PATTERNS:
        own = [row for row in rows if row["pattern"] == pattern]
        seeds = [s for s in {row["seed"] for row in own} if sum(row["seed"] == s for row in own) == len(CLUSTERINGS)]
        if not seeds:
            continue
        for place, target in enumerate(TARGETS):
            means = {}
            for name in CLUSTERINGS:
                found = [row["seconds"][place] for row in own if row["clustering"] == name and row["seed"] in seeds]
                means[name] = math.inf if None in found else sum(found) / len(found)
            best = min(seconds for name, seconds in means.items() if name != "progress")
            cells = "  ".join(f"{name} {seconds:5.0f}" for name, seconds in means.items())
            ratio = means["progress"] / best
            print(f"{pattern} {target:.0%}, {len(seeds)} networks: {cells}  against the best {ratio:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=5)
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=PATTERNS)
    parser.add_argument("--mnist", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = asked.out.read_text(encoding="utf-8").splitlines() if asked.out and asked.out.exists() else []
    rows = [json.loads(line) for line in lines]
    known = {(row["seed"], row["pattern"], row["clustering"]) for row in rows}
    for seed in range(asked.networks):
        for pattern in asked.patterns:
            for clustering in CLUSTERINGS:
                if (seed, pattern, clustering) in known:
                    continue
                rows.append(measure(asked.mnist, seed, pattern, clustering))
                if asked.out:
                    with asked.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    report(rows)


if __name__ == "__main__":
    main()
