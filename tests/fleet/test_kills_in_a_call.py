"""A superlink that is killed at every step of a call: every answer arrives, long before the deadline, and once."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from atoll.fleet.flower import calls, flower_fleet, superlink
from atoll.fleet.flower.flower_fleet import FlowerFleet
from atoll.fleet.flower.flower_node import Answered
from atoll.fleet.flower.superlink import free_port
from atoll.fleet.folder.init import FleetPlan, init_fleet
from tests.cli.fleets import wait_until
from tests.fleets import nodes_in_threads
from tests.tiers import thinned

httpx = pytest.importorskip("httpx")
pytest.importorskip("flwr")

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(600)]

NODES = 3
STEPS = ("GetNodes", "PushMessages", "PushObject", "PullMessages", "PullObject", "ConfirmMessageReceived")


class Killing:
    """A client of the superlink that kills it at one step of a call."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.step, self.when = "", ""
        self.fleet: FlowerFleet | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        if name != self.step:
            return method

        def call(request: Any) -> Any:
            if name == "PullMessages" and self.when == "after":
                answer = method(request)
                if not answer.messages_list:  # nothing is lost with it
                    return answer
            elif self.when == "after":
                method(request)
            self.step = ""
            assert self.fleet is not None
            os.kill(self.fleet.superlink.pid, signal.SIGKILL)
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")

        return call


class Here:
    """Three nodes that answer, and their server."""

    def __init__(self, fleet: FlowerFleet, killing: list[Killing], work: Counter[str]) -> None:
        self.fleet, self.killing, self.work = fleet, killing, work


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    before, patch, killing = dict(os.environ), pytest.MonkeyPatch(), list[Killing]()
    plan = FleetPlan(NODES, "127.0.0.1", listen="127.0.0.1", port=free_port(), max_mib=1)
    configuration = init_fleet(tmp_path_factory.mktemp("kills") / "fleet", plan)
    make, work = calls.runtime_client, Counter[str]()

    def client(*words: Any) -> Killing:
        killing.append(Killing(make(*words)))
        return killing[-1]

    patch.setattr(flower_fleet, "runtime_client", client)
    patch.setattr(superlink, "_RESTARTS", 2 * len(STEPS))

    def answer(name: str, task: str, payload: bytes) -> bytes:
        work[f"{name} {payload!r}"] += 1
        return name.encode() + b" " + payload

    names = [f"node-{number}" for number in range(NODES)]
    with FlowerFleet(configuration) as fleet, nodes_in_threads(configuration.folder, names, answer):
        wait_until(lambda: len(fleet.nodes()) == NODES, 60)
        yield Here(fleet, killing, work)
    patch.undo()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.more
@pytest.mark.parametrize("when", thinned(["after", "before"], 1))
@pytest.mark.parametrize("step", thinned(STEPS, ("PullMessages",)))
def test_every_answer_arrives_and_no_work_is_done_twice(here: Here, step: str, when: str) -> None:
    for killing in here.killing:
        killing.step, killing.when, killing.fleet = step, when, here.fleet
    payload = f"{step} {when}".encode()
    heads = {f"node-{number}": b"for you: " for number in range(NODES)}
    began = time.monotonic()
    came = list(here.fleet.call(heads, "train", payload, 100.0))
    assert time.monotonic() - began < 60
    assert not any(killing.step for killing in here.killing[-1:]), "nobody was killed"
    assert dict(came) == {name: f"{name} for you: ".encode() + payload for name in heads}
    assert len(came) == NODES
    assert {name: count for name, count in here.work.items() if payload.decode() in name and count > 1} == {}


@pytest.mark.more
def test_an_answer_is_kept_for_a_question_that_comes_again_and_not_for_ever() -> None:
    asked: list[tuple[str, bytes]] = []

    def answer(task: str, payload: bytes) -> bytes:
        asked.append((task, payload))
        if payload == b"fail":
            raise ValueError("no")
        return payload * 2

    kept = Answered(answer, kept=2, most_bytes=12)
    assert [kept("train", b"a"), kept("train", b"a"), kept("losses", b"a")] == [b"aa"] * 3
    assert asked == [("train", b"a"), ("losses", b"a")]
    kept("train", b"b")
    kept("train", b"a")  # the oldest of three was dropped
    assert len(asked) == 4
    assert kept("train", b"long" * 9) == kept("train", b"long" * 9)  # longer than all that is kept, but the latest
    assert len(asked) == 5
    kept("train", b"a")
    assert len(asked) == 6
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            kept("train", b"fail")
    assert len(asked) == 8
