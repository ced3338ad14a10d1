"""Fleets in this process for tests: each client's samples go through files, each message through bytes."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from atoll import Experiment
from atoll.fleet.agreed.agreement import Agreement, agree
from atoll.fleet.agreed.messages import TrainReply, decode, encode, pack
from atoll.fleet.agreed.transport import Failure
from atoll.fleet.node.node import Node, Reporting, open_site
from atoll.fleet.node.shards import write_shards
from atoll.fleet.server.fleet_executor import FleetExecutor
from atoll.fleet.server.joining import wait_for_nodes
from atoll.local.models import Model
from atoll.settings.experiment_file import compose
from tests.memory_fleet import Fault, MemoryFleet

SMALL = {
    "rounds": 3,
    "data": {"clients": 4, "samples": 40},
    "local": {"steps": 3},
    "clustering": {"clusters": 2},
    "method": {"name": "fedcluster", "fraction": 1.0},
}


def small(**changes: Any) -> Experiment:
    """Return a small experiment on the digits, with other settings in some sections."""
    return Experiment(compose([SMALL, changes])[0])


def open_sites(experiment: Experiment, folder: Path, reporting: Reporting | None = None) -> dict[str, Node]:
    """Return one node a client, ``node-0`` and so on."""
    folders = write_shards(experiment, folder)
    return {
        f"node-{client}": open_site(experiment.settings, place, client, reporting)
        for client, place in enumerate(folders)
    }


def agreement_of(experiment: Experiment) -> Agreement:
    return agree(experiment.settings, experiment.clients.dealt.data, experiment.module, experiment.method)


def join(experiment: Experiment, fleet: MemoryFleet, deadline_seconds: float = 30.0) -> FleetExecutor:
    """Return the executor on a fleet whose nodes are all there."""
    joined = wait_for_nodes(fleet, agreement_of(experiment), None, 5.0)
    return FleetExecutor(fleet, joined.nodes, agreement_of(experiment), deadline_seconds, joined.samples)


def replying(change: Callable[[TrainReply, Model], tuple[TrainReply, Model]]) -> Fault:
    """Return the fault of a node that sends another result of a training than it has."""

    def fault(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure | None:
        if task != "train":
            return honest()
        head, (model,) = decode(honest(), TrainReply)
        head, model = change(head, model)
        return encode(head, pack([model]))

    return fault


def sending(content: Callable[[bytes], bytes | Failure | None]) -> Fault:
    """Return the fault of a node that sends other bytes, a failure, or nothing, in the place of a training's result."""

    def fault(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure | None:
        return content(honest()) if task == "train" else honest()

    return fault


@contextmanager
def nodes_in_threads(folder: Path, names: Iterable[str], answer: Callable[[str, str, bytes], bytes]) -> Iterator[None]:
    """Be nodes of a fleet's folder on Flower, each in a thread; `answer` is given the name, too.

    The threads end some time after the block.
    """
    from atoll.fleet.flower import flower_node
    from atoll.fleet.folder.configuration import read_node

    def be(name: str) -> None:
        node = read_node(folder / "nodes" / name)
        with suppress(SystemExit):
            flower_node.serve(node, lambda task, payload: answer(name, task, payload), lambda sentence: None)

    _let_threads_end()
    threads = [threading.Thread(target=be, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        _ENDING.update(threads)


_ENDING = set[threading.Thread]()


@cache
def _let_threads_end() -> None:
    from atoll.fleet.flower import flower_node

    pause = flower_node._pause

    def pause_or_end(idle: float) -> float:
        if threading.current_thread() in _ENDING:
            raise SystemExit
        return pause(idle)

    setattr(flower_node, "_pause", pause_or_end)  # noqa: B010
