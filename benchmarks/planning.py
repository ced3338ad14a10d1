"""Measure the time and memory that it takes to make and compare the schedules of many plans.

Run:  python benchmarks/planning.py [--clients 100000] [--aggregators 1000] [--over SECTION.KEY=VALUES ...]

Each client holds 50 of the digits, in shares drawn anew; aggregators stand on a grid, 12.65 m apart. Nothing is
trained. Seconds are wall time in one process.
"""

import argparse
import resource
import time

from atoll import Settings, make_runs
from atoll.planner.budget import PlanBudget
from atoll.planner.planning import sort_out
from atoll.sweep.axes import parse_axes

OVER = ("clustering.method=comaw,dataw", "method.intra_rounds=2,3,5,10,15,20")  # x four patterns: 48 plans


def settings_of(clients: int, aggregators: int) -> Settings:
    table = {
        "rounds": 6000,
        "data": {"dataset": "digits", "partition": "dirichlet", "alpha": 0.3, "samples": 50, "clients": clients},
        "local": {"lr": 0.1, "steps": 1, "batch_size": 10},
        "clustering": {"method": "comaw", "clusters": aggregators},
        "network": {"side_metres": 12.65 * aggregators**0.5, "seconds_per_sample": [0.01, 0.03]},
        "method": {"name": "hierarchical", "intra_rounds": 5},
    }
    (settings,) = make_runs(table)
    return settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--aggregators", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--over", action="append")
    asked = parser.parse_args()
    began, cpu = time.perf_counter(), time.process_time()
    axes = parse_axes(asked.over or OVER)
    field = sort_out(settings_of(asked.clients, asked.aggregators), axes, PlanBudget(seconds=asked.seconds))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    events = max(plan.score.events for plan in field.plans)
    print(
        f"{len(field.plans) + len(field.dropped)} plans, of at most {events:,} events: "
        f"{time.perf_counter() - began:.0f} s ({time.process_time() - cpu:.0f} s of processor), {peak:.2f} GB"
    )
    for plan in field.plans:
        print(f"worth a race: {plan.name}, {plan.score.merges:.0f} merges, EMD {plan.score.emd:.2f}")


if __name__ == "__main__":
    main()
