"""Whatever bytes a node or a server is sent in a secure sum, there is an answer, and nothing false is taken."""

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.engine.cohorts import Cohort
from atoll.fleet.agreed.messages import Refusal, decode, decode_reply
from atoll.fleet.agreed.sum_messages import KeysRequest, SumReply
from atoll.fleet.agreed.transport import Failure
from atoll.fleet.node.handlers import answer
from atoll.fleet.server.cohort_sum import Summation, begin
from atoll.fleet.server.gathering import Call, Reply
from atoll.fleet.server.replies import REASONS, Expected
from atoll.fleet.server.secure_sums import STEPS, SecureSums
from atoll.secure.roster import NotSummed
from tests.fleets import agreement_of
from tests.fuzzing import carry_out, few, fewest, many
from tests.memory_store import MemoryStore
from tests.secure.fleet import carry_out as run
from tests.secure.fleet import fleet_of, summed
from tests.secure.nodes import identities
from tests.secure.test_secure_fleet import ONE_CLUSTER, Wire
from tests.tiers import as_more, thinned

MADE = summed(**ONE_CLUSTER, rounds=1)
TASKS = [step.task for step in STEPS]
NAMES = [f"node-{k}" for k in range(6)]


def stopped_at(task: str, folder: Path) -> tuple[Wire, bytes]:
    """Return a fleet whose node 0 has not answered this yet, and what it was asked."""

    def fault(asked: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure:
        return Failure("gone") if asked == task else honest()

    wire = Wire(fleet_of(MADE, folder / "data", {"node-0": fault}))
    run(MADE, folder / "run", wire)
    return wire, next(sent for each, name, sent in wire.sent if (each, name) == (task, "node-0"))


def a_node(wire: Wire, task: str) -> Callable[[bytes], object]:
    """Return what has a node asked, as if for the first time, and makes sure of its answer."""
    site, step = wire.sites["node-0"], next(each for each in STEPS if each.task == task)
    open_sums = dict(site.sums._open)
    kept = {token: vars(each) | {"_held": dict(each._held)} for token, each in open_sums.items()}

    def read(message: bytes) -> object:
        site.sums._open = {} if task == "sum-keys" else dict(open_sums)
        for token, state in kept.items():
            open_sums[token].__dict__.update(state | {"_held": dict(state["_held"])})
        head, _ = decode_reply(answer(site, MemoryStore(), task, message), step.reply)
        assert isinstance(head, step.reply | Refusal)
        return head

    return read


def summation(wire: Wire, before: str) -> Summation:
    """Return a server's side of a sum, to which all that nodes replied before a step has been told."""
    cohort = Cohort(0, 0, 0, 0, np.arange(6), np.full(6, 40.0), 240.0, MADE.training.initial_models()[0])
    known = identities(NAMES)["node-0"].peers
    made = begin(cohort, dict(enumerate(NAMES)), set(), agreement_of(MADE), known, {}, b"")
    sent = next(each for task, _, each in wire.sent if task == "sum-keys")
    made.collector.instance = decode(sent, KeysRequest)[0].instance
    for step in STEPS[: TASKS.index(before)]:
        made.told = step.take(made.collector, said(wire, made, step.task))
    return made


def said(wire: Wire, made: Summation, task: str, **other: bytes) -> dict[str, Any]:
    """Return what the server reads of all nodes' replies in a step, of some of them other ones."""
    step = next(each for each in STEPS if each.task == task)
    sums, found = SecureSums(wire, agreement_of(MADE), 1.0), {}
    for each, name, content in wire.replies:
        if each == task:
            head, _ = decode_reply(content, step.reply)
            assert isinstance(head, SumReply)
            asked = Expected(name, NAMES.index(name), head.nonce, {})
            reply = Reply(Call(0, task, {}, b"", {}), name, other.get(name, content), 1.0)
            found[name] = sums._read(step, made, asked, reply)
    return found


def the_server(wire: Wire, task: str) -> Callable[[bytes], None]:
    """Return what lets a server read node 1's reply, and makes sure that it takes it or leaves it."""

    before, step = summation(wire, task), next(each for each in STEPS if each.task == task)

    def read(message: bytes) -> None:
        made = replace(before, collector=copy(before.collector))
        found = said(wire, made, task, **{"node-1": message})
        assert not isinstance(found["node-1"], str) or found["node-1"] in REASONS
        with suppress(NotSummed):
            step.take(made.collector, {name: each for name, each in found.items() if not isinstance(each, str)})

    return read


OFTEN = [fewest, as_more(few), pytest.param(many, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]


@pytest.mark.parametrize("often", OFTEN, ids=["a little", "some", "much"])
@pytest.mark.parametrize("task", thinned(TASKS))
def test_a_node_answers_whatever_it_is_sent(task: str, often: Any, tmp_path: Path) -> None:
    wire, request = stopped_at(task, tmp_path)
    read = a_node(wire, task)
    assert not isinstance(read(request), Refusal), "undamaged it is answered"
    carry_out(often, (request,), read)


@pytest.mark.more
@pytest.mark.parametrize("often", OFTEN, ids=["a little", "some", "much"])
@pytest.mark.parametrize("task", thinned(TASKS))
def test_a_server_takes_a_reply_or_leaves_it(task: str, often: Any, tmp_path: Path) -> None:
    wire = Wire(fleet_of(MADE, tmp_path / "data"))
    run(MADE, tmp_path / "run", wire)
    reply = next(content for each, name, content in wire.replies if (each, name) == (task, "node-1"))
    assert not isinstance(said(wire, summation(wire, task), task)["node-1"], str), "the undamaged one is taken"
    carry_out(often, (reply,), the_server(wire, task))
