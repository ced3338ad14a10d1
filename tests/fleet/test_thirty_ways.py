"""Ten nodes, of which three are hostile, in thirty ways: the others' model comes out, or a sentence names the nodes."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import Experiment, RunError
from atoll.fleet.agreed.messages import TrainReply
from atoll.fleet.agreed.transport import Failure
from atoll.local.models import Model
from tests.fleet.test_hostile import both, carry, with_loss
from tests.fleets import open_sites, replying, sending, small
from tests.memory_fleet import Fault, MemoryFleet
from tests.tiers import thinned

HOSTILE = ("node-1", "node-4", "node-8")
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg", "fraction": 1.0},
    "fedcluster": {"name": "fedcluster", "fraction": 1.0},
    "censyn": {"name": "hierarchical", "pattern": "censyn", "intra_rounds": 1},
    "cenasy": {"name": "hierarchical", "pattern": "cenasy", "intra_rounds": 1},
    "ifca": {"name": "ifca", "clusters": 2, "fraction": 1.0},
}


def changing(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[], Fault]:
    """Return the fault of a node that changes each tensor of floating-point numbers."""

    def changed(head: TrainReply, model: Model) -> tuple[TrainReply, Model]:
        return head, {key: change(key, own) if own.is_floating_point() else own for key, own in model.items()}

    return lambda: replying(changed)


def saying(**told: Any) -> Callable[[], Fault]:
    return lambda: replying(lambda head, model: (head.model_copy(update=told), model))


def forming(change: Callable[[Model], Model]) -> Callable[[], Fault]:
    return lambda: replying(lambda head, model: (head, change(model)))


def growing() -> Fault:
    """Ten times further out with every answer, from what is usual."""
    turns = itertools.count()
    return replying(lambda head, model: (head, {key: own * 10.0 ** next(turns) for key, own in model.items()}))


def repeating() -> Fault:
    """The first answer for ever."""
    kept: list[bytes] = []

    def fault(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure | None:
        if task != "train":
            return honest()
        kept.append(honest())
        return kept[0]

    return fault


def at_turns(inner: Callable[[], Fault]) -> Callable[[], Fault]:
    """Honest in every second answer."""

    def make() -> Fault:
        turns, evil = itertools.count(), inner()
        return lambda task, payload, honest: (
            evil(task, payload, honest) if task == "train" and next(turns) % 2 else honest()
        )

    return make


def drawn(key: str, own: torch.Tensor) -> torch.Tensor:
    return 1e3 * torch.randn(own.shape, generator=torch.Generator().manual_seed(len(key)))


FAR = changing(lambda key, own: own + 9e11)
WAYS: Mapping[str, Callable[[], Fault]] = {
    "far": FAR,
    "far by 100": changing(lambda key, own: own + 100),
    "far by 30": changing(lambda key, own: own + 30),
    "a thousand times": changing(lambda key, own: 1e3 * own),
    "reversed a thousand times": changing(lambda key, own: -1e3 * own),
    "one far number": changing(lambda key, own: own.index_fill(-1, torch.tensor([0]), 1e6)),
    "noise": changing(drawn),
    "constant": changing(lambda key, own: torch.full_like(own, 1e4)),
    "growing": growing,
    "far at every second turn": at_turns(FAR),
    "not a number": changing(lambda key, own: own * torch.nan),
    "infinite": changing(lambda key, own: own / 0),
    "beyond all": changing(lambda key, own: own + 3e38),
    "a tensor too many": forming(lambda model: model | {"more": torch.ones(3)}),
    "other shapes": forming(lambda model: {key: own[..., :1] for key, own in model.items()}),
    "other types": forming(lambda model: {key: own.double() for key, own in model.items()}),
    "no tensors": forming(lambda model: {}),
    "samples of millions": saying(samples=10**9),
    "work of millions": saying(passed=10**15),
    "no work": saying(passed=0),
    "a day": saying(seconds=86_400.0),
    "times of millions": saying(seconds=1e15),
    "a loss beyond all": lambda: with_loss(1.7e308),
    "a loss below all": lambda: with_loss(-1e14),
    "another event": saying(event=10**6),
    "another client": lambda: both(
        lambda task, head, models: (head if task == "describe" else head.model_copy(update={"client": 0}), models)
    ),
    "its first answer": repeating,
    "a flood": lambda: sending(lambda reply: b"\0" * 30_000_000),
    "half": lambda: sending(lambda reply: reply[: len(reply) // 2]),
    "a breakdown": lambda: sending(lambda reply: Failure("failed")),
    "silence": lambda: sending(lambda reply: None),
}


def ten(method: str, clustering: dict[str, Any] | None = None, **rule: Any) -> Experiment:
    is_long = "pattern" in METHODS[method]  # where a round is one step, and clusters arrive in any order
    return small(
        rounds=400 if is_long else 15,
        data={"clients": 10, "samples": 140, "partition": "iid"},
        local={"steps": 5, "lr": 0.1},
        model={"name": "linear"},
        clustering=clustering or {},
        method=METHODS[method] | rule,
        fleet={"wait_seconds": 0.5, "deadline_seconds": 1.0},
    )


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, float]]:
    """Return the folder of the clients' data, and the accuracy of a run in which nobody lies, each made once."""
    made: dict[str, tuple[Path, float]] = {}

    def make(method: str) -> tuple[Path, float]:
        if method not in made:
            folder = tmp_path_factory.mktemp("ten")
            fleet = MemoryFleet(open_sites(ten(method), folder / "data"))
            made[method] = folder / "data", carry(ten(method), fleet, folder / "run")[0][-1]["test_accuracy"]
        return made[method]

    return make


def test_there_are_thirty_ways() -> None:
    assert len(WAYS) >= 30


@pytest.mark.more
@pytest.mark.parametrize("way", thinned(WAYS, 1))
@pytest.mark.parametrize("method", thinned(METHODS, 1))
def test_three_of_ten_nodes_change_the_accuracy_by_two_points_at_most(
    method: str, way: str, honest: Callable[[str], tuple[Path, float]], tmp_path: Path
) -> None:
    _, accuracy = honest(method)
    sites = open_sites(ten(method), tmp_path / "data")
    fleet = MemoryFleet(sites, {node: WAYS[way]() for node in HOSTILE})
    stopped = ""
    try:
        rows, _ = carry(ten(method), fleet, tmp_path / "run")
    except RunError as error:
        stopped = str(error)
    if stopped:
        assert any(node in stopped for node in HOSTILE), stopped
    else:
        assert abs(rows[-1]["test_accuracy"] - accuracy) <= 0.02


@pytest.mark.parametrize(("method", "clusters"), thinned([("cenasy", 10), ("cenasy", 5), ("fedcluster", 10)], 0))
def test_nor_where_first_events_are_of_one_client_or_two(method: str, clusters: int, tmp_path: Path) -> None:
    """Of two updates the far longer one does not count; of one alone nobody knows, until there are others."""
    made = ten(method, clustering={"clusters": clusters})
    fleet = MemoryFleet(open_sites(made, tmp_path / "data"), {node: FAR() for node in HOSTILE})
    rows, stopped = list[dict[str, Any]](), ""
    try:
        rows, _ = carry(made, fleet, tmp_path / "run")
    except RunError as error:
        stopped = str(error)
    if stopped:
        assert "the models are worthless" in stopped
        assert any(node in stopped for node in HOSTILE)
    else:
        assert rows[-1]["train_loss"] < rows[0]["train_loss"]
        assert rows[-1]["refused_unusual"]


@pytest.mark.more
def test_what_is_no_longer_than_usual_takes_a_robust_rule(
    honest: Callable[[str], tuple[Path, float]], tmp_path: Path
) -> None:
    """As docs/faults.md says: updates that lead back to zeros are as long as those that led away from them."""
    _, accuracy = honest("fedavg")
    away = {}
    for rule in ("mean", "median"):
        made = ten("fedavg", combine=rule)
        zeros = changing(lambda key, own: torch.zeros_like(own))
        fleet = MemoryFleet(open_sites(made, tmp_path / "data"), {node: zeros() for node in HOSTILE})
        rows, _ = carry(made, fleet, tmp_path / rule)
        assert rows[-1]["refused_unusual"] == 0
        away[rule] = abs(rows[-1]["test_accuracy"] - accuracy)
    assert away["median"] <= 0.02 < away["mean"]
