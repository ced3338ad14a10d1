"""Secure sums on a fleet: the bits of simulation, whoever is lost; and nothing for a server that cheats."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Experiment, InputError, RunError
from atoll.engine.cohorts import Cohort
from atoll.experiment import modules
from atoll.fleet.agreed.messages import (
    LossesRequest,
    Refusal,
    TrainRequest,
    body_of,
    decode,
    decode_reply,
    encode,
    pack,
)
from atoll.fleet.agreed.sum_messages import (
    KeysReply,
    MaskedReply,
    MaskedRequest,
    SharesReply,
    SharesRequest,
    SurvivorsRequest,
    UnmaskReply,
)
from atoll.fleet.agreed.transport import Failure
from atoll.fleet.node import open_sums
from atoll.fleet.node.handlers import answer
from atoll.fleet.node.node import open_site
from atoll.fleet.node.shards import write_shards
from atoll.fleet.node.work_count import WorkBudget
from atoll.fleet.server.cohort_sum import begin
from atoll.fleet.server.secure_sums import STEPS
from atoll.local import trainer
from atoll.runs.variants import replaying
from atoll.secure.crypto import make_pair
from atoll.secure.field import BYTES
from atoll.secure.fixed import MASKED, flat
from atoll.secure.participant import Participant
from atoll.support.seeds import layers_drawing_from
from tests.fleets import agreement_of
from tests.memory_fleet import Fault, MemoryFleet
from tests.memory_store import MemoryStore
from tests.secure.fleet import SUMS, carry_out, fleet_of, last_model, last_row, same_bits, summed
from tests.secure.nodes import identities
from tests.secure.test_protocol import looks_uniform
from tests.tiers import thinned


def feduc(pattern: str) -> dict[str, Any]:
    return {"method": {"name": "hierarchical", "pattern": pattern, "intra_rounds": 2}, "rounds": 12}


METHODS: dict[str, dict[str, Any]] = {
    "fedcluster": {},
    "all alike": {"method": {"name": "fedcluster", "fraction": 1.0, "weights": "equal"}},
    "fedavg, FedProx": {"method": {"name": "fedavg", "fraction": 1.0}, "local": {"steps": 3, "proximal": 0.1}},
    "fedadam": {"method": {"name": "fedadam", "fraction": 1.0}},
    "fedat": {"method": {"name": "fedat", "tiers": 2, "fraction": 1.0}},
    "hierfavg": {"method": {"name": "hierfavg", "intra_rounds": 2}, "rounds": 12},
    **{f"feduc, {each}": feduc(each) for each in ("censyn", "decsyn")},
}


@pytest.mark.parametrize("name", thinned(METHODS, 1))
def test_the_bits_are_those_of_simulation(name: str, tmp_path: Path) -> None:
    """Of nodes with one client or two, which they sum themselves."""
    made = summed(**METHODS[name])
    carry_out(made, tmp_path / "simulated", None)
    carry_out(made, tmp_path / "fleet", fleet_of(made, tmp_path / "data", nodes=4))
    assert same_bits(tmp_path / "fleet", tmp_path / "simulated")
    assert last_row(tmp_path / "fleet")["client_updates"] == last_row(tmp_path / "simulated")["client_updates"] > 0


@pytest.mark.parametrize("pattern", thinned(["cenasy", "decasy"], 1))
def test_asynchronous_patterns_have_the_bits_of_their_replay(pattern: str, tmp_path: Path) -> None:
    """Their events come as clusters are done, so another run has others; simulation of these has the same bits."""
    made = summed(**feduc(pattern))
    carry_out(made, tmp_path / "fleet", fleet_of(made, tmp_path / "data"))
    carry_out(replaying(made, tmp_path / "fleet" / "happened.jsonl"), tmp_path / "replayed", None)
    assert same_bits(tmp_path / "fleet", tmp_path / "replayed")


def test_no_node_trains_on_while_its_run_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of this process seed the generator that the replay's first model comes from, between its seed and draws."""
    made, is_over, seeded, is_between = summed(**feduc("cenasy")), Event(), Event(), Event()

    @contextmanager
    def of_a_model(*key: Any) -> Iterator[None]:
        with layers_drawing_from(*key):
            is_between.clear()
            seeded.set()
            if is_over.is_set():
                is_between.wait(1)
            yield
        seeded.clear()

    @contextmanager
    def of_a_training(*key: Any) -> Iterator[None]:
        was_over = is_over.is_set() and current_thread() is not main_thread() and seeded.wait(30)
        with layers_drawing_from(*key):
            is_between.set()
            time.sleep(0.3 * was_over)
            yield

    def slow(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        time.sleep(0.2 * (task == "sum-masked"))
        return honest()

    monkeypatch.setattr(modules, "layers_drawing_from", of_a_model)
    monkeypatch.setattr(trainer, "layers_drawing_from", of_a_training)
    carry_out(made, tmp_path / "fleet", fleet_of(made, tmp_path / "data", {f"node-{k}": slow for k in range(6)}))
    is_over.set()
    carry_out(replaying(made, tmp_path / "fleet" / "happened.jsonl"), tmp_path / "replayed", None)
    assert same_bits(tmp_path / "fleet", tmp_path / "replayed")


TASKS = ("sum-keys", "sum-shares", "sum-masked", "sum-survivors", "sum-unmask")


def lost_at(task: str) -> Fault:
    """Return the fault of a node that is lost when it is asked for this, and there for whatever else it is asked."""

    def fault(asked: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure:
        return Failure("gone") if asked == task else honest()

    return fault


ONE_CLUSTER: dict[str, Any] = {"method": {"name": "fedavg", "fraction": 1.0}}


@pytest.mark.parametrize("task", thinned(TASKS, 1))
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


@pytest.mark.parametrize("task", thinned(TASKS))
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
    ours, first = last_model(tmp_path / "fleet"), made.training.initial_models()[0]
    assert all(torch.equal(ours[f"0/{name}"], tensor) for name, tensor in first.items())


@pytest.mark.parametrize("which", ["_sealing", "_masking"])
def test_a_key_that_is_none_costs_its_node_alone(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signed key with which everyone would share the same secret: no honest node is counted in its place."""

    class Low(Participant):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            if self._identity.name == "node-1":
                setattr(self, which, (getattr(self, which)[0], bytes(32)))

    monkeypatch.setattr(open_sums, "Participant", Low)
    made = summed(**ONE_CLUSTER)
    told = sentences(made, tmp_path / "fleet", fleet_of(made, tmp_path / "data"))
    assert any("node 'node-1' made an invalid key" in each for each in told)
    assert last_row(tmp_path / "fleet")["client_updates"] == 2 * 5


def sentences(made: Experiment, folder: Path, fleet: MemoryFleet) -> list[str]:
    from atoll import run_events

    told = list[str]()
    for _ in run_events(made, folder, fleet=fleet, tell=told.append):
        pass
    return told


@pytest.mark.more
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Its events are summed anew, with new keys."""
    made = summed(rounds=3)
    carry_out(made, tmp_path / "whole", fleet_of(made, tmp_path / "data"))
    carry_out(made, tmp_path / "killed", fleet_of(made, tmp_path / "data"), stop=3)
    for each in (tmp_path / "killed" / "checkpoint").glob("event-00000003*"):
        each.unlink()  # a kill leaves no checkpoint of its own
    carry_out(made, tmp_path / "killed", fleet_of(made, tmp_path / "data"), resume=True)
    assert same_bits(tmp_path / "killed", tmp_path / "whole")


class Wire(MemoryFleet):
    """A server, or whoever stands on the way, that reads and changes what nodes are sent."""

    def __init__(
        self, fleet: MemoryFleet, change: Callable[[str, str, bytes], bytes] = lambda _, __, head: head
    ) -> None:
        """Change the head of each task that a node is sent."""
        super().__init__(
            fleet.sites, fleet.faults, fleet.stores, {k: each["public_key"] for k, each in fleet.keys.items()}
        )
        self.change = change
        self.sent: list[tuple[str, str, bytes]] = []
        self.replies: list[tuple[str, str, bytes]] = []

    def call(
        self, heads: Mapping[str, bytes], task: str, payload: bytes, timeout: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        changed = {name: self.change(task, name, head) for name, head in heads.items()}
        self.sent += [(task, name, head + payload) for name, head in changed.items()]
        for name, content in super().call(changed, task, payload, timeout):
            if isinstance(content, bytes):
                self.replies.append((task, name, content))
            yield name, content


def test_what_leaves_a_node_looks_random(tmp_path: Path) -> None:
    made = summed(**ONE_CLUSTER, rounds=1, model={"name": "mlp"})
    wire = Wire(fleet_of(made, tmp_path / "data"))
    carry_out(made, tmp_path / "fleet", wire)
    sent = [decode(reply, MaskedReply)[1][0][MASKED].numpy() for task, _, reply in wire.replies if task == "sum-masked"]
    assert len(sent) == 6
    assert all(looks_uniform(numbers) for numbers in sent)
    fixed, (start,), after = made.method.fixed, made.training.initial_models(), last_model(tmp_path / "fleet")
    assert fixed is not None
    unmasked = fixed.encode({name: after[f"0/{name}"] for name in start}, start)
    assert not looks_uniform(flat(unmasked, agreement_of(made).form))
    assert not any(task in ("train", "losses") for task, _, _ in wire.sent)


def test_all_clients_of_a_node_that_is_skipped_are_aside(tmp_path: Path) -> None:
    made = summed()
    cohort = Cohort(0, 0, 0, 0, np.arange(6), np.full(6, 40.0), 240.0, made.training.initial_models()[0])
    nodes = {client: f"node-{client % 5}" for client in range(6)}
    known = identities(set(nodes.values()))["node-0"].peers
    sums = begin(cohort, nodes, {0}, agreement_of(made), known, {}, b"")
    assert [sums.reason_of(client) for client in (0, 5)] == ["aside"] * 2


def replayed(wire: Wire, task: str, node: str) -> str:
    """Send a node again what it was sent; return the code that it refuses it with."""
    payload = next(head for each, name, head in wire.sent if (each, name) == (task, node))
    found, _ = decode_reply(answer(wire.sites[node], wire.stores[node], task, payload), Refusal)
    return found.code


def test_a_replayed_sum_is_refused_at_each_step(tmp_path: Path) -> None:
    made = summed(**ONE_CLUSTER, rounds=1)
    wire = Wire(fleet_of(made, tmp_path / "data"))
    carry_out(made, tmp_path / "fleet", wire)
    assert [replayed(wire, task, "node-2") for task in TASKS] == ["replayed"] * 5


def test_after_a_restart_old_shares_are_of_no_use(tmp_path: Path) -> None:
    """A node that was restarted makes new keys, so nothing that others sealed or signed before fits them."""
    made = summed(**ONE_CLUSTER, rounds=1)
    wire = Wire(fleet_of(made, tmp_path / "data"))
    carry_out(made, tmp_path / "fleet", wire)
    wire.sites |= fleet_of(made, tmp_path / "data").sites
    assert [replayed(wire, task, "node-2") for task in TASKS[1:]] == ["replayed"] * 4
    keys = next(head for each, name, head in wire.sent if (each, name) == ("sum-keys", "node-2"))
    assert not isinstance(
        decode_reply(answer(wire.sites["node-2"], MemoryStore(), "sum-keys", keys), KeysReply)[0], Refusal
    )
    assert replayed(wire, "sum-shares", "node-2") == "wrong_keys"


def swapping(task: str, name: str, head: bytes) -> bytes:
    """Tell node 0 that node 1 has a masking key that the server has made."""
    if (task, name) != ("sum-shares", "node-0"):
        return head
    request, _ = decode(head, SharesRequest)
    keys = tuple(
        each.model_copy(update={"masking": make_pair()[1]}) if each.name == "node-1" else each for each in request.keys
    )
    return encode(request.model_copy(update={"keys": keys}))


def dividing(task: str, name: str, head: bytes) -> bytes:
    """Tell half of the nodes that node 5's numbers have come, and the others that they have not."""
    if task != "sum-survivors" or name not in ("node-0", "node-1", "node-2"):
        return head
    request, _ = decode(head, SurvivorsRequest)
    return encode(request.model_copy(update={"survivors": request.survivors[:-1]}))


def alone(task: str, name: str, head: bytes) -> bytes:
    """Ask for the sum of two nodes."""
    if task != "sum-shares":
        return head
    request, _ = decode(head, SharesRequest)
    return encode(request.model_copy(update={"keys": request.keys[:2], "threshold": 2}))


def elsewhere(task: str, name: str, head: bytes) -> bytes:
    """Use a sum's keys for another cluster."""
    if task != "sum-masked":
        return head
    request, _ = decode(head, MaskedRequest)
    return encode(request.model_copy(update={"cluster": request.cluster + 1}))


CHEATS: dict[str, tuple[Callable[[str, str, bytes], bytes], str, int]] = {
    "swaps a key for one node": (swapping, "wrong_keys", 1),
    "tells of different survivors": (dividing, "too_few", 6),
    "sums two nodes": (alone, "too_few", 6),
    "takes keys of another sum": (elsewhere, "replayed", 6),
}


@pytest.mark.parametrize("what", thinned(CHEATS, 2))
def test_a_server_that_cheats_gets_no_shares(what: str, tmp_path: Path) -> None:
    change, reason, count = CHEATS[what]
    made = summed(**ONE_CLUSTER, rounds=1, secure=SUMS | {"least_nodes": 3})
    wire = Wire(fleet_of(made, tmp_path / "data"), change)
    carry_out(made, tmp_path / "fleet", wire)
    assert last_row(tmp_path / "fleet")[f"refused_{reason}"] == count
    if count == 6:
        assert not any(task == "sum-unmask" for task, _, _ in wire.replies)
        assert last_row(tmp_path / "fleet")["client_updates"] == 0


class Unequal(Wire):
    """A server that has node 0 work on something else than the others, under one digest or two."""

    def __init__(self, fleet: MemoryFleet, change: Callable[[MaskedRequest, bytes], tuple[MaskedRequest, bytes]]):
        super().__init__(fleet)
        self.altered = change

    def _answer(self, name: str, task: str, payload: bytes) -> bytes | Failure | None:
        if task == "sum-masked" and name != "node-0":
            request, _ = decode(payload, MaskedRequest)
            payload = encode(*self.altered(request, body_of(payload)))
        return super()._answer(name, task, payload)


def with_dead_units(request: MaskedRequest, body: bytes) -> tuple[MaskedRequest, bytes]:
    """Send a model whose updates are zero but for its last layer's bias."""
    (model,) = decode(encode(request, body), MaskedRequest)[1]
    return request, pack([{name: torch.full_like(each, -1e3) for name, each in model.items()}])


UNEQUAL: dict[str, Callable[[MaskedRequest, bytes], tuple[MaskedRequest, bytes]]] = {
    "another model": with_dead_units,
    "another round": lambda request, body: (request.model_copy(update={"round": request.round + 1}), body),
    "other random numbers": lambda request, body: (request.model_copy(update={"drawn_as": 9}), body),
    "other clients": lambda request, body: (
        request.model_copy(update={"clients": request.clients | {"node-0": (0, 1)}}),
        body,
    ),
}


@pytest.mark.parametrize("what", thinned(UNEQUAL, 1))
def test_nodes_that_are_sent_different_work_mask_nothing(what: str, tmp_path: Path) -> None:
    """Else the sum would be node 0's update, and what the server knows of the others'."""
    made = summed(**ONE_CLUSTER, rounds=1)
    wire = Unequal(fleet_of(made, tmp_path / "data"), UNEQUAL[what])
    carry_out(made, tmp_path / "fleet", wire)
    assert last_row(tmp_path / "fleet")["refused_wrong_work"] == 5
    assert not any(task in ("sum-survivors", "sum-unmask") for task, _, _ in wire.sent)
    assert last_row(tmp_path / "fleet")["client_updates"] == 0


def test_nodes_that_sign_for_different_work_mask_nothing(tmp_path: Path) -> None:
    """A server that also tells each node the digest of the work that it gets."""
    made = summed(**ONE_CLUSTER, rounds=1)

    def two(task: str, name: str, head: bytes) -> bytes:
        step = next((each for each in STEPS if each.task == task), None)
        if step is None:
            return head
        request, _ = decode(head, step.request)
        return encode(request.model_copy(update={"work": "ab" if name == "node-0" else request.work}))

    wire = Wire(fleet_of(made, tmp_path / "data"), two)
    carry_out(made, tmp_path / "fleet", wire)
    masked = {name for task, name, _ in wire.replies if task == "sum-unmask"}
    assert "node-0" not in masked
    kept = last_row(tmp_path / "fleet")
    assert (kept["refused_wrong_keys"] + kept.get("refused_too_few", 0), kept["client_updates"]) in ((6, 0), (1, 5))


def rosters(task: str, name: str, head: bytes) -> bytes:
    """Show node 5 to half of the nodes only."""
    if task != "sum-shares" or name in ("node-0", "node-1", "node-2"):
        return head
    request, _ = decode(head, SharesRequest)
    return encode(request.model_copy(update={"keys": tuple(each for each in request.keys if each.name != "node-2")}))


def test_nodes_that_are_shown_different_rosters_mask_nothing(tmp_path: Path) -> None:
    made = summed(**ONE_CLUSTER, rounds=1)
    wire = Wire(fleet_of(made, tmp_path / "data"), rosters)
    carry_out(made, tmp_path / "fleet", wire)
    assert not any(task == "sum-unmask" for task, _, _ in wire.sent)
    assert last_row(tmp_path / "fleet")["client_updates"] == 0


def revealing_false_shares(site: Any, task: str, content: bytes) -> bytes:
    if task != "sum-unmask":
        return content
    head, _ = decode(content, UnmaskReply)
    return encode(head.model_copy(update={"own": dict.fromkeys(head.own, b"\x07" * BYTES)}))


def sealing_junk(site: Any, task: str, content: bytes) -> bytes:
    if task != "sum-shares":
        return content
    head, _ = decode(content, SharesReply)
    return encode(head.model_copy(update={"shares": dict.fromkeys(head.shares, b"\x07" * 90)}))


def changing_its_secret(site: Any, task: str, content: bytes) -> bytes:
    if task == "sum-keys":
        for each in site.sums._open.values():
            each._secret = b"7" * 32
    return content


FALSE: dict[str, tuple[Callable[[Any, str, bytes], bytes], str, tuple[int, int]]] = {
    "reveals false shares": (revealing_false_shares, "revealed a false share of the mask of node 'node-0'", (6, 5)),
    "seals junk": (sealing_junk, "dealt shares that 5 nodes cannot open", (0, 5)),
    "deals shares of another secret": (changing_its_secret, "dealt false shares of its mask", (0, 5)),
}


@pytest.mark.parametrize("what", thinned(FALSE, 1))
def test_who_breaks_the_protocol_is_named_and_in_no_further_sum(what: str, tmp_path: Path) -> None:
    """The event in which it is found may be lost; the next has the sum of the others, and their bits."""
    change, told, counts = FALSE[what]
    made = summed(**ONE_CLUSTER, rounds=3)
    fleet = fleet_of(made, tmp_path / "data")
    site = fleet.sites["node-1"]
    fleet.faults = {"node-1": lambda task, _, honest: change(site, task, honest())}
    said = sentences(made, tmp_path / "fleet", fleet)
    assert f"node 'node-1' {told}: it is in no further secure sum of this run" in said
    rows = [json.loads(line) for line in (tmp_path / "fleet" / "metrics.jsonl").read_bytes().splitlines()]
    done = [row["client_updates"] for row in rows]
    first, then = counts
    assert done == [0, first, first + then, first + 2 * then]
    assert rows[-1]["refused_wrong_keys"] >= 2
    carry_out(replaying(made, tmp_path / "fleet" / "happened.jsonl"), tmp_path / "replayed", None)
    assert same_bits(tmp_path / "fleet", tmp_path / "replayed")


def code_of(content: bytes) -> str:
    found, _ = decode_reply(content, Refusal)
    return found.code


def test_a_node_sends_no_model_by_itself(tmp_path: Path) -> None:
    made = summed()
    site = fleet_of(made, tmp_path / "data").sites["node-1"]
    digest, (start,) = agreement_of(made).digest, made.training.initial_models()
    common: dict[str, Any] = {"settings_digest": digest, "nonce": "ab", "round": 0, "client": 1}
    request = TrainRequest(**common, event=0, drawn_as=0, repeat=0, cluster=0)
    assert code_of(answer(site, MemoryStore(), "train", encode(request, pack([start])))) == "not_allowed"
    assert (
        code_of(answer(site, MemoryStore(), "losses", encode(LossesRequest(**common), pack([start])))) == "not_needed"
    )


@pytest.mark.more
def test_an_owners_limit_of_trainings_holds_in_sums_too(tmp_path: Path) -> None:
    made = summed(**ONE_CLUSTER, rounds=3)
    fleet = fleet_of(made, tmp_path / "data")
    fleet.sites["node-2"] = replace(fleet.sites["node-2"], budget=WorkBudget(trainings=1))
    carry_out(made, tmp_path / "fleet", fleet)
    last = last_row(tmp_path / "fleet")
    assert (last["refused_over_budget"], last["client_updates"]) == (2, 6 + 5 + 5)


def test_an_update_beyond_the_range_is_an_error_here_and_refused_there(tmp_path: Path) -> None:
    changes: dict[str, Any] = ONE_CLUSTER | {"rounds": 1, "secure": SUMS | {"range": 1e-4}}
    made = summed(**changes)
    with pytest.raises(
        RunError, match=r"^secure\.range = 0\.0001: an update has a number of size 0\.\d+, which is beyond"
    ):
        carry_out(made, tmp_path / "simulated", None)
    carry_out(made, tmp_path / "fleet", fleet_of(made, tmp_path / "data"))
    assert last_row(tmp_path / "fleet")["refused_out_of_range"] == 6


@pytest.mark.parametrize("added", [2**60, -(2**63)])
def test_who_adds_more_than_updates_can_be_spoils_the_sum_and_no_model(added: int, tmp_path: Path) -> None:
    made = summed(**ONE_CLUSTER, rounds=1)

    def shouting(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        if task != "sum-masked":
            return honest()
        head, (model,) = decode(honest(), MaskedReply)
        return encode(head, pack([{MASKED: model[MASKED] + added}]))

    told = sentences(made, tmp_path / "fleet", fleet_of(made, tmp_path / "data", {"node-1": shouting}))
    assert any("larger than all updates can be" in each for each in told)
    assert last_row(tmp_path / "fleet")["refused_too_few"] == 6


JUNK: dict[str, tuple[Callable[[MaskedReply, torch.Tensor], tuple[MaskedReply, torch.Tensor]], str]] = {
    "other samples": (
        lambda head, sum_: (
            head.model_copy(update={"work": tuple(w.model_copy(update={"samples": 7}) for w in head.work)}),
            sum_,
        ),
        "wrong_count",
    ),
    "another client": (
        lambda head, sum_: (
            head.model_copy(update={"work": tuple(w.model_copy(update={"client": 0}) for w in head.work)}),
            sum_,
        ),
        "wrong_sender",
    ),
    "fewer numbers": (lambda head, sum_: (head, sum_[:-1].clone()), "wrong_form"),
    "floating point": (lambda head, sum_: (head, sum_.double()), "wrong_form"),
    "an older call": (lambda head, sum_: (head.model_copy(update={"nonce": "aa"}), sum_), "repeated"),
}


@pytest.mark.parametrize("what", thinned(JUNK, 2))
def test_masked_numbers_that_cannot_be_are_left_out(what: str, tmp_path: Path) -> None:
    made = summed(**ONE_CLUSTER, rounds=1)
    change, reason = JUNK[what]

    def lying(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        if task != "sum-masked":
            return honest()
        head, (model,) = decode(honest(), MaskedReply)
        head, numbers = change(head, model[MASKED])
        return encode(head, pack([{MASKED: numbers}]))

    carry_out(made, tmp_path / "fleet", fleet_of(made, tmp_path / "data", {"node-1": lying}))
    row = last_row(tmp_path / "fleet")
    assert (row[f"refused_{reason}"], row["client_updates"]) == (1, 5)
    carry_out(replaying(made, tmp_path / "fleet" / "happened.jsonl"), tmp_path / "replayed", None)
    assert same_bits(tmp_path / "fleet", tmp_path / "replayed")


def test_a_cohort_on_too_few_nodes_is_not_summed(tmp_path: Path) -> None:
    made = summed(**ONE_CLUSTER, rounds=1)
    told = sentences(made, tmp_path / "fleet", fleet_of(made, tmp_path / "data", nodes=1))
    assert any("its clients are on 1 nodes, secure.least_nodes = 2 must be" in each for each in told)
    assert last_row(tmp_path / "fleet")["client_updates"] == 0


def test_a_node_without_others_keys_takes_no_part(tmp_path: Path) -> None:
    made = summed()
    with pytest.raises(InputError, match=r"^secure\.sums = true: this node does not know the other nodes' public keys"):
        open_site(made.settings, write_shards(made, tmp_path)[0], 0)


def test_a_fleet_without_keys_has_no_secure_sums(tmp_path: Path) -> None:
    made = summed()
    fleet = fleet_of(made, tmp_path / "data")
    fleet.keys.clear()
    with pytest.raises(InputError, match=r"^secure\.sums = true: the public key of node 'node-0' is not known"):
        carry_out(made, tmp_path / "fleet", fleet)


@pytest.mark.more
def test_who_would_count_for_less_than_it_says_is_told_before_training(tmp_path: Path) -> None:
    """Its node weighs it, and the server must not."""
    made = summed(fleet={"samples_limit": 1.0, "wait_seconds": 20.0})
    fleet = fleet_of(made, tmp_path / "data")
    folder = tmp_path / "data" / "client-3"
    for name in ("inputs.npy", "targets.npy"):
        np.save(folder / name, np.concatenate([np.load(folder / name)] * 3))
    more = fleet_of(made, tmp_path / "data")
    with pytest.raises(InputError, match=r"client 3 holds 120 samples and would count for 40, but its node weighs it"):
        carry_out(made, tmp_path / "run", more)
    equal = summed(fleet={"samples_limit": 1.0}, method={"name": "fedavg", "fraction": 1.0, "weights": "equal"})
    carry_out(equal, tmp_path / "equal", fleet_of(equal, tmp_path / "data"))
    assert last_row(tmp_path / "equal")["client_updates"] == 12
    assert fleet.sites["node-3"].population.sizes[3] == 40
