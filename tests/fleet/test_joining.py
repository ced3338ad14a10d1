"""Waiting for nodes, and what is made of their reports."""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest

from atoll import RunError
from atoll.fleet.agreed.messages import ClientReport, DescribeReply, decode, encode
from atoll.fleet.agreed.randomised_response import respond
from atoll.fleet.agreed.transport import Failure, Properties
from atoll.fleet.node.node import Reporting
from atoll.fleet.server.client_reports import reported_table
from atoll.fleet.server.joining import wait_for_nodes
from atoll.fleet.server.measured_times import MeasuredTimes
from tests.fleets import agreement_of, open_sites, small
from tests.memory_fleet import Fault, MemoryFleet

EXPERIMENT = small()
AGREEMENT = agreement_of(EXPERIMENT)


@pytest.fixture
def fleet(tmp_path: Path) -> MemoryFleet:
    return MemoryFleet(open_sites(EXPERIMENT, tmp_path))


def describing(**changes: Any) -> Fault:
    """Return the fault of a node that says other things of itself."""

    def fault(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        head, _ = decode(honest(), DescribeReply)
        return encode(head.model_copy(update=changes))

    return fault


def test_all_are_there(fleet: MemoryFleet) -> None:
    joined = wait_for_nodes(fleet, AGREEMENT, None, 1.0)
    assert joined.nodes == {client: f"node-{client}" for client in range(4)}
    assert joined.samples == dict.fromkeys(range(4), 40)
    assert not joined.warnings


def test_a_node_that_comes_later_is_waited_for(fleet: MemoryFleet) -> None:
    fleet.gone.update({"node-1", "node-3"})
    Timer(0.3, fleet.gone.clear).start()
    told: list[str] = []
    joined = wait_for_nodes(fleet, AGREEMENT, None, 10.0, told.append, poll_seconds=0.05)
    assert len(joined.nodes) == 4
    assert told == ["2 of 4 clients are there; missing: 1, 3"]


def test_fewer_may_be_enough(fleet: MemoryFleet) -> None:
    fleet.gone.add("node-0")
    assert sorted(wait_for_nodes(fleet, AGREEMENT, 3, 1.0).nodes) == [1, 2, 3]
    assert sorted(wait_for_nodes(fleet, AGREEMENT, 1, 1.0).nodes) == [1, 2, 3]
    told = "3 of fleet.nodes = 4 nodes are there; 3 of 4 clients .*; missing: 0; fleet.nodes can ask for fewer$"
    with pytest.raises(RunError, match=told):
        wait_for_nodes(fleet, AGREEMENT, 4, 0.1)
    fleet.gone.clear()
    assert len(wait_for_nodes(fleet, AGREEMENT, 99, 1.0).nodes) == 4  # there are no more to come


def test_it_gives_up_when_it_says(fleet: MemoryFleet) -> None:
    fleet.gone.update({"node-1", "node-3"})
    began = time.monotonic()
    told = "2 of 4 clients are there; missing: 1, 3; fleet.nodes can ask for fewer"
    with pytest.raises(RunError, match=rf"^fleet.wait_seconds = 0.3: {told}$"):
        wait_for_nodes(fleet, AGREEMENT, None, 0.3, poll_seconds=0.05)
    assert 0.3 <= time.monotonic() - began < 2


def test_a_node_with_other_settings_is_named(fleet: MemoryFleet) -> None:
    other = agreement_of(small(local={"lr": 0.01}))
    with pytest.raises(RunError, match=r"0 of 4 .*; node 'node-0' has other settings than this experiment;"):
        wait_for_nodes(fleet, other, None, 0.1, poll_seconds=0.05)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda *_: None, "node 'node-2' did not answer in time"),
        (lambda *_: Failure("failed"), "node 'node-2' failed to describe itself; its own log says why"),
    ],
)
def test_a_node_that_does_not_answer_is_named(fault: Fault, told: str, fleet: MemoryFleet) -> None:
    fleet.faults["node-2"] = fault
    with pytest.raises(RunError, match=f"3 of 4 clients are there; missing: 2; {told}"):
        wait_for_nodes(fleet, AGREEMENT, None, 0.1, poll_seconds=0.05)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda *_: b"junk", "unreadable"),
        (lambda *_: b"junk" * 10**6, "oversized"),
        (describing(nonce="00"), "repeated"),
        (describing(clients=()), "unreadable"),
        (describing(versions={"torch": "<script>"}), "unreadable"),
    ],
)
def test_a_node_that_gives_no_proper_answer_is_not_waited_for_longer(
    fault: Fault, reason: str, fleet: MemoryFleet
) -> None:
    fleet.faults["node-2"] = fault
    joined = wait_for_nodes(fleet, AGREEMENT, None, 0.1, poll_seconds=0.05)
    assert sorted(joined.nodes) == [0, 1, 3]
    assert joined.warnings == [f"node 'node-2' is left out: it gave no proper answer ({reason})"]
    fleet.gone.add("node-3")
    told = f"2 of 4 .*missing: 2, 3; node 'node-2' gave no proper answer .{reason}.; fleet.nodes can ask"
    with pytest.raises(RunError, match=told):
        wait_for_nodes(fleet, AGREEMENT, None, 0.1, poll_seconds=0.05)


def test_of_two_nodes_that_are_one_client_the_first_is(fleet: MemoryFleet) -> None:
    """Where the transport does not know who is who; it then does not know either who is not waited for."""

    class Unregistered:
        allow, call, close = fleet.allow, fleet.call, fleet.close

        def nodes(self) -> dict[str, Properties]:
            return {name: {} for name in sorted(fleet.sites, key="node-2".__eq__)}

    fleet.faults["node-2"] = describing(clients=(ClientReport(client=1, samples=3),))
    told = "missing: 2; node 'node-2' says that it is client 1, but that is node 'node-1'; fleet.nodes"
    with pytest.raises(RunError, match=told):
        wait_for_nodes(Unregistered(), AGREEMENT, None, 0.2, poll_seconds=0.05)
    joined = wait_for_nodes(Unregistered(), AGREEMENT, 3, 0.2)
    assert joined.nodes[1] == "node-1"


def test_clocks_apart_and_other_packages_are_warned_of(fleet: MemoryFleet) -> None:
    fleet.faults["node-0"] = describing(utc=time.time() + 7200)
    fleet.faults["node-1"] = describing(utc=time.time() - 9000)
    fleet.faults["node-2"] = describing(versions={"atoll": "0.0.1", "torch": "1.0"})
    fleet.faults["node-3"] = describing(utc=1e300)
    warnings = wait_for_nodes(fleet, AGREEMENT, None, 1.0).warnings
    assert warnings[0] == "the clock of node 'node-0' is 2.0 hours ahead of this machine's"
    assert warnings[1] == "the clock of node 'node-1' is 2.5 hours behind this machine's"
    assert warnings.pop() == "the clock of node 'node-3' is 999999.9 hours ahead of this machine's"
    assert [warning.partition(",")[0] for warning in warnings[2:]] == [
        "node 'node-2' has atoll 0.0.1",
        "node 'node-2' has torch 1.0",
        "node 'node-2' has numpy None",
    ]


def report(client: int, **told: Any) -> ClientReport:
    return ClientReport(client=client, samples=10 + client, **told)


def test_times_are_measured_client_by_client() -> None:
    measured = MeasuredTimes(3)
    for client in range(3):
        measured.add(client, passed=100, seconds=0.1 * (client + 1), round_trip=0.5)
        measured.add(client, passed=300, seconds=0.1, round_trip=0.5)
    assert measured.seconds_per_sample == pytest.approx([0.18 / 380, 0.26 / 380, 0.34 / 380])  # the first counts 0.8
    assert measured.upload_seconds == pytest.approx([0.72 / 1.8, 0.64 / 1.8, 0.56 / 1.8])


def test_what_a_client_does_not_report_is_unknown() -> None:
    table = reported_table({0: report(0, utc_offset=1.0), 2: report(2, slots=(0, 2))}, 3)
    assert table.samples == pytest.approx([10, np.nan, 12], nan_ok=True)
    assert table.utc_offset == pytest.approx([1, np.nan, np.nan], nan_ok=True)
    assert table.slots == (None, None, (0, 2))


def test_class_counts_are_estimated_where_they_were_randomised() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([3000, 0, 1000])
    answers = respond(truth, 2.0, rng)
    reports = {
        0: report(0, class_counts=tuple(truth.tolist())),
        1: report(1, class_counts=tuple(answers.tolist()), epsilon=2.0),
    }
    counts = reported_table(reports, 2).class_counts
    assert counts is not None
    assert counts[0].tolist() == truth.tolist()
    assert counts[1] == pytest.approx(truth, abs=200)
    assert counts[1].sum() == pytest.approx(4000)
    assert reported_table(reports, 3).class_counts is None


def test_what_owners_let_know_arrives(tmp_path: Path) -> None:
    fleet = MemoryFleet(open_sites(EXPERIMENT, tmp_path, Reporting(class_counts=True, utc_offset=2.0)))
    table = reported_table(wait_for_nodes(fleet, AGREEMENT, None, 1.0).reports, 4)
    assert table.utc_offset.tolist() == [2.0] * 4
    assert table.class_counts is not None
    assert np.array_equal(table.class_counts, EXPERIMENT.population.class_counts())
