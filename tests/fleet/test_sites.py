"""Nodes that stay for the next run: what a server may choose, what it may not, and what that costs their owners."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll import Experiment, RunError
from atoll.fleet.agreed.messages import (
    DescribeReply,
    DescribeRequest,
    Refusal,
    TrainReply,
    TrainRequest,
    decode,
    encode,
    pack,
)
from atoll.fleet.agreed.terms import announce
from atoll.fleet.folder.configuration import read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet
from atoll.fleet.node.handlers import answer
from atoll.fleet.node.shards import write_shards
from atoll.fleet.node.sites import KEPT, Sites
from atoll.fleet.node.store import FolderStore, Store
from atoll.fleet.node.work_count import WorkBudget
from atoll.fleet.server.fleet_executor import FleetExecutor
from atoll.fleet.server.joining import wait_for_nodes
from atoll.support.errors import InputError
from tests.fleet.test_fleet import one_cohort
from tests.fleet.test_hostile import carry
from tests.fleets import agreement_of, small
from tests.memory_fleet import MemoryFleet
from tests.memory_store import MemoryStore
from tests.tiers import part_of

ALL = ("seed", "rounds", "clustering.clusters", "model.*", "travel.*", "local.*", "method.*")
OWN = small()
OTHER = small(local={"steps": 3, "lr": 0.2}, rounds=2)
(START,) = OWN.training.initial_models()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(OWN, folder)
    return folder


def open_one(
    data: Path,
    allowed: Sequence[str] = (),
    runs: Sequence[Experiment] = (OWN,),
    store: Store | None = None,
    budget: WorkBudget | None = None,
) -> Sites:
    """Return what the owner of client 1 runs."""
    own = [each.settings for each in runs]
    return Sites(own, data / "client-1", 1, store or MemoryStore(), budget=budget, allowed=allowed)


def fleet_of(data: Path, allowed: Sequence[str] = (), runs: Sequence[Experiment] = (OWN,)) -> MemoryFleet:
    own = [each.settings for each in runs]
    sites = {f"node-{c}": Sites(own, data / f"client-{c}", c, MemoryStore(), allowed=allowed) for c in range(4)}
    return MemoryFleet(sites)


def describing(experiment: Experiment, **others: Any) -> bytes:
    agreement = agreement_of(experiment)
    told = {**agreement.told, **others}
    return encode(DescribeRequest(settings_digest=agreement.digest, nonce="ab", settings=told))


def asking(experiment: Experiment, nonce: str = "ab") -> bytes:
    head = TrainRequest(
        settings_digest=agreement_of(experiment).digest, nonce=nonce, event=0, drawn_as=0, round=0, repeat=0, cluster=0,
        client=1,
    )  # fmt: skip
    return encode(head, pack([START]))


def code_of(reply: bytes) -> str:
    return decode(reply, Refusal)[0].code


@pytest.mark.more
def test_nodes_stay_for_a_run_with_other_settings_to_the_bits_of_simulation(data: Path, tmp_path: Path) -> None:
    fleet = fleet_of(data, ["local.lr"])
    for number, each in enumerate((OWN, OTHER, OWN)):
        rows, _ = carry(each, fleet, tmp_path / f"live-{number}")
        alone, _ = carry_alone(each, tmp_path / f"alone-{number}")
        assert [row["train_loss"] for row in rows] == [row["train_loss"] for row in alone]
    assert rows[-1]["train_loss"] != carry(OTHER, fleet, tmp_path / "last")[0][-1]["train_loss"]


def test_who_comes_later_is_told_the_settings_and_describes_itself(data: Path) -> None:
    fleet, agreement = fleet_of(data, ["local.lr"]), agreement_of(OTHER)
    fleet.gone.add("node-2")
    joined = wait_for_nodes(fleet, agreement, 3, 5.0)
    executor = FleetExecutor(fleet, joined.nodes, agreement, 10.0, joined.samples)
    for gone in (1, 0):
        (average,) = executor.train([one_cohort(OTHER)], OTHER.method.combine)
        assert average.refused == ({"gone": 1} if gone else {})
        assert set(executor.samples) == ({0, 1, 3} if gone else {0, 1, 2, 3})
        fleet.gone.clear()


def carry_alone(experiment: Experiment, folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    return carry(experiment, None, folder)  # type: ignore[arg-type]


def test_what_no_clients_work_depends_on_needs_no_leave(data: Path, tmp_path: Path) -> None:
    rows, _ = carry(small(rounds=2), fleet_of(data), tmp_path / "live")
    assert rows[-1]["round"] == 2


def test_by_default_a_server_changes_nothing(data: Path) -> None:
    with pytest.raises(RunError, match="its owner does not let the server change; its own log names them"):
        wait_for_nodes(fleet_of(data), agreement_of(OTHER), None, 0.1, poll_seconds=0.05)
    told: list[str] = []
    reply = answer(open_one(data), MemoryStore(), "describe", describing(OTHER), told.append)
    assert code_of(reply) == "not_allowed"
    assert told[0].endswith("node.toml does not allow local.lr = 0.2, rounds = 2")


def test_the_owner_reads_what_the_server_has_set(data: Path) -> None:
    told: list[str] = []
    decode(
        answer(open_one(data, ["local.*"]), MemoryStore(), "describe", describing(OTHER), told.append), DescribeReply
    )
    assert "the server has set local.lr = 0.2; descriptions so far: 1" in told[0]


@pytest.mark.parametrize("key", ["model.name", "local.optimizer", "method.name", "method.combine", "method.select"])
def test_no_function_is_ever_named_by_a_server(
    key: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[str] = []
    sites, store = open_one(data, ALL), MemoryStore()
    decode(answer(sites, store, "describe", describing(OTHER, **{key: "evil:make"}), told.append), DescribeReply)
    assert "evil" not in told[0], "what the owner has is left as it is"
    request = encode(DescribeRequest(settings_digest="0", nonce="ab", settings={key: "evil:make"}))
    assert code_of(answer(sites, store, "describe", request, told.append)) == "not_allowed"
    assert "evil" not in sys.modules
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "value",
    [
        *("a:b", "../x", "/dev/zero", "x.csv", "a b", "", "x" * 41, "\x1b[2J"),
        *({"a": 1}, [[1]], ["a:b"], [0.1] * 1001, 10**16),
    ],
)
def test_whatever_is_allowed_values_are_plain(value: Any, data: Path) -> None:
    told: list[str] = []
    request = describing(OTHER, **{"local.lr": value})
    assert code_of(answer(open_one(data, ALL), MemoryStore(), "describe", request, told.append)) == "not_allowed"
    assert told[0].isprintable()


@pytest.mark.parametrize(
    "changes", [{"local.steps": 0}, {"local.lr": "fast"}, {"method.nothing": 3}, {"model.name": 7}]
)
def test_settings_that_cannot_be_are_refused_by_the_nodes_own_check(changes: dict[str, Any], data: Path) -> None:
    reply = answer(open_one(data, ALL), MemoryStore(), "describe", describing(OTHER, **changes))
    assert code_of(reply) == "wrong_settings"


def test_what_is_told_and_not_meant_is_noticed_by_the_digest(data: Path) -> None:
    reply = answer(open_one(data, ALL), MemoryStore(), "describe", describing(OTHER, **{"local.lr": 0.3}))
    assert code_of(reply) == "wrong_settings"


def test_work_that_a_server_has_changed_counts_with_the_owners_own(data: Path) -> None:
    store = MemoryStore()
    sites = open_one(data, ALL, store=store, budget=WorkBudget(trainings=2))
    for lr in (0.1, 0.2, 0.3):
        each = small(local={"steps": 3, "lr": lr})
        decode(answer(sites, store, "describe", describing(each)), DescribeReply)
        last = answer(sites, store, "train", asking(each))
    assert code_of(last) == "over_budget"


def test_a_servers_rounds_buy_no_more_losses(data: Path) -> None:
    own, many = (small(method={"name": "ifca", "clusters": 2}, rounds=rounds) for rounds in (3, 300))
    sites = open_one(data, ("rounds", "local.lr"), runs=[own])
    changed = small(method={"name": "ifca", "clusters": 2}, rounds=300, local={"steps": 3, "lr": 0.2})
    for each in (own, many, changed):
        agreement = agreement_of(each)
        assert sites.find(agreement.digest, agreement.told).budget.losses == 3 * 3 * 2


def test_a_node_that_starts_again_goes_on_with_what_its_owner_still_allows(data: Path, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    answer(open_one(data, ["local.*"], store=store), store, "describe", describing(OTHER))
    again = open_one(data, ["local.*"], store=store)
    assert decode(answer(again, store, "train", asking(OTHER)), TrainReply)[0].client == 1
    stricter = open_one(data, [], store=store)
    assert code_of(answer(stricter, store, "train", asking(OTHER))) == "not_allowed"
    store.put("chosen", b"[{")
    assert code_of(answer(open_one(data, ALL, store=store), store, "train", asking(OTHER))) == "wrong_settings"


def test_a_server_chooses_among_the_runs_of_the_owners_file(data: Path) -> None:
    other = small(method={"name": "ifca", "clusters": 2})
    sites = open_one(data, runs=[OWN, other, OTHER])
    for each in (other, OWN, OTHER, other):
        agreement = agreement_of(each)
        found = sites.find(agreement.digest, agreement.told)
        assert (found.agreement.digest, found.told) == (agreement.digest, "")
    assert found.measures == 2


def test_the_owners_run_that_agrees_need_not_be_the_nearest(data: Path) -> None:
    mine = small(local={"steps": 3, "lr": 0.2}, rounds=2, clustering={"clusters": 2})
    asked = small(local={"steps": 3, "lr": 0.2}, rounds=4, clustering={"clusters": 4})
    nearest = small(rounds=4, local={"steps": 3, "lr": 0.1}, clustering={"clusters": 4})
    for runs in ([mine], [nearest, mine]):
        sites = open_one(data, ["rounds", "clustering.clusters"], runs)
        wanted = agreement_of(asked)
        assert sites.find(wanted.digest, wanted.told).agreement.digest == wanted.digest


def test_rates_by_round_need_as_many_rounds_as_the_run_has(data: Path) -> None:
    made = small(rounds=2, local={"steps": 5, "schedule": "cosine"})
    assert open_one(data, runs=[made]).find(agreement_of(made).digest).agreement.digest == agreement_of(made).digest


def test_a_server_that_chooses_without_end_fills_no_disk(data: Path, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    sites = open_one(data, ALL, runs=[scaffold(0.5)], store=store)
    for number in range(KEPT + 4):
        have_trained(scaffold(0.1 + number / 100), sites, store)
    assert len(list((tmp_path / "store").glob("state-*"))) <= 2 * KEPT


def test_runs_of_the_owners_own_take_no_place_of_those_that_a_server_changed(data: Path) -> None:
    store = MemoryStore()
    own = [small(), scaffold(0.1), small(local={"steps": 2})]
    sites = open_one(data, ["local.lr"], runs=own, store=store)
    changed = [scaffold(0.2 + number / 10) for number in range(KEPT)]
    for each in changed:
        have_trained(each, sites, store)
    for each in own:
        decode(answer(sites, store, "describe", describing(each)), DescribeReply)
    assert all(store.get(f"state-1-{agreement_of(each).digest[:16]}") for each in changed)


def scaffold(lr: float) -> Experiment:
    return small(method={"name": "scaffold", "fraction": 1.0}, local={"steps": 3, "lr": lr})


def have_trained(experiment: Experiment, sites: Sites, store: Store) -> None:
    decode(answer(sites, store, "describe", describing(experiment)), DescribeReply)
    (start,) = experiment.training.initial_models()
    head, _ = decode(asking(experiment), TrainRequest)
    body = pack([experiment.method.sent(start)])
    decode(answer(sites, store, "train", encode(head, body)), TrainReply)


@pytest.mark.parametrize(
    "odd",
    [
        *("*", "data.root", "data.*", "run.device", "method*", "*.lr", "local.lr\\n", "network.*", "model.path", ""),
        *("model.weights_file", "model.file", "method.tokenizer"),
    ],
)
def test_an_owner_can_allow_nothing_else(odd: str, tmp_path: Path) -> None:
    init_fleet(tmp_path / "fleet", FleetPlan(1, "a.example.org"))
    path = tmp_path / "fleet" / "nodes" / "node-0" / "node.toml"
    before = path.read_text()
    path.write_text(before + f'allow = ["local.lr", "{odd}"]\n')
    with pytest.raises(InputError, match="must be seed, rounds, clustering"):
        read_node(path)
    path.write_text(before + 'allow = ["local.lr", "method.*"]\n')
    assert read_node(path).allow == ("local.lr", "method.*")


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 50)  # a model of 10^9 units is allowed where model.* is
    | st.sampled_from([10**16, -(10**400), 1e308, 0.1])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=part_of(20), deadline=None)
@given(st.dictionaries(st.sampled_from([*announce(OWN.settings), "local.odd", "data.root", "odd"]), ODD, max_size=6))
def test_whatever_a_server_tells_a_node_answers(sites: Sites, told: dict[str, Any]) -> None:
    request = DescribeRequest(settings_digest="0", nonce="ab", settings={**announce(OWN.settings), **told})
    assert code_of(answer(sites, MemoryStore(), "describe", encode(request))) in ("not_allowed", "wrong_settings")


@pytest.fixture(scope="module")
def sites(data: Path) -> Sites:
    return open_one(data, ALL)


def test_what_is_announced_is_what_a_clients_work_may_depend_on() -> None:
    told = announce(OWN.settings)
    assert {key.split(".")[0] for key in told} == {
        "seed",
        "rounds",
        "model",
        "travel",
        "local",
        "method",
        "privacy",
        "secure",
        "clustering",
        "data",
        "run",
    }
    assert not [key for key in told if "file" in key or "root" in key]
