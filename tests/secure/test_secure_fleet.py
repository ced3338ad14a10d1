"""Secure sums on a fleet: the bits of simulation, whoever is lost; and nothing for a server that cheats."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Experiment, InputError, RunError
from atoll.fleet.handlers import answer
from atoll.fleet.memory import Fault, MemoryFleet
from atoll.fleet.messages import LossesRequest, Refusal, TrainRequest, decode, decode_reply, encode, pack
from atoll.fleet.node import open_site
from atoll.fleet.shards import write_shards
from atoll.fleet.store import MemoryStore
from atoll.fleet.sum_messages import MaskedReply, MaskedRequest, SharesRequest, SurvivorsRequest, UnmaskRequest
from atoll.fleet.transport import Failure
from atoll.runs.variants import replaying
from atoll.secure.fixed import MASKED
from tests.fleets import agreement_of
from tests.secure.fleet import SUMS, carry_out, fleet_of, last_model, same_bits, summed
from tests.secure.test_protocol import looks_uniform



def feduc(pattern: str) -> dict[str, Any]:
    return {"method": {"name": "hierarchical", "pattern": pattern, "intra_rounds": 2}, "rounds": 12}


METHODS: dict[str, dict[str, Any]] = {
    "fedcluster": {},
    "all alike": {"method": {"name": "fedcluster", "fraction": 1.0, "weights": "equal"}},
    "fedavg, FedProx": {"method": {"name": "fedavg", "fraction": 1.0}, "local": {"steps": 3, "proximal": 0.1}},
    "fedadam": {"method": {"name": "fedadam", "fraction": 1.0}},
    "hierfavg": {"method": {"name": "hierfavg", "intra_rounds": 2}, "rounds": 12},
    **{f"feduc, {each}": feduc(each) for each in ("censyn", "decsyn")},
}


@pytest.mark.parametrize("nodes", [6, 4], ids=["a client each", "two clients on some"])
@pytest.mark.parametrize("name", METHODS)
def test_the_bits_are_those_of_simulation(name: str, nodes: int, tmp_path: Path) -> None:
    made = summed(**METHODS[name])
    carry_out(made, tmp_path / "simulated", None)
    carry_out(made, tmp_path / "fleet", fleet_of(made, tmp_path / "data", nodes=nodes))
    assert same_bits(tmp_path / "fleet", tmp_path / "simulated")
    assert last_row(tmp_path / "fleet")["client_updates"] == last_row(tmp_path / "simulated")["client_updates"] > 0


@pytest.mark.parametrize("pattern", ["cenasy", "decasy"])
def test_asynchronous_patterns_have_the_bits_of_their_replay(pattern: str, tmp_path: Path) -> None:
    """Their events come as clusters are done, so another run has others; simulation of these has the same bits."""
    made = summed(**feduc(pattern))
    carry_out(made, tmp_path / "fleet", fleet_of(made, tmp_path / "data"))
    carry_out(replaying(made, tmp_path / "fleet" / "happened.jsonl"), tmp_path / "replayed", None)
    assert same_bits(tmp_path / "fleet", tmp_path / "replayed")


def last_row(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.jsonl").read_bytes().splitlines()[-1])  # type: ignore[no-any-return]


TASKS = ("sum-keys", "sum-shares", "sum-masked", "sum-survivors", "sum-unmask")


def lost_at(task: str) -> Fault:
    """Return the fault of a node that is lost when it is asked for this, and there for whatever else it is asked."""

    def fault(asked: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure:
        return Failure("gone") if asked == task else honest()

    return fault


ONE_CLUSTER: dict[str, Any] = {"method": {"name": "fedavg", "fraction": 1.0}}


@pytest.mark.parametrize("task", TASKS)
def test_as_many_as_may_be_lost_at_each_step(task: str, tmp_path: Path) -> None:
    """Two of six: the sum is that of those whose masked numbers came, as the replay has it, to the bit."""
    made = summed(**ONE_CLUSTER)
    fleet = fleet_of(made, tmp_path / "data", {f"node-{k}": lost_at(task) for k in (1, 4)})
    carry_out(made, tmp_path / "fleet", fleet)
    events = [json.loads(line) for line in (tmp_path / "fleet" / "happened.jsonl").read_bytes().splitlines()][1:]
    came = 6 if TASKS.index(task) > 2 else 4
    assert last_row(tmp_path / "fleet")["client_updates"] == 2 * came
    assert last_row(tmp_path / "fleet")["refused_gone"] == 2 * (6 - came)
    assert len(events) == 2
    carry_out(replaying(made, tmp_path / "fleet" / "happened.jsonl"), tmp_path / "replayed", None)
    assert same_bits(tmp_path / "fleet", tmp_path / "replayed")
    carry_out(made, tmp_path / "all", None)
    assert same_bits(tmp_path / "fleet", tmp_path / "all") == (came == 6)


@pytest.mark.parametrize("task", TASKS)
def test_one_more_and_nothing_of_the_cohort_counts(task: str, tmp_path: Path) -> None:
    made = summed(**ONE_CLUSTER, fleet={"wait_seconds": 5.0})
    fleet = fleet_of(made, tmp_path / "data", {f"node-{k}": lost_at(task) for k in (1, 3, 4)})
    told = sentences(made, tmp_path / "fleet", fleet)
    assert any(
        each.startswith("event 0, cluster 0: no secure sum, so nothing of this cohort counts: 3 of 6 nodes ")
        and each.endswith(", 4 must")
        for each in told
    )
    row = last_row(tmp_path / "fleet")
    assert (row["client_updates"], row["refused_gone"], row["refused_too_few"]) == (0, 6, 6)
    ours, first = last_model(tmp_path / "fleet"), made.initial_models()[0]
    assert all(torch.equal(ours[f"0/{name}"], tensor) for name, tensor in first.items())


def sentences(made: Experiment, folder: Path, fleet: MemoryFleet) -> list[str]:
    from atoll import run_events

    told = list[str]()
    for _ in run_events(made, folder, fleet=fleet, tell=told.append):
        pass
    return told
