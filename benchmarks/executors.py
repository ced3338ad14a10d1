"""Measure how fast this machine trains: every executor against the plain PyTorch loop, on random data.

Run:  python benchmarks/executors.py [--quick] [--only TEXT] [--bfloat16] [--save FOLDER] [--json]
"""

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bench
from rich.console import Console

from atoll.local.precision import lacks_bfloat16
from atoll.support.environment import describe_environment
from atoll.support.errors import AtollError, InputError
from atoll.support.files import make_folder, to_json, write_atomically


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer local steps and rounds: a minute on two cores")
    parser.add_argument("--only", metavar="TEXT", help="only the cases with TEXT in their name")
    parser.add_argument("--bfloat16", action="store_true", help="also measure cores with run.precision = 'bfloat16'")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="also save the JSON there, by machine and commit")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(words)
    if given.bfloat16 and lacks_bfloat16():
        print("--bfloat16: slower than float32, as this processor has no bfloat16 arithmetic", file=sys.stderr)
    cases = choose(given.only, given.quick)
    kept = given.save and given.save / (platform.node() or "machine")
    if kept:
        make_folder(kept)  # before the work
    environment = describe_environment(seed=0)
    rounds = bench.QUICK_ROUNDS if given.quick else bench.ROUNDS
    results = [result for case in cases for result in measure(case, rounds, given.bfloat16, given.json)]
    content = {"environment": environment, "results": [asdict(result) for result in results]}
    if kept:
        write_atomically(file := kept / name_of(environment), to_json(content))
        print(f"saved as {file}", file=sys.stderr)
    if given.json:
        print(json.dumps(content))


def choose(only: str | None, is_quick: bool) -> list[bench.Case]:
    """Return the cases that are asked for."""
    cases = [case for case in bench.CASES if only is None or (only and only in case.name)]
    if not cases:
        names = "; ".join(case.name for case in bench.CASES)
        raise InputError(f"--only {only}: no case has this in its name; the cases are {names}")
    return [bench.quick(case) for case in cases] if is_quick else cases


def measure(case: bench.Case, rounds: int, bfloat16: bool, is_quiet: bool) -> list[bench.RaceResult]:
    """Race a case's contenders, and print their table."""
    steps = f", {case.steps} local steps" if case.steps > 1 else ""
    title = f"{case.name}, batch {case.batch_size}{steps}; medians of {rounds} rounds"
    print(f"measuring {title}", file=sys.stderr)
    raced = bench.race(case, bench.own_contenders(case, bfloat16), rounds)
    if not is_quiet:
        Console().print(bench.as_rich(title, raced))
    return raced


def name_of(environment: Mapping[str, Any]) -> str:
    """Return the name of a commit's file, such as ``06e4193.json``; a release's name is its version."""
    return f"{environment.get('git') or environment['packages']['atoll']}.json"


if __name__ == "__main__":
    try:
        main()
    except AtollError as error:
        sys.exit(f"error: {error}")
