"""The runs that are disturbed, and what each must have come to in the end."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll import Experiment, make_runs, read_experiment, run_events
from tests.cli.fleets import tensors_of

DEADLINE = 20.0
_BASE = """
name = "chaos"
rounds = {rounds}

[data]
clients = {nodes}
samples = {samples}

[model]
name = "lr"

[local]
steps = 3
batch_size = 10

[run]
checkpoint_every = 1

[fleet]
wait_seconds = 600
deadline_seconds = {deadline}
strikes = 1000
"""
WIRE = ("cut", "corrupted", "delayed")


@dataclass(frozen=True)
class Kind:
    """A kind of run: its settings, what is done to it, and whether its events follow a plan.

    A run that follows it and has lost nobody's result must equal the undisturbed one; any must equal its own replay.
    Where faults come one by one, each waits until an event was over since the last; networks and clocks are left alone.
    """

    name: str
    rounds: int
    changes: tuple[str, ...]
    faults: tuple[str, ...]
    is_planned: bool = True
    has_late_node: bool = False
    nodes: int = 3
    deadline: float = DEADLINE
    one_by_one: bool = False


KINDS = (
    Kind(
        "fedcluster", 18, ("method.name=fedcluster", "clustering.clusters=2", "method.fraction=1.0"),
        ("server at a file step", "superlink killed", "server killed"),
    ),
    Kind(
        "cenasy", 36,
        ("method.name=hierarchical", "method.pattern=cenasy", "method.intra_rounds=2", "clustering.clusters=2"),
        ("server at a file step", "node killed", "node at a file step", "superlink killed"), is_planned=False,
    ),
    Kind(
        "cfl-mgd", 18, ("method.name=cfl-mgd", "method.clusters=2", "method.fraction=1.0"),
        ("disk full", "superlink killed", "network away", "server killed"),
    ),
    Kind(
        "re-clustering", 24,
        (
            "method.name=hierarchical", "method.intra_rounds=2", "clustering.method=feduc",
            "clustering.frequencies=transfer", "clustering.clusters=2", "network.bandwidth_hz=1e4",
            "fleet.recluster_every=6",
        ),
        ("node killed", "node at a file step", "server at a file step", "disk full"), is_planned=False,
    ),
    Kind(
        "late client", 30, ("method.name=fedavg", "method.fraction=1.0", "fleet.nodes=2"),
        ("superlink killed", "server killed", "node killed"), has_late_node=True,
    ),
)  # fmt: skip


def killed(nodes: int, kills: int) -> Kind:
    """Return the run in which any process of many is killed at any step; ten nodes train in an event."""
    clusters = max(nodes // 10, 1)
    words = ("method.name=fedcluster", f"clustering.clusters={clusters}", "method.fraction=1.0")
    faults = ("server killed", "superlink killed", "node at work killed", "idle node killed")
    at_files = ("server at a file step", "node at a file step")
    rounds = 2 + 3 * kills // clusters  # which are more than are needed
    return Kind(f"{nodes} nodes", rounds, words, faults + at_files, nodes=nodes, deadline=300.0, one_by_one=True)


def write(kind: Kind, folder: Path) -> tuple[Experiment, Path, list[str]]:
    """Write the experiment's file; return the experiment, the file, and the words that change it."""
    file = folder / "chaos.toml"
    samples = min(40, 1500 // kind.nodes)
    file.write_text(_BASE.format(rounds=kind.rounds, nodes=kind.nodes, samples=samples, deadline=kind.deadline))
    (settings,) = make_runs(read_experiment(file), changes=kind.changes)
    return Experiment(settings), file, [word for change in kind.changes for word in ("--set", change)]


def judge(kind: Kind, experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Compare a run that is over with its replay and, where it has lost nobody's result, with the undisturbed one."""
    run, lost = folder / "run", _lost(folder / "run")
    got = tensors_of(run)
    found: dict[str, Any] = {"results lost": lost}
    found["like its replay"] = got == _carried_out(experiment, folder / "replayed", run / "happened.jsonl")
    alike = got == _carried_out(experiment, folder / "undisturbed") if kind.is_planned else None
    found["like undisturbed"] = alike if not lost or alike else None
    return found


def _carried_out(experiment: Experiment, out: Path, schedule: Path | None = None) -> bytes:
    for _ in run_events(experiment, out, schedule=schedule):
        pass
    return tensors_of(out)


def _lost(run: Path) -> int:
    """Return how many results the run went on without."""
    rows: list[Mapping[str, Any]] = [json.loads(line) for line in (run / "happened.jsonl").read_text().splitlines()]
    return sum(sum(row.get("refused", {}).values()) for row in rows[1:])
