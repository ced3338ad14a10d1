"""The runs that are disturbed, and what each must have come to in the end."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll import Experiment, make_runs, read_experiment, run_events
from tests.cli.fleets import tensors_of

NODES = 3
DEADLINE = 20.0
_BASE = """
name = "chaos"
rounds = {rounds}

[data]
clients = 3
samples = 40

[model]
name = "lr"

[local]
steps = 3
batch_size = 10

[run]
checkpoint_every = 1

[fleet]
wait_seconds = 150
deadline_seconds = {deadline}
strikes = 1000
"""
WIRE = ("cut", "corrupted", "delayed")


@dataclass(frozen=True)
class Kind:
    """A kind of run: its settings, what is done to it, and whether its events follow a plan.

    A run that follows it and has lost nobody's result must equal the undisturbed one; any must equal its own replay.
    """

    name: str
    rounds: int
    changes: tuple[str, ...]
    faults: tuple[str, ...]
    is_planned: bool = True
    has_late_node: bool = False


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


def write(kind: Kind, folder: Path) -> tuple[Experiment, Path, list[str]]:
    """Write the experiment's file; return the experiment, the file, and the words that change it."""
    file = folder / "chaos.toml"
    file.write_text(_BASE.format(rounds=kind.rounds, deadline=DEADLINE))
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
