"""Compare this checkout's results with another commit's, bit by bit: every recipe, and every method on every executor.

Run:  python benchmarks/same_bits.py [--base REV] [--only TEXT] [--keep FILE]

Both trees train the same first events: of up to three unlike runs of each recipe at its tiny scale, and of the
quickstart with each method and each feature, on each executor. After each event the loss and a checksum of all models
and client states are compared; a line per case says `equal` or what differs. `--keep` stores the base's results in a
file, and reuses them.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from compare import ROOT, checkout

METHODS = [
    *("fedcluster", "fedavg", "centralized", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "scaffold", "fednova"),
    *("feddyn", "fedasync", "fedbuff", "fedat", "ifca", "cfl-mgd", "cfl", "flhc", "fedgroup", "fesem", "pacfl", "bcd"),
    *("ditto", "local", "fedbn", "fedper", "fedrep", "hierarchical", "hierfavg", "fedem", "fedrc", "fedsoft"),
    *("pfedme", "apfl", "perfedavg", "fedamp", "moon", "fmcl", "stocfl", "lcfed"),
]
ALONE: dict[str, Any] = {"fraction": None}
NEEDS: dict[str, dict[str, Any]] = {
    "centralized": {"method": ALONE},
    "fednova": {"local": {"epochs": 0.5}},
    "fedasync": {"method": {**ALONE, "concurrency": 4}},
    "fedbuff": {"method": {**ALONE, "concurrency": 4, "buffer": 2}},
    "cfl": {"method": {**ALONE, "eps1": 9.0, "eps2": 0.0}},
    "fesem": {"method": {**ALONE, "clusters": 3}},
    "fedamp": {"method": ALONE},
    "fedbn": {"model": {"name": "resnet"}, "local": {"steps": 1}},
    "hierarchical": {"rounds": 80, "method": {**ALONE, "pattern": "cenasy", "intra_rounds": 2}},
    "hierfavg": {"rounds": 80, "local": {"steps": 2}, "method": ALONE},
}
CLIENT = {"trust": "client", "clip": 1.0, "noise": 0.1, "delta": 1e-3}
SERVER = {"trust": "server", "clip": 1.0, "noise": 0.5, "delta": 1e-3}
FEATURES: dict[str, dict[str, Any]] = {
    "bfloat16": {"travel": {"codec": "bfloat16"}},
    "int8": {"travel": {"codec": "int8"}},
    "topk, feedback": {"travel": {"codec": "topk", "feedback": True}},
    "int8, stochastic": {"travel": {"codec": "int8", "rounding": "stochastic"}},
    "attack": {"faults": {"attackers": 0.2}},
    "noise attack": {"faults": {"attackers": 0.2, "attack": "noise"}},
    "label flip": {"faults": {"attackers": 0.2, "attack": "label-flip"}},
    "attack, median": {"faults": {"attackers": 0.2}, "method": {"combine": "median"}},
    "attack, int8": {"faults": {"attackers": 0.2}, "travel": {"codec": "int8"}},
    "collusion": {"faults": {"attackers": 0.2, "attack": "little-is-enough"}},
    "tolerance": {"faults": {"attackers": 0.2, "attack": "not-finite", "tolerate": True}},
    "dropout": {"faults": {"dropout": 0.3}},
    "trusted server": {"privacy": SERVER},
    "trusted server, int8": {"privacy": SERVER, "travel": {"codec": "int8", "feedback": False}},
    "trusted server, quantile": {"privacy": {**SERVER, "quantile": 0.5, "quantile_noise": 0.5}},
    "no trust": {"privacy": CLIENT},
    "no trust, topk": {"privacy": CLIENT, "travel": {"codec": "topk", "feedback": True}},
    "secure sums": {"secure": {"sums": True, "least_nodes": 2}},
    "layers stay": {"model": {"travels": ["1*"]}},
    "layers stay, topk": {"model": {"travels": ["1*"]}, "travel": {"codec": "topk"}},
    "layers stay, attack": {"model": {"travels": ["1*"]}, "faults": {"attackers": 0.2}},
    "drawn by losses": {"method": {"select": "power-of-choice", "candidates": 10}},
}
TRAIN = """
import hashlib, itertools, json, sys, warnings
warnings.simplefilter("ignore")
import atoll

def checksum(model):
    told = hashlib.sha256()
    for name in sorted(model, key=lambda name: name.rpartition("@")[2]):
        told.update(model[name].detach().cpu().contiguous().reshape(-1).numpy().tobytes())
    return told.hexdigest()[:12]

def carry(settings, events):
    made = atoll.Experiment(settings)
    execution, training = (getattr(made, name, made) for name in ("execution", "training"))
    executor, seen = execution.make_executor(), []
    try:
        state = atoll.init(made.method, *training.initial_models())
        for step in itertools.islice(atoll.train(made.method, executor, state), events):
            models = [*step.state.starts, *step.state.published, *([step.state.server] if step.state.server else [])]
            kept = [checksum(dict(each)) for _, each in sorted(step.state.clients.items())]
            sums = hashlib.sha256("".join([*map(checksum, models), *kept]).encode()).hexdigest()[:12]
            seen.append([step.loss, sums])
    finally:
        executor.close()
    return seen

for line in sys.stdin:
    name, recipe, scale, changes, events = json.loads(line)
    found = []
    try:
        runs = atoll.make_runs(atoll.read_experiment(recipe), scale)
        unlike = {}
        for run in runs:
            told = run.method.model_dump(), run.travel.model_dump(), run.privacy.model_dump(), run.clustering.method
            unlike.setdefault(json.dumps(told, sort_keys=True, default=str), run)
        for run in list(unlike.values())[:3]:
            if changes is not None:
                table = run.model_dump(exclude_none=True)
                table["method"] = {"name": "fedavg", "fraction": 0.5}
                for section, given in changes.items():
                    merged = {**table.get(section, {}), **given} if isinstance(given, dict) else given
                    keep = isinstance(given, dict)
                    table[section] = {k: v for k, v in merged.items() if v is not None} if keep else merged
                run = atoll.Settings(**table)
            found.append(carry(run, events))
            if changes is not None:
                break
    except atoll.AtollError as error:
        found = "refused"
    except FileNotFoundError as error:
        found = "no data"
    print(json.dumps([name, found]), flush=True)
"""
"""Carries out the cases that are given line by line, in a tree's own code, whichever names it has."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cases with TEXT in their name")
    parser.add_argument("--keep", type=Path, help="the file that holds the base's results")
    given = parser.parse_args()
    wanted = [case for case in cases() if given.only in case[0]]
    kept = json.loads(given.keep.read_text()) if given.keep and given.keep.exists() else {}
    if missing := [case for case in wanted if case[0] not in kept]:
        with checkout(given.base) as before:
            kept |= carry_out(before, missing)
        if given.keep:
            given.keep.write_text(json.dumps(kept))
    now = carry_out(ROOT, wanted)
    different = [name for name, *_ in wanted if now.get(name) != kept.get(name)]
    for name, *_ in wanted:
        told = (
            f"{now.get(name)}"[:60]
            if isinstance(now.get(name), str)
            else f"{sum(map(len, now.get(name) or []))} events"
        )
        print(f"{name}: {'DIFFERS from ' + str(kept.get(name))[:80] if name in different else 'equal'} ({told})")
    print(f"{len(wanted) - len(different)} of {len(wanted)} cases are equal")
    sys.exit(bool(different))


def cases() -> list[tuple[str, str, str | None, dict[str, Any] | None, int]]:
    """Return each case's name, recipe, scale, changes and number of events."""
    found: list[tuple[str, str, str | None, dict[str, Any] | None, int]] = []
    for path in sorted((ROOT / "src/atoll/recipes").glob("*.toml")):
        scale = "tiny" if "[scales.tiny" in path.read_text() else None
        found.append((f"recipe {path.stem}", path.stem, scale, None, 5))
    base: dict[str, Any] = {"data": {"clients": 20}, "clustering": {"clusters": 4}}
    for executor in ("serial", "cores", "ray"):
        run = {"executor": executor, "workers": 2}
        for method in METHODS if executor != "ray" else METHODS[:16:5]:
            needs = NEEDS.get(method, {})
            named: dict[str, Any] = {**base, "rounds": 6, "run": run, **needs}
            named["method"] = {"name": method, **needs.get("method", {})}
            found.append((f"{method}, {executor}", "quickstart", None, named, 3))
        for feature, settings in FEATURES.items():
            found.append(
                (f"{feature}, {executor}", "quickstart", None, {**base, "rounds": 3, "run": run, **settings}, 3)
            )
    return found


def carry_out(tree: Path, wanted: list[Any]) -> dict[str, Any]:
    """Return what each case came to in a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    lines = "".join(json.dumps(case) + "\n" for case in wanted)
    done = subprocess.run(
        [sys.executable, "-c", TRAIN], input=lines, cwd=tree, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{tree}: {done.stderr[-2000:]}")
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


if __name__ == "__main__":
    main()
