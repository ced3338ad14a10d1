"""Measure the share of a run that evaluation takes, with a row of metrics per round, and that of cluster assignment.

Run:  python benchmarks/evaluation.py [--only TEXT] [--set KEY=VALUE] [--events 40]

Six recipes, at tiny scale where they have one, evaluated after every round, each for --events events. Evaluation is the
time in which rows are measured; identity (cluster assignment), that in which the losses of clusters' models on clients'
samples are. Prints the shares.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from atoll import Experiment, make_runs, read_experiment, run_events
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.serial import Serial
from atoll.runs.rows import Recorder

RECIPES = ("quickstart", "fedcluster-mnist", "feduc-digits", "feduc-mnist", "cfl-mgd-mnist", "cfl-mgd-regression")


@dataclass
class Stopwatch:
    """Adds up the seconds that calls of certain methods take."""

    seconds: float = 0.0

    def watch(self, owner: type, name: str) -> None:
        """Time a method of a class from now on."""
        method: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **named)
            finally:
                self.seconds += time.perf_counter() - began

        setattr(owner, name, timed)


def shares_of(recipe: str, changes: list[str], events: int, evaluating: Stopwatch, finding: Stopwatch) -> str:
    """Carry out a recipe's first events, after the first row; return its shares in words."""
    table = read_experiment(recipe)
    settings = make_runs(table, "tiny" if "scales" in table else None, ["run.evaluate_every=1", *changes])[0]
    experiment = Experiment(settings)
    with tempfile.TemporaryDirectory() as folder, closing(run_events(experiment, Path(folder) / "run")) as progress:
        next(progress)
        evaluating.seconds = finding.seconds = 0.0
        began = time.perf_counter()
        rows = sum(each.row is not None for each in islice(progress, events))
        seconds = time.perf_counter() - began
    return (
        f"{recipe:20}{experiment.execution.choice.name:10}{rows:5}{seconds:9.2f}{evaluating.seconds / seconds:12.1%}"
        f"{finding.seconds / seconds:12.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only the recipes with TEXT in their name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; repeatable")
    parser.add_argument("--events", type=int, default=40, help="of each recipe")
    given = parser.parse_args()
    recipes = [recipe for recipe in RECIPES if given.only in recipe]
    if not recipes or given.events < 1:
        parser.error(
            f"--only {given.only} --events {given.events}: needs a recipe of {', '.join(RECIPES)} and an event"
        )
    evaluating, finding = Stopwatch(), Stopwatch()
    evaluating.watch(Recorder, "measure")
    for executor in (Serial, Cores):
        finding.watch(executor, "losses")
    print(f"{'recipe':20}{'executor':10}{'rows':>5}{'seconds':>9}{'evaluation':>12}{'identity':>12}")
    for recipe in recipes:
        print(shares_of(recipe, given.set, given.events, evaluating, finding), flush=True)


if __name__ == "__main__":
    main()
