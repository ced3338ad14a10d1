"""What nodes answer, and what they keep."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.fleet.agreed.messages import (
    DescribeReply,
    DescribeRequest,
    LossesReply,
    LossesRequest,
    Refusal,
    TrainReply,
    TrainRequest,
    decode,
    encode,
    pack,
)
from atoll.fleet.agreed.sum_messages import KeysRequest, MaskedRequest, SharesRequest, SurvivorsRequest, UnmaskRequest
from atoll.fleet.node.handlers import HANDLERS, answer
from atoll.fleet.node.node import Node, Reporting, open_site
from atoll.fleet.node.secure_sum import SUMMING
from atoll.fleet.node.shards import write_shards
from atoll.fleet.node.store import FolderStore, Store
from atoll.fleet.node.work_count import WorkBudget
from atoll.local.models import Model
from atoll.support.errors import RunError
from tests.fleets import agreement_of, small
from tests.memory_store import MemoryStore

EXPERIMENT = small()
DIGEST = agreement_of(EXPERIMENT).digest
(START,) = EXPERIMENT.training.initial_models()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(EXPERIMENT, tmp_path_factory.mktemp("shards"))[1]


@pytest.fixture(scope="module")
def site(folder: Path) -> Node:
    return open_site(EXPERIMENT.settings, folder, 1)


def asking(client: int = 1, digest: str = DIGEST, start: Model = START, **values: Any) -> bytes:
    common = {"event": 0, "drawn_as": 0, "round": 0, "repeat": 0, "cluster": 0}
    request = TrainRequest(**{"settings_digest": digest, "nonce": "ab", "client": client, **common, **values})
    return encode(request, pack([start]))


def describing(digest: str = DIGEST) -> bytes:
    return encode(DescribeRequest(settings_digest=digest, nonce="ab"))


def refusal(reply: bytes) -> str:
    return decode(reply, Refusal)[0].code


def test_there_are_three_tasks_and_the_steps_of_a_secure_sum() -> None:
    steps = ["sum-keys", "sum-masked", "sum-shares", "sum-survivors", "sum-unmask"]
    assert sorted(HANDLERS) == ["describe", "losses", *steps, "train"]


@pytest.mark.parametrize("task", sorted(SUMMING))
def test_without_secure_sums_a_node_takes_no_part_in_any(site: Node, task: str) -> None:
    common: dict[str, Any] = {"settings_digest": DIGEST, "nonce": "ab", "token": "cd"}
    common |= {"event": 0, "repeat": 0, "cluster": 0, "work": "ef"}
    requests = {
        "sum-keys": KeysRequest(**common),
        "sum-shares": SharesRequest(**common, keys=(), threshold=2),
        "sum-masked": MaskedRequest(**common, drawn_as=0, round=0, clients={"node-1": (1,)}, shares={}),
        "sum-survivors": SurvivorsRequest(**common, survivors=()),
        "sum-unmask": UnmaskRequest(**common, signatures={}),
    }
    reply = answer(site, MemoryStore(), task, encode(requests[task], pack([START])))
    assert decode(reply, Refusal)[0].code == "not_needed"


@pytest.mark.parametrize(
    ("task", "payload", "code"),
    [
        ("run", asking(), "unknown_task"),
        ("__import__('os')", asking(), "unknown_task"),
        ("train", b"junk", "unreadable"),
        ("train", describing(), "unreadable"),
        ("train", asking()[:-1], "unreadable"),
        ("train", asking(digest="0"), "wrong_settings"),
        ("describe", describing(digest="0"), "wrong_settings"),
        ("train", asking(client=0), "wrong_client"),
        ("train", asking(client=99), "wrong_client"),
        ("train", asking(start={}), "unreadable"),
        ("train", asking(start={"w": torch.zeros(2)}), "unreadable"),
        ("train", asking(start=START | {"1.weight": torch.zeros(2)}), "unreadable"),
        ("train", asking(start={k: v.double() for k, v in START.items()}), "unreadable"),
    ],
)
def test_what_a_node_does_not_do(task: str, payload: bytes, code: str, site: Node) -> None:
    store = MemoryStore()
    assert refusal(answer(site, store, task, payload)) == code
    assert store.get("pace-1") is None


@given(st.text(max_size=10) | st.sampled_from(sorted(HANDLERS)), st.binary(max_size=200), st.integers(0, 200))
def test_a_node_answers_whatever_it_is_sent(site: Node, task: str, junk: bytes, place: int) -> None:
    for payload in (junk, asking()[:place] + junk):
        refusal(answer(site, MemoryStore(), task, payload))


def test_what_a_node_was_asked_is_in_its_reply(site: Node) -> None:
    head, models = decode(answer(site, MemoryStore(), "train", asking()), TrainReply)
    assert (head.nonce, head.event, head.repeat, head.client) == ("ab", 0, 0, 1)
    assert (head.samples, head.passed) == (40, 3 * 30)
    assert len(models) == 1


def measuring(site: Node, models: list[Model], round_: int = 0) -> bytes:
    request = LossesRequest(settings_digest=site.agreement.digest, nonce="ab", round=round_, client=1)
    return encode(request, pack(models))


@pytest.fixture(scope="module")
def choosing(folder: Path) -> Node:
    """A node whose method asks for the losses of two models."""
    return open_site(small(method={"name": "ifca", "clusters": 2}).settings, folder, 1)


def test_a_node_whose_training_diverges_says_so(site: Node, choosing: Node) -> None:
    wild = {name: torch.full_like(tensor, torch.nan) for name, tensor in START.items()}
    head, _ = decode(answer(site, MemoryStore(), "train", asking(start=wild)), TrainReply)
    assert head.loss is None
    reply = answer(choosing, MemoryStore(), "losses", measuring(choosing, [START, wild]))
    measured, _ = decode(reply, LossesReply)
    assert measured.losses[0] is not None
    assert measured.losses[1] is None


def describe(site: Node, store: Store) -> DescribeReply:
    return decode(answer(site, store, "describe", describing()), DescribeReply)[0]


def test_losses_that_the_method_does_not_ask_for_are_refused(site: Node, choosing: Node) -> None:
    """Ten models, each with one output's bias set, would tell the class counts that the owner keeps to himself."""
    (bias,) = [name for name, tensor in START.items() if tensor.shape == (10,)]
    one_class = [START | {bias: torch.eye(10)[each] * 1e4} for each in range(10)]
    for node, most in ((site, 0), (choosing, 2)):
        store = MemoryStore()
        lines: list[str] = []
        for models in (one_class, one_class[: most + 1]):
            assert refusal(answer(node, store, "losses", measuring(node, models), lines.append)) == "not_needed"
        assert all("the method as set here asks" in line for line in lines)


def test_a_selection_by_losses_needs_those_of_one_model(folder: Path) -> None:
    changes = {"name": "fedavg", "select": "power-of-choice", "candidates": 2, "fraction": 0.25}
    node = open_site(small(method=changes).settings, folder, 1)
    assert decode(answer(node, MemoryStore(), "losses", measuring(node, [START])), LossesReply)[0].losses[0]
    assert refusal(answer(node, MemoryStore(), "losses", measuring(node, [START, START]))) == "not_needed"


def test_losses_have_a_budget_that_outlives_the_node(folder: Path, tmp_path: Path) -> None:
    settings = small(method={"name": "ifca", "clusters": 2}).settings
    assert open_site(settings, folder, 1).budget == WorkBudget(None, 3 * settings.rounds * 2)
    node = open_site(settings, folder, 1, budget=WorkBudget(losses=5))
    for round_ in range(2):
        decode(answer(node, FolderStore(tmp_path), "losses", measuring(node, [START] * 2, round_)), LossesReply)
    lines: list[str] = []
    for models, code in (([START] * 2, "over_budget"), ([START], ""), ([START], "over_budget")):
        reply = answer(node, FolderStore(tmp_path), "losses", measuring(node, models, 9), lines.append)
        assert not code or refusal(reply) == code
    assert "losses would be 6, above most_losses = 5, which node.toml may raise" in lines[0]


def test_trainings_have_one_where_the_owner_sets_it(folder: Path) -> None:
    node, store = open_site(EXPERIMENT.settings, folder, 1, budget=WorkBudget(trainings=1)), MemoryStore()
    decode(answer(node, store, "train", asking()), TrainReply)
    assert refusal(answer(node, store, "train", asking())) == "over_budget"
    assert json.loads(store.get("pace-1") or b"")["samples"] == 90, "nothing was trained"


def test_a_limit_that_the_owner_lowers_below_what_was_done_stops_that_work_alone(folder: Path, tmp_path: Path) -> None:
    settings, store = small(method={"name": "ifca", "clusters": 2}).settings, FolderStore(tmp_path)
    node = open_site(settings, folder, 1)
    decode(answer(node, store, "losses", measuring(node, [START] * 2, 9)), LossesReply)
    lowered = open_site(settings, folder, 1, budget=WorkBudget(losses=0))
    digest = node.agreement.digest
    assert refusal(answer(lowered, store, "losses", measuring(lowered, [START], 9))) == "over_budget"
    decode(answer(lowered, store, "describe", describing(digest)), DescribeReply)
    decode(answer(lowered, store, "train", asking(digest=digest)), TrainReply)


def test_the_owner_is_told_of_each_task_in_a_line(choosing: Node) -> None:
    store, lines = MemoryStore(), list[str]()
    digest = choosing.agreement.digest
    asked = [
        ("describe", describing(digest)),
        *[("train", asking(digest=digest, event=event)) for event in (4, 7)],
        ("losses", measuring(choosing, [START] * 2, 5)),
        ("train", asking(digest="0")),
        ("run", b""),
        ("losses", measuring(choosing, [START], 5)),
    ]
    for task, payload in asked:
        answer(choosing, store, task, payload, lines.append)
    stamps = [re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines]
    told = [line[stamp.end() :] for line, stamp in zip(lines, stamps, strict=True) if stamp]
    assert told[0] == "described client 1: samples; descriptions so far: 1"
    assert [re.sub(r"[\d.]+ s;", "T;", line) for line in told[1:3]] == [
        f"client 1 trained for event {event}, T; trainings so far: {count}" for event, count in ((4, 1), (7, 2))
    ]
    assert told[3:] == [
        "client 1 measured 2 models for round 5; losses so far: 2 of at most 18",
        "refused 'train': the server's settings are others than this node's",
        "refused 'run': a task 'run', which there is not",
        "client 1 measured 1 model for round 5; losses so far: 3 of at most 18",
    ]


def test_a_node_says_little_of_itself_by_default(site: Node) -> None:
    (report,) = describe(site, MemoryStore()).clients
    told = {name: value for name, value in report.model_dump().items() if value is not None}
    assert told == {"client": 1, "samples": 40}


def test_a_node_says_what_its_owner_lets_it(folder: Path) -> None:
    reporting = Reporting(class_counts=True, utc_offset=5.5, slots=(0, 3))
    (report,) = describe(open_site(EXPERIMENT.settings, folder, 1, reporting), MemoryStore()).clients
    assert report.class_counts == tuple(EXPERIMENT.population.class_counts()[1].tolist())
    assert (report.utc_offset, report.slots, report.epsilon) == (5.5, (0, 3), None)


STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "folder": lambda path: FolderStore(path / "kept"),
}


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
def test_randomised_counts_are_drawn_once(make: Callable[[Path], Store], folder: Path, tmp_path: Path) -> None:
    site = open_site(EXPERIMENT.settings, folder, 1, Reporting(class_counts=True, epsilon=0.5))
    store = make(tmp_path)
    first = describe(site, store).clients[0]
    assert first.epsilon == 0.5
    assert first.class_counts is not None
    assert sum(first.class_counts) == 40
    assert all(describe(site, store).clients[0] == first for _ in range(5))
    elsewhere = [describe(site, MemoryStore()).clients[0].class_counts for _ in range(5)]
    assert len({first.class_counts, *elsewhere}) > 1  # not drawn from the seed, which the server knows


def test_a_node_remembers_how_long_it_took(site: Node, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    assert describe(site, store).clients[0].seconds_per_sample is None
    seconds = []
    for _ in range(2):
        seconds.append(decode(answer(site, store, "train", asking()), TrainReply)[0].seconds)
    again = FolderStore(tmp_path)  # the node was restarted
    assert describe(site, again).clients[0].seconds_per_sample == pytest.approx(sum(seconds) / 180)
    assert json.loads((tmp_path / "pace-1").read_text())["samples"] == 180


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
def test_a_store_keeps_bytes(make: Callable[[Path], Store], tmp_path: Path) -> None:
    store = make(tmp_path)
    assert store.get("a-1") is None
    store.put("a-1", b"\0one")
    store.put("a-1", b"\0two")
    assert store.get("a-1") == b"\0two"
    for key in ("../a", "A", "", "a" * 101):
        with pytest.raises(ValueError, match="is no key"):
            store.put(key, b"")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=rf"^cannot make the folder {tmp_path}/file: .*/file is a file, or a link to "):
        FolderStore(tmp_path / "file")


def test_threads_of_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Random numbers of layers, and the number of threads, belong to the process."""
    from concurrent.futures import ThreadPoolExecutor

    experiment = small(model={"name": "tests.fleet.test_fleet:dropping"})
    digest = agreement_of(experiment).digest
    (start,) = experiment.training.initial_models()
    sites = [open_site(experiment.settings, each, c) for c, each in enumerate(write_shards(experiment, tmp_path))]

    def train(client: int) -> Model:
        payload = asking(client, digest, start)
        return decode(answer(sites[client], MemoryStore(), "train", payload), TrainReply)[1][0]

    alone = [train(client) for client in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(train, list(range(4)) * 5))
    for number, model in enumerate(together):
        assert all(torch.equal(model[name], tensor) for name, tensor in alone[number % 4].items())
    assert not np.array_equal(alone[0]["4.weight"], alone[1]["4.weight"])


@pytest.mark.parametrize(("method", "is_sent"), [("local", False), ("ditto", True)])
def test_training_alone_sends_nothing_of_what_was_trained(method: str, is_sent: bool, tmp_path: Path) -> None:
    experiment = small(method={"name": method})
    node = open_site(experiment.settings, write_shards(experiment, tmp_path)[1], 1)
    (start,) = experiment.training.initial_models()
    request = asking(digest=agreement_of(experiment).digest, start=start)
    head, (sent,) = decode(answer(node, MemoryStore(), "train", request), TrainReply)
    assert (head.client, head.loss is None) == (1, False)
    assert any(not tensor.equal(start[name]) for name, tensor in sent.items()) == is_sent
