"""Disturb fleets of real processes until so many faults were borne: ``python -m tests.chaos --faults 200``.

Server, superlink and nodes are killed, also where they write files; between nodes and superlink a proxy cuts, delays
and corrupts what passes; disks fill up, clocks are apart, a client first joins late. Of each run it prints whether it
ended, and whether its models have the bits of its replay and, if nobody's result was lost, of the undisturbed run.

With ``--nodes 100`` there is one kind of run: FedCluster with so many nodes, any process of which is killed at any
step, one after the other, each after an event since the last. Each node is a process of its own, at first forked from
this one, so that they fit into memory; one that was killed starts as its owner would start it.
"""

import argparse
import atexit
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos.runs import KINDS, killed
from tests.chaos.turmoil import disturb

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Go through the kinds of runs in turn; print tables, and return 1 if a run is not what it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=200, help="how many at least")
    parser.add_argument(
        "--minutes",
        type=float,
        default=20,
        help="that all take, about; each kind has an equal share of what is left when it begins",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="runs of this kind alone: " + ", ".join(kind.name for kind in KINDS))
    parser.add_argument("--out", type=Path, help="a folder for chaos.json and the processes' logs")
    parser.add_argument("--nodes", type=int, help="kill the processes of a fleet with so many nodes, and do no more")
    parser.add_argument("--load", type=int, default=0, help="processes that compute beside it all the time")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends what was started
    until, runs = time.monotonic() + 60 * given.minutes, list[dict[str, Any]]()
    kinds = [kind for kind in KINDS if given.only in (None, kind.name)]
    if given.nodes:
        kinds = [killed(given.nodes, given.faults)]
    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.load)]
    for each in beside:
        atexit.register(each.kill)
    while not (runs and runs[-1]["stopped"]) and (
        len(runs) < len(kinds) or (_count(runs) < given.faults and time.monotonic() < until)
    ):
        kind, draw = kinds[len(runs) % len(kinds)], random.Random(f"{given.seed}/{len(runs)}")
        keep = given.out and given.out / f"{len(runs)}-{kind.name}"
        share = (until - time.monotonic()) / max(len(kinds) - len(runs), 1)
        runs.append(disturb(kind, draw, share, keep, given.faults - _count(runs)))
        print(f"  {_line(runs[-1])}", flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "chaos.json").write_text(json.dumps(runs, indent=2) + "\n")
    _print_faults(runs)
    return 0 if all(map(_is_right, runs)) else 1


def _count(runs: list[dict[str, Any]]) -> int:
    return sum(len(run["faults"]) for run in runs)


def _is_right(run: dict[str, Any]) -> bool:
    if run["hung"] or run["tracebacks"]:
        return False
    return bool(run["stopped"] or (run["like its replay"] and run["like undisturbed"] is not False))


def _line(run: dict[str, Any]) -> str:
    if run["hung"] or run["stopped"]:
        word = "HUNG" if run["hung"] else "interrupted"
        return f"{run['run']}: {word} after {run['events']} events and {len(run['faults'])} faults"
    like = {True: "like undisturbed", False: "NOT like undisturbed", None: ""}[run["like undisturbed"]]
    words = [f"{run['run']}: {len(run['faults'])} faults", f"{run['events']} events", f"{run['seconds']:.0f} s"]
    words += [f"{run['results lost']} results lost", "like its replay" if run["like its replay"] else "NOT its replay"]
    words += [like, *run["ended by themselves"], *(f"TRACEBACK {each}" for each in run["tracebacks"])]
    return "; ".join(word for word in words if word)


def _print_faults(runs: list[dict[str, Any]]) -> None:
    """Print how often each fault was, and the seconds until the next event was over."""
    faults = [fault for run in runs for fault in run["faults"]]
    print(f"{'fault':<24}{'times':>6}{'median s':>10}{'95th s':>8}{'longest s':>11}")
    calm = [{"kind": "(none)", "seconds": seconds} for run in runs for seconds in run["calm"]]
    for kind in sorted({fault["kind"] for fault in calm + faults}):
        seconds = [fault["seconds"] for fault in calm + faults if fault["kind"] == kind]
        known = [each for each in seconds if each is not None] or [0.0]
        middle, high = np.quantile(known, [0.5, 0.95])
        print(f"{kind:<24}{len(seconds):>6}{middle:>10.1f}{high:>8.1f}{max(known):>11.1f}")
    right = sum(map(_is_right, runs))
    same = sum(run.get("like undisturbed") is True for run in runs)
    print(f"{len(faults)} faults in {len(runs)} runs: {right} ended as they should, {same} like the undisturbed run")


if __name__ == "__main__":
    sys.exit(main())
