"""Private runs on a fleet: noise of the system's, each release charged before it, at the server and at the nodes."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import kstest

from atoll import Experiment, InputError, RunError, run_events
from atoll.fleet.agreed.messages import LossesReply, Refused, TrainReply, decode, decode_reply, pack
from atoll.fleet.node.epsilon_ledger import charge, read_ledger
from atoll.fleet.node.handlers import answer
from atoll.fleet.node.node import Node, Reporting, open_site
from atoll.fleet.node.shards import write_shards
from atoll.fleet.node.sites import Sites
from atoll.fleet.node.store import FolderStore, Store
from atoll.fleet.node.work_count import WorkBudget, read_tally
from atoll.fleet.server.replies import Expected
from atoll.local.models import Model
from atoll.privacy.accounting import epsilon_of
from atoll.privacy.ledger import LEDGER, SEAL
from atoll.privacy.mechanism import Cost
from atoll.privacy.noise import from_system
from atoll.privacy.private_release import Publisher
from atoll.runs.variants import with_fleet
from atoll.support.arrays import Floats, Ids
from tests.fleet.test_fleet import one_cohort
from tests.fleets import agreement_of, open_sites, sending, small
from tests.memory_fleet import MemoryFleet
from tests.memory_store import MemoryStore
from tests.privacy.test_ledger import Killed, Killer, lines_of, shorten, summary_of, whole
from tests.tiers import thinned

pytest.importorskip("dp_accounting")

LINEAR: dict[str, Any] = {"model": {"name": "linear"}, "run": {"checkpoint_every": 1}}
SERVER = {"trust": "server", "clip": 1.0, "noise": 3.0}
CLIENT = SERVER | {"trust": "client"}
CHOOSING: dict[str, Any] = {"method": {"name": "ifca", "clusters": 2, "fraction": 1.0}}
Stores = Mapping[str, Store]


def private(wanted: dict[str, Any], **changes: Any) -> Experiment:
    return small(**LINEAR | {"privacy": wanted} | changes)


def carry_out(
    made: Experiment, folder: Path, stores: Stores | None = None, resume: bool = False, stop: int | None = None
) -> list[str]:
    """Run on a fleet in this process, to the end or for so many events; return the warnings."""
    sites = open_sites(made, folder.parent / "data")
    steps = run_events(made, folder, resume=resume, fleet=MemoryFleet(sites, stores=stores))
    told = list[str]()
    for step in steps:
        told += step.warnings
        if step.events_done == stop:
            break
    steps.close()
    return told


def last_model(folder: Path) -> Model:
    found = load_file(max((folder / "checkpoint").glob("*.safetensors"), key=lambda path: path.name))
    return {name: tensor for name, tensor in found.items() if name[0].isdigit()}


METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedcluster, server": (SERVER, {}),
    "fedcluster, client": (CLIENT, {}),
    "ifca, gradients": (SERVER, {"method": CHOOSING["method"] | {"option": "gradients"}, "local": {"steps": 1}}),
    "ifca, client": (CLIENT | {"identity_epsilon": 60.0}, CHOOSING),
    "cfl-mgd, client": (CLIENT | {"identity_epsilon": 60.0}, {"method": {"name": "cfl-mgd", "clusters": 2}}),
    "int8 after the noise": (CLIENT, {"travel": {"codec": "int8"}}),
    "int8, clipped then": (SERVER, {"travel": {"codec": "int8", "feedback": False}}),
}


@pytest.mark.parametrize("name", thinned(METHODS, 2))
def test_without_noise_the_bits_are_those_of_simulation(name: str, tmp_path: Path) -> None:
    wanted, changes = METHODS[name]
    made = private(wanted | {"noise": 0.0}, **changes)
    carry_out(made, tmp_path / "fleet")
    for _ in run_events(made, tmp_path / "simulated"):
        pass
    ours, theirs = last_model(tmp_path / "fleet"), last_model(tmp_path / "simulated")
    models = [key for key in theirs if "@task" not in key and "codec@" not in key]  # not what clients keep
    assert len(models) >= 2 * 2
    assert all(torch.equal(ours[key], theirs[key]) for key in models)


def test_noise_of_the_systems_is_normal_and_never_the_same() -> None:
    drawn = from_system("privacy", 1)(20_001)
    assert kstest(drawn, "norm").pvalue > 1e-4
    assert not np.isin(drawn, from_system("privacy", 1)(20_001)).any()
    assert len(from_system("privacy")(0)) == 0


def test_no_number_of_a_draw_tells_of_another() -> None:
    """At any distance from it: noise that repeats falls out of the difference of two numbers."""
    drawn = from_system("privacy")(20_000)
    spectrum = np.abs(np.fft.rfft(drawn, 40_000)) ** 2
    alike = np.fft.irfft(spectrum)[1:20_000] / (drawn @ drawn)
    assert np.abs(alike).max() < 6.5 / math.sqrt(20_000)


@pytest.mark.parametrize(("wanted", "times"), thinned([(SERVER, 1), (CLIENT, 2)], 1), ids=["server", "client"])
def test_noise_has_the_size_that_was_planned(wanted: dict[str, Any], times: int, tmp_path: Path) -> None:
    """Of FedCluster's first event, with two of two clients: z C once in the sum, or once from each of them."""
    made = private(wanted | {"noise": 1e4}, model={"name": "mlp"}, method={"name": "fedcluster", "fraction": 1.0})
    for name in ("one", "other"):
        carry_out(made, tmp_path / name, stop=1)
    ends = [last_model(tmp_path / name) for name in ("one", "other")]
    both = [torch.cat([each[key].double().flatten() for key in each if key.startswith("0/")]).numpy() for each in ends]
    assert (both[0] != both[1]).any()
    for drawn in both:  # the model itself is nothing beside it
        assert drawn.std() == pytest.approx(math.sqrt(times) * 1e4 / 2, rel=0.05)
        assert kstest(drawn / drawn.std(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("wanted", [SERVER, CLIENT], ids=["server", "client"])
def test_plan_and_ledgers_of_an_undisturbed_run_are_one(wanted: dict[str, Any], tmp_path: Path) -> None:
    stores = {f"node-{client}": MemoryStore() for client in range(4)}
    made = private(wanted)
    told = carry_out(made, tmp_path / "run", stores)
    assert made.planned.private is not None
    assert not [sentence for sentence in told if "seed" in sentence]
    head, *entries = lines_of(tmp_path / "run")
    assert head["noise_from"] == "system"
    counts = np.zeros(4, int)
    for entry in entries:
        counts[entry["clients"]] += entry["releases"]
    assert counts.tolist() == made.planned.private.plan.releases.tolist()
    spent = summary_of(tmp_path / "run")["privacy"]
    assert spent["epsilon"] == made.planned.private.plan.epsilon_after(len(made.method.schedule))
    assert (spent["noise_from"], spent["is_private"]) == ("system", True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()]
    assert [rows[0]["epsilon"], rows[-1]["epsilon"]] == [0, spent["epsilon"]]
    at_nodes = [read_ledger(store, client).epsilon(1e-5) for client, store in enumerate(stores.values())]
    planned = [made.planned.private.plan.epsilon(each) for each in counts.tolist()]
    assert at_nodes == (pytest.approx(planned) if wanted is CLIENT else [0, 0, 0, 0])


@pytest.mark.more
def test_a_choice_is_charged_with_the_training(tmp_path: Path) -> None:
    stores = {f"node-{client}": MemoryStore() for client in range(4)}
    made = private(CLIENT | {"identity_epsilon": 1.5}, **CHOOSING)
    carry_out(made, tmp_path / "run", stores)
    assert made.planned.private is not None
    at_nodes = [read_ledger(store, client).epsilon(1e-5) for client, store in enumerate(stores.values())]
    planned = [made.planned.private.plan.epsilon(each) for each in made.planned.private.plan.releases.tolist()]
    assert at_nodes == pytest.approx(planned, abs=1e-6)


@pytest.mark.more
def test_a_server_learns_of_losses_one_cluster_and_no_training_loss(tmp_path: Path) -> None:
    made = private(CLIENT | {"identity_epsilon": 1.0}, **CHOOSING)
    heard = list[tuple[str, bytes]]()

    def listening(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        heard.append((task, honest()))
        return heard[-1][1]

    sites = open_sites(made, tmp_path / "data")
    for _ in run_events(made, tmp_path / "run", fleet=MemoryFleet(sites, dict.fromkeys(sites, listening))):
        pass
    told = [decode(reply, LossesReply)[0].losses for task, reply in heard if task == "losses"]
    assert len(told) == 12
    assert set(told) <= {(0.0, 1.0), (1.0, 0.0)}
    assert {decode(reply, TrainReply)[0].loss for task, reply in heard if task == "train"} == {None}


def test_what_nodes_have_randomised_is_taken_as_it_is() -> None:
    """A second draw at the server would hide nothing more, and train clients in others' clusters."""
    made = with_fleet(private(CLIENT | {"identity_epsilon": 0.01}, **CHOOSING))
    event = made.method.schedule.events[0]
    told = np.arange(len(event.cohort)) % 2

    class Nodes:
        def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
            return 1.0 - np.eye(2)[told]

    nodes: Any = Nodes()
    for _ in range(20):
        assert made.method.assigned_by(event, made.training.initial_models(), nodes).tolist() == told.tolist()


def test_a_release_that_is_made_again_is_charged_again(tmp_path: Path) -> None:
    """A server that goes on from its checkpoint has noise of its own in the events after it."""
    made, folder = private(SERVER), tmp_path / "run"
    carry_out(made, folder, stop=2)
    path = max((folder / "checkpoint").glob("*.safetensors"), key=lambda each: each.name)
    for each in (folder / "checkpoint").glob(f"{path.stem}*"):
        each.unlink()
    carry_out(made, folder, resume=True)
    events = [entry["event"] for entry in lines_of(folder)[1:]]
    assert sorted(set(events)) == list(range(6))
    assert len(events) > 6
    assert made.planned.private is not None
    assert summary_of(folder)["privacy"]["epsilon"] > made.planned.private.plan.epsilon_after(6)


def test_who_is_interrupted_too_often_runs_out_of_budget(tmp_path: Path) -> None:
    made = private(SERVER)
    assert made.planned.private is not None
    made = private(SERVER | {"epsilon": made.planned.private.plan.epsilon_after(6) + 1e-6})
    folder = tmp_path / "run"
    carry_out(made, folder, stop=2)
    for each in (folder / "checkpoint").glob("*"):
        each.unlink()
    for _ in range(2):
        with pytest.raises(RunError, match=r"would exceed privacy\.epsilon"):
            carry_out(made, folder, resume=True)
    assert made.planned.private is not None
    assert lines_of(folder)[1:]
    assert list((folder / "checkpoint").glob("*.safetensors"))


@pytest.mark.parametrize("wanted", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_after_kills_never_less_is_spent_than_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    made, killer, rng = private(SERVER), Killer(monkeypatch), np.random.default_rng(1)
    plain, kills, runs = Publisher.publish, 0, 0
    released = dict[int, int]()

    def publish(self: Publisher, event: Any, repeat: int, *rest: Any) -> Any:
        released[event.index] = released.get(event.index, 0) + 1
        return plain(self, event, repeat, *rest)

    monkeypatch.setattr(Publisher, "publish", publish)
    open_sites(made, tmp_path / "data")
    while kills < wanted:
        folder, spent, resume = tmp_path / str(runs), 0, False
        released.clear()
        while True:
            killer.left = int(rng.integers(1, 60))
            try:
                carry_out(made, folder, resume=resume)
            except Killed:
                kills += 1
                killer.left = 0
            else:
                break
            resume = (folder / "config.toml").exists()
            lines = whole(folder)[1:] if resume else []
            charged = [entry["event"] for entry in lines]
            assert all(charged.count(event) >= times for event, times in released.items())
            assert len(charged) >= spent
            spent = len(charged)
        killer.left, runs = 0, runs + 1


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "deleted": (lambda folder: (folder / LEDGER).unlink(), "without its ledger a private run cannot continue"),
    "its seal deleted": (lambda folder: (folder / SEAL).unlink(), "without its ledger a private run cannot continue"),
    "shortened": (shorten, r"it has \d+ of \d+ releases"),
    "of another run": (
        lambda folder: (folder / LEDGER).write_text(
            (folder / LEDGER).read_text().replace('"noise": 3.0', '"noise": 4.0')
        ),
        "is not this run's whole ledger",
    ),
}


@pytest.mark.parametrize("what", thinned(SPOILT, 1))
def test_a_server_refuses_another_ledger(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    carry_out(private(SERVER), folder, stop=3)
    spoil, told = SPOILT[what]
    spoil(folder)
    with pytest.raises(InputError, match=told):
        carry_out(private(SERVER), folder, resume=True)


def one(wanted: dict[str, Any], folder: Path, budget: WorkBudget | None = None, **changes: Any) -> Sites:
    """Return the node of client 0, as its owner has set it up."""
    made = private(wanted, **changes)
    return Sites([made.settings], write_shards(made, folder)[0], 0, MemoryStore(), budget=budget)


def ask(node: Node | Sites, made: Experiment, store: Store) -> TrainReply | str:
    """Ask for a training; return the reply, or the code of its refusal."""
    agreement = agreement_of(made)
    asked = Expected("node-0", 0, "aa", agreement.form)
    head = asked.head_to_train(agreement.digest, one_cohort(made), ())
    (start,) = made.training.initial_models()
    reply = answer(node, store, "train", head + pack([start]))
    found, _ = decode_reply(reply, TrainReply)
    return found if isinstance(found, TrainReply) else found.code


def test_a_node_keeps_to_its_owners_epsilon_across_restarts(tmp_path: Path) -> None:
    made, store = private(CLIENT), FolderStore(tmp_path / "store")
    assert made.planned.private is not None
    budget = WorkBudget(epsilon=made.planned.private.plan.epsilon(2) + 1e-9)
    node = one(CLIENT, tmp_path / "data", budget)
    assert isinstance(ask(node, made, store), TrainReply)
    again = one(CLIENT, tmp_path / "data", budget), FolderStore(tmp_path / "store")
    assert isinstance(ask(again[0], made, again[1]), TrainReply)
    assert ask(again[0], made, again[1]) == "over_budget"
    assert read_ledger(store, 0).charged == 2, "what was refused costs nothing"


def test_without_one_in_node_toml_it_is_that_of_the_experiment(tmp_path: Path) -> None:
    free = private(CLIENT).planned.private
    assert free is not None
    wanted = CLIENT | {"epsilon": free.plan.epsilon(3) + 1e-9}
    node, made, store = one(wanted, tmp_path), private(wanted), MemoryStore()
    assert [ask(node, made, store) for _ in range(4)][-1] == "over_budget"
    assert read_ledger(store, 0).charged == 3


KEY, SEALED = "ledger-0", "ledger-0-seal"
LOST: dict[str, Callable[[Store, bytes, bytes], object]] = {
    "deleted": lambda store, _, __: store.drop(KEY),
    "its seal deleted": lambda store, _, __: store.drop(SEALED),
    "both deleted": lambda store, _, __: [store.drop(key) for key in (KEY, SEALED)],  # type: ignore[func-returns-value]
    "an older one": lambda store, ledger, _: store.put(KEY, ledger),
    "an older seal": lambda store, _, seal: store.put(SEALED, seal),
    "both older": lambda store, ledger, seal: [store.put(KEY, ledger), store.put(SEALED, seal)],  # type: ignore[func-returns-value]
    "damaged": lambda store, _, __: store.put(KEY, b'{"charged": 3, "charges": [], "pure": -1e9'),
}


@pytest.mark.parametrize("what", LOST)
def test_a_node_refuses_a_ledger_that_is_not_whole(what: str, tmp_path: Path) -> None:
    node, made, store = one(CLIENT, tmp_path), private(CLIENT), MemoryStore()
    ask(node, made, store)
    before = store.get(KEY) or b"", store.get(SEALED) or b""
    for _ in range(2):
        assert isinstance(ask(node, made, store), TrainReply)
    LOST[what](store, *before)
    assert ask(node, made, store) == "over_budget"


def test_a_node_that_was_killed_between_ledger_and_seal_goes_on(tmp_path: Path) -> None:
    node, made, store = one(CLIENT, tmp_path), private(CLIENT), MemoryStore()
    ask(node, made, store)
    seal = store.get(SEALED) or b""
    ask(node, made, store)
    store.put(SEALED, seal)
    assert isinstance(ask(node, made, store), TrainReply)
    assert read_ledger(store, 0).charged == 3


def test_a_node_that_was_killed_between_ledger_and_tally_goes_on(tmp_path: Path) -> None:
    node, made, store = one(CLIENT, tmp_path), private(CLIENT), MemoryStore()
    key = f"tally-0-{agreement_of(made).digest[:16]}"
    ask(node, made, store)
    tally = store.get(key) or b""
    ask(node, made, store)
    store.put(key, tally)
    assert isinstance(ask(node, made, store), TrainReply)
    assert (read_ledger(store, 0).charged, read_tally(store, 0, agreement_of(made).digest).charged) == (3, 3)


def test_spend_of_all_runs_is_one() -> None:
    """Other noise is another cost; epsilons of several are composed, and those without delta added."""
    store = MemoryStore()
    for cost in (Cost((2.0,)), Cost((4.0,)), Cost((2.0,))):
        charge(store, 0, WorkBudget(), cost)
    alone = read_ledger(store, 0).epsilon(1e-5)
    charge(store, 0, WorkBudget(), pure=0.5)
    assert read_ledger(store, 0).epsilon(1e-5) == pytest.approx(alone + 0.5)
    together = math.sqrt(1 / (2 / 4 + 1 / 16))  # one Gaussian of as much information
    assert alone == pytest.approx(epsilon_of(Cost((together,)), 1, 1e-5), abs=1e-5)
    with pytest.raises(Refused, match="above 1"):
        charge(store, 0, WorkBudget(epsilon=1.0), Cost((2.0,)))


OTHERS: dict[str, dict[str, Any]] = {
    "less noise": CLIENT | {"noise": 1.0},
    "a longer update": CLIENT | {"clip": 2.0},
    "a trusted server": SERVER,
    "nothing hidden": {"trust": "none"},
    "a greater budget": CLIENT | {"epsilon": 99.0},
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_node_serves_no_run_of_other_privacy_than_its_owners(what: str, tmp_path: Path) -> None:
    """Whatever else the owner lets the server choose."""
    own, other = private(CLIENT), private(OTHERS[what])
    node = Sites(
        [own.settings],
        write_shards(own, tmp_path)[0],
        0,
        MemoryStore(),
        allowed=["seed", "rounds", "model.*", "travel.*", "local.*", "method.*"],
    )
    agreement = agreement_of(other)
    with pytest.raises(Refused, match=r"node\.toml does not allow privacy\.|does not allow .*privacy\."):
        node.find(agreement.digest, agreement.told)
    assert ask(node, other, MemoryStore()) == "wrong_settings"


def test_a_nodes_epsilon_needs_noise_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"most_epsilon = 3 of node\.toml: needs privacy\.trust = 'client'; otherwise models"
    ):
        one(SERVER, tmp_path, WorkBudget(epsilon=3.0))


def test_all_models_must_be_asked_where_a_choice_is_told(tmp_path: Path) -> None:
    wanted = CLIENT | {"identity_epsilon": 1.0}
    made = private(wanted, **CHOOSING)
    node, agreement = one(wanted, tmp_path, **CHOOSING), agreement_of(made)
    head = Expected("node-0", 0, "aa", agreement.form).head_to_measure(agreement.digest, 0)
    reply = answer(node, store := MemoryStore(), "losses", head + pack(made.training.initial_models()[:1]))
    found, _ = decode_reply(reply, LossesReply)
    assert not isinstance(found, LossesReply)
    assert read_ledger(store, 0).charged == 0


def test_a_clip_that_adapts_stays_at_the_server(tmp_path: Path) -> None:
    made = private(SERVER | {"quantile": 0.5, "quantile_noise": 2.0})
    carry_out(made, tmp_path / "run")
    assert float(last_model(tmp_path / "run")["0/clip@privacy"]) != 1.0
    assert (
        sum(
            json.loads((tmp_path / "run" / "summary.json").read_bytes())["final"][f"refused_{reason}"]
            for reason in ("unreadable", "wrong_form", "failed")
        )
        == 0
    )


def test_a_result_that_is_no_number_is_zeros(tmp_path: Path) -> None:
    """Whoever sends it moves no denominator."""
    made = private(SERVER | {"noise": 0.0})
    sites = open_sites(made, tmp_path / "data")
    fleet = MemoryFleet(sites, {"node-1": sending(lambda honest: b"junk")})
    for _ in run_events(made, tmp_path / "run", fleet=fleet):
        pass
    refused = json.loads((tmp_path / "run" / "summary.json").read_bytes())["final"]["refused_unreadable"]
    assert refused == 3


def test_clocks_that_go_back_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither ledger goes by a clock, so none that is set back takes back what was spent."""
    now = iter(range(2_000_000_000, 0, -1000))
    made, store = private(CLIENT), MemoryStore()
    node = one(CLIENT, tmp_path / "data")
    ask(node, made, store)
    carry_out(made, tmp_path / "run", {"node-0": store}, stop=3)
    monkeypatch.setattr("time.time", lambda: float(next(now)))
    before, lines = read_ledger(store, 0).charged, len(lines_of(tmp_path / "run"))
    carry_out(made, tmp_path / "run", {"node-0": store}, resume=True)
    assert read_ledger(store, 0).charged > before > 1
    assert len(lines_of(tmp_path / "run")) > lines
    assert made.planned.private is not None
    assert summary_of(tmp_path / "run")["privacy"]["epsilon"] == made.planned.private.plan.epsilon_after(6)


def test_who_is_clustered_anew_is_charged_where_it_is_then(tmp_path: Path) -> None:
    """The ledger has the clients of the events as they took place, not as they were planned."""
    changes = {"clustering": {"method": "timezone", "clusters": 2}, "fleet": {"recluster_every": 1}}
    made = private(SERVER, **changes)
    folders = write_shards(made, tmp_path / "data")
    east, west = Reporting(utc_offset=6.0), Reporting(utc_offset=-6.0)
    sites = {
        f"node-{client}": open_site(made.settings, folder, client, west if client < 2 else east)
        for client, folder in enumerate(folders)
    }
    fleet = MemoryFleet(sites)
    for step in run_events(made, tmp_path / "run", fleet=fleet):
        if step.events_done == 1:  # before the end of the first round, at which nodes are asked again
            fleet.sites["node-0"] = replace(sites["node-0"], reporting=east)
    moved = [json.loads(line)["moved"] for line in (tmp_path / "run" / "clusterings.jsonl").read_bytes().splitlines()]
    assert any(moved)
    happened = [json.loads(line) for line in (tmp_path / "run" / "happened.jsonl").read_bytes().splitlines()][1:]
    charged = [entry["clients"] for entry in lines_of(tmp_path / "run")[1:]]
    assert charged == [event["cohort"] for event in happened]
    assert len(charged) == 6


def test_charges_at_once_are_all_counted() -> None:
    store = MemoryStore()
    crowd = [Thread(target=charge, args=(store, 0, WorkBudget(), Cost((2.0,)))) for _ in range(50)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join()
    assert read_ledger(store, 0).charged == 50
