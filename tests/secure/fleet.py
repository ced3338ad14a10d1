"""A fleet in this process whose nodes know each other's keys, for secure sums."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from atoll import Experiment, run_events
from atoll.fleet.node.node import open_site
from atoll.fleet.node.shards import write_shards
from atoll.local.models import Model
from tests.fleets import small
from tests.memory_fleet import Fault, MemoryFleet
from tests.secure.nodes import identities, public_lines

SUMS = {"sums": True, "least_nodes": 2}
BASE: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 6, "samples": 40},
    "model": {"name": "linear"},
    "run": {"checkpoint_every": 1},
    "secure": SUMS,
    "fleet": {"wait_seconds": 20.0},
}


def summed(**changes: Any) -> Experiment:
    """Return a small experiment with secure sums: six clients in two clusters."""
    return small(**BASE | changes)


def fleet_of(made: Experiment, folder: Path, faults: Mapping[str, Fault] | None = None, nodes: int = 6) -> MemoryFleet:
    """Return a fleet on whose nodes clients are dealt in turn, as `atoll fleet init` does."""
    if not folder.exists():
        write_shards(made, folder)
    own = {f"node-{k}": list(range(k, made.settings.data.clients, nodes)) for k in range(nodes)}
    known = identities(own)
    sites = {
        name: open_site(
            made.settings,
            folder / f"client-{clients[0]}" if len(clients) == 1 else folder,
            clients[0] if len(clients) == 1 else clients,
            identity=known[name],
        )
        for name, clients in own.items()
    }
    return MemoryFleet(sites, faults, public_keys=public_lines(own))


def carry_out(
    made: Experiment, folder: Path, fleet: MemoryFleet | None, resume: bool = False, stop: int | None = None
) -> None:
    """Run on a fleet, or in simulation; to the end, or for so many events."""
    steps = run_events(made, folder, resume=resume, fleet=fleet)
    for step in steps:
        if step.events_done == stop:
            break
    steps.close()


def last_model(folder: Path) -> Model:
    found = load_file(max((folder / "checkpoint").glob("*.safetensors"), key=lambda path: path.name))
    return {name: tensor for name, tensor in found.items() if name[0].isdigit()}


def same_bits(ours: Path, theirs: Path) -> bool:
    one, other = last_model(ours), last_model(theirs)
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def last_row(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.jsonl").read_bytes().splitlines()[-1])
