"""Measure what the planner's race picks, and its cost, against running every plan on the paper's network.

Run:  python benchmarks/race.py rows.jsonl [--networks 5] [--seeds 1 3], once `progress.py --out rows.jsonl` is done

Every network of `progress.py` is planned at T' = 5 for 50, 70 and 80 %, with so many seeds. The pick's seconds to the
target, on average over the seeds, are divided by those of the best of ComAw, DatAw, FedUC and "time" in four patterns,
all run to the end; its client updates by those of these 16 plans, each stopped at the target, with the same seeds.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from progress import PATTERNS, settings_on

from atoll.planner.budget import PlanBudget
from atoll.planner.entrants import Entrant, rows_of
from atoll.planner.planning import Field, sort_out
from atoll.planner.race import carry_out, lay_out
from atoll.sweep.axes import parse_axes

TARGETS = (0.5, 0.7, 0.8)
SECONDS = 600.0
RIVALS = ("comaw", "dataw", "feduc", "time")
Runs = dict[tuple[int, int, str, str], Any]


def to_target(probes: list[list[float]], target: float) -> tuple[float, float]:
    """Return virtual seconds and client updates to a target; inf, and those of the whole run, where it is missed."""
    return next(((t, updates) for t, level, updates in probes if level >= target), (math.inf, probes[-1][2]))


def field_of(network: int, folder: Path) -> Field:
    settings = settings_on(folder / f"clients-{network}.csv", False, network, 0, "censyn", "comaw")
    return sort_out(settings, parse_axes(["method.intra_rounds=5"]), PlanBudget(seconds=SECONDS))


def measure(runs: Runs, network: int, field: Field, target: float, seeds: int, out: Path) -> tuple[str, float, float]:
    """Return the pick, its seconds against the best of all, and the race's client updates against theirs."""
    entrants = [Entrant(plan, out / str(number)) for number, plan in enumerate(field.plans)]
    budget = PlanBudget(seconds=SECONDS, target=target)
    ranked = carry_out(lay_out(field.plans, seeds), entrants, budget, field.pool, lambda _: None, lambda: False)
    trained = [run for each in entrants for seed in range(seeds) if (run := rows_of(each, seed)) is not None]
    plans = [(pattern, clustering) for pattern in PATTERNS for clustering in RIVALS]
    whole = np.array([[to_target(runs[network, s, *plan], target) for s in range(seeds)] for plan in plans])
    best = float(whole[:, :, 0].mean(axis=1).min())
    taken = sum(float(run.rows["client_updates"][-1]) for run in trained)
    return ranked[0].name, float(np.mean(ranked[0].costs)) / best, taken / float(whole[:, :, 1].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--networks", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 3])
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.rows.read_text(encoding="utf-8").splitlines()]
    runs: Runs = {
        tuple(row[name] for name in ("network", "seed", "pattern", "clustering")): row["probes"] for row in rows
    }
    with tempfile.TemporaryDirectory() as folder:
        for network in range(asked.networks):
            field = field_of(network, Path(folder))
            for target in TARGETS:
                for seeds in sorted(asked.seeds):  # more seeds go on from fewer
                    out = Path(folder) / f"{network}-{target}"
                    pick, ratio, cost = measure(runs, network, field, target, seeds, out)
                    told = f"network {network}, {target:.0%}, {seeds} seeds"
                    print(f"{told}: {pick}: {ratio:.3f} of the best, {cost:.1%} of the updates", flush=True)


if __name__ == "__main__":
    main()
