"""A node that is killed at every step of a task: started again, it is given the task again, and no answer is lost."""

import contextlib
import itertools
import os
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from atoll.fleet.flower import flower_node, presence
from atoll.fleet.flower.flower_fleet import FlowerFleet
from atoll.fleet.flower.superlink import free_port
from atoll.fleet.folder.configuration import read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet
from tests.cli.fleets import wait_until
from tests.fleets import nodes_in_threads
from tests.tiers import thinned

httpx = pytest.importorskip("httpx")
pytest.importorskip("flwr")

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(600)]

HEAD = b"for you: "
WORK = "the work"
STEPS = ("PullMessages", "PullObject", "PushMessages", "PushObject")


class Mortal:
    """A node's connection that dies with it at one step: not even its goodbye is heard then."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.step, self.when = "", ""
        self.is_dead = threading.Event()

    def die(self) -> None:
        self.is_dead.set()
        raise SystemExit

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(*words: Any) -> Any:
            if self.is_dead.is_set():
                raise httpx.ConnectError("it is dead")
            if name == self.step and self.when == "before":
                self.die()
            answer = method(*words)
            is_empty = name == "PullMessages" and not answer.messages_list
            if name == self.step and self.when == "after" and not is_empty:
                self.die()
            return answer

        return call if callable(method) else method


class Here:
    """A fleet of two nodes, of which the first is `mortal`; `work` counts what each was asked."""

    def __init__(self, fleet: FlowerFleet, mortals: list[Mortal], work: Counter[str]) -> None:
        self.fleet, self.mortals, self.work = fleet, mortals, work
        self.deaths = 0


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    before, patch, mortals = dict(os.environ), pytest.MonkeyPatch(), list[Mortal]()
    plan = FleetPlan(2, "127.0.0.1", listen="127.0.0.1", port=free_port(), max_mib=1)
    configuration = init_fleet(tmp_path_factory.mktemp("kills") / "fleet", plan)
    connect, is_over = presence.client_of, threading.Event()

    @contextlib.contextmanager
    def client_of(*words: Any) -> Iterator[Any]:
        with connect(*words) as client:
            mortals.append(Mortal(client))
            yield mortals[-1]

    def answer(name: str, task: str, payload: bytes) -> bytes:
        there.work[f"{name} {payload.removeprefix(HEAD)!r}"] += 1
        if name == "node-0" and mortals[-1].step == WORK:
            mortals[-1].die()
        return name.encode() + b" " + payload

    def be_mortal() -> None:
        node = read_node(configuration.folder / "nodes" / "node-0")
        while not is_over.is_set():
            with contextlib.suppress(SystemExit):
                flower_node.serve(node, lambda task, payload: answer("node-0", task, payload), lambda sentence: None)
            there.deaths += 1

    with FlowerFleet(configuration) as fleet:
        there = Here(fleet, mortals, Counter())
        with nodes_in_threads(configuration.folder, ["node-1"], lambda *words: answer(*words)):
            wait_until(lambda: len(fleet.nodes()) == 1, 60)
            patch.setattr(flower_node, "client_of", client_of)
            threading.Thread(target=be_mortal, daemon=True).start()
            wait_until(lambda: len(fleet.nodes()) == 2, 60)
            yield there
            is_over.set()
            mortals[-1].step, mortals[-1].when = "PullMessages", "before"
    patch.undo()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.more
@pytest.mark.parametrize(("step", "when"), thinned([(WORK, ""), *itertools.product(STEPS, ("before", "after"))], 1))
def test_its_answer_arrives_all_the_same(here: Here, step: str, when: str) -> None:
    payload, mortal = f"{step} {when}".encode(), here.mortals[-1]
    mortal.step, mortal.when, deaths = step, when, here.deaths
    heads = dict.fromkeys(("node-0", "node-1"), HEAD)
    came = list(here.fleet.call(heads, "train", payload, 60.0))
    assert dict(came) == {name: f"{name} ".encode() + HEAD + payload for name in heads}
    assert len(came) == 2
    assert here.deaths == deaths + 1
    assert here.work[f"node-1 {payload!r}"] == 1
    assert here.work[f"node-0 {payload!r}"] <= 2
