"""What clients keep on a fleet: at their nodes, in as many versions as the server may yet ask for."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Experiment, InputError, run_events
from atoll.fleet.agreed.messages import TrainRequest, decode
from atoll.fleet.agreed.transport import Failure
from atoll.fleet.node.node import Node, make_method
from atoll.fleet.node.store import FolderStore, Store
from atoll.fleet.node.versions import SPARE, Versions, name_of, named
from atoll.fleet.server.fleet_executor import FleetExecutor
from atoll.runs.checkpoint import KEPT, kept_by_checkpoints
from atoll.runs.result import read_result
from tests.fleet.test_fleet import one_cohort
from tests.fleets import agreement_of, open_sites, sending, small
from tests.memory_fleet import MemoryFleet
from tests.memory_store import MemoryStore
from tests.runs.test_resume import rows
from tests.tiers import thinned

METHODS: dict[str, dict[str, Any]] = {
    "scaffold": {"method": {"name": "scaffold", "server_lr": 0.7}},
    "feddyn": {"method": {"name": "feddyn"}},
    "ditto": {"method": {"name": "ditto"}},
    "fedper": {"method": {"name": "fedper"}},
    "int8": {"method": {"name": "fedcluster"}, "travel": {"codec": "int8", "rounding": "stochastic"}},
    "travels": {"method": {"name": "fedcluster"}, "model": {"travels": ["1.*"]}},
}


def made(name: str, **changes: Any) -> Experiment:
    """Return an experiment of six rounds of half of the clients, with a checkpoint after every second."""
    run = {"executor": "fleet", "checkpoint_every": 2, "evaluate_every": 6}
    given = {"method": {"fraction": 0.5}, "rounds": 6, "run": run, "fleet": {"deadline_seconds": 30.0}}
    for section, values in [*METHODS[name].items(), *changes.items()]:
        given[section] = given.get(section, {}) | values if isinstance(values, dict) else values  # type: ignore[operator]
    return small(**given)


def sent_models(run: Path) -> Mapping[str, torch.Tensor]:
    """Return the tensors of the last checkpoint but for what stands for clients' states."""
    from safetensors.torch import load_file

    last = max((run / "checkpoint").glob("event-*.safetensors"))
    return {name: tensor for name, tensor in load_file(last).items() if not name.endswith("@task")}


def assert_same_models(run: Path, other: Path) -> None:
    ours, theirs = sent_models(run), sent_models(other)
    assert [tuple(t.shape) for t in ours.values()] == [tuple(t.shape) for t in theirs.values()]
    assert all(torch.equal(one, two) for one, two in zip(ours.values(), theirs.values(), strict=True))


def stores_in(folder: Path, sites: Mapping[str, Node]) -> dict[str, Store]:
    """Open each node's store, as when it starts."""
    return {name: FolderStore(folder / name) for name in sites}


def carry_out(experiment: Experiment, run: Path, fleet: MemoryFleet, **options: Any) -> None:
    for _ in run_events(experiment, run, fleet=fleet, **options):
        pass


@pytest.mark.more
@pytest.mark.parametrize("name", thinned(METHODS, 2))
def test_a_killed_server_and_restarted_nodes_give_the_same_bits(name: str, tmp_path: Path) -> None:
    """The nodes are ahead of the checkpoint that the server goes on from, and are started anew."""
    experiment = made(name)
    sites = open_sites(experiment, tmp_path / "data")
    carry_out(experiment, tmp_path / "whole", MemoryFleet(sites))
    killed = tmp_path / "killed"
    kept = tmp_path / "kept"
    done, total = 0, len(experiment.method.schedule)
    for progress in run_events(experiment, tmp_path / "run", fleet=MemoryFleet(sites, stores=stores_in(kept, sites))):
        done = progress.events_done
        if done == total // 2:  # what a kill leaves: later events are in no file of the server's
            shutil.copytree(tmp_path / "run", killed)
        if done == total - 1:
            break
    assert len(kept_by_checkpoints(killed / "checkpoint", torch.device("cpu"))) in (1, KEPT)
    carry_out(experiment, killed, MemoryFleet(sites, stores=stores_in(kept, sites)), resume=True)
    assert_same_models(killed, tmp_path / "whole")
    last = rows(killed)[-1]
    assert last["client_updates"] == rows(tmp_path / "whole")[-1]["client_updates"]
    assert not any(value for key, value in last.items() if key.startswith("refused_"))


@pytest.mark.more
def test_a_cluster_at_work_can_begin_again_from_a_checkpoint_that_was_written_meanwhile(tmp_path: Path) -> None:
    """The first checkpoint is written while cluster 0 is in its last intra-cluster round, four versions on."""
    pattern = {"name": "hierarchical", "pattern": "cenasy", "intra_rounds": 5}
    run = {"executor": "fleet", "checkpoint_every": 15, "evaluate_every": 50}
    experiment = small(rounds=50, method=pattern, travel=METHODS["int8"]["travel"], local={"steps": 1}, run=run)
    sites, labels = open_sites(experiment, tmp_path / "data"), experiment.clustering.labels.tolist()
    is_late, is_over = Event(), Event()

    def held_up(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        reply, request = honest(), decode(payload, TrainRequest)[0] if task == "train" else None
        if request and request.event >= 2 and request.repeat == 4:
            is_late.set()
            assert is_over.wait(60)
        return reply

    def waiting(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        assert task != "train" or decode(payload, TrainRequest)[0].event < 2 or is_late.wait(60)
        return honest()

    fleet = MemoryFleet(sites, {f"node-{k}": waiting if label else held_up for k, label in enumerate(labels)})
    with closing(run_events(experiment, tmp_path / "run", fleet=fleet)) as steps:
        assert [next(steps).events_done for _ in range(4)] == [0, 1, 2, 3]
    is_over.set()
    assert kept_by_checkpoints(tmp_path / "run" / "checkpoint", torch.device("cpu"))
    carry_out(experiment, tmp_path / "run", MemoryFleet(sites, stores=fleet.stores), resume=True)
    assert not any(value for key, value in rows(tmp_path / "run")[-1].items() if key.startswith("refused_"))


@pytest.mark.parametrize("name", thinned(["scaffold", "ditto", "fedper", "int8"], 1))
def test_a_replay_in_simulation_gives_the_same_bits_where_replies_were_lost(name: str, tmp_path: Path) -> None:
    """A client whose result was not combined goes on from what it kept before, although its node kept more."""
    experiment = made(name, method={"fraction": 1.0}, fleet={"deadline_seconds": 30.0})
    sites = open_sites(experiment, tmp_path / "data")
    asked = 0

    def every_other(reply: bytes) -> bytes | Failure:
        nonlocal asked
        asked += 1
        return reply if asked % 2 else Failure("late")

    carry_out(experiment, tmp_path / "run", MemoryFleet(sites, {"node-1": sending(every_other)}))
    schedule = tmp_path / "run" / "happened.jsonl"
    replayed = tmp_path / "replayed"
    for _ in run_events(experiment, replayed, schedule=schedule):
        pass
    ours, theirs = sent_models(tmp_path / "run"), sent_models(replayed)
    assert asked == 6
    # The simulation's checkpoint has the clients' states besides.
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())


@pytest.mark.more
def test_a_nodes_store_does_not_grow_with_the_run(tmp_path: Path) -> None:
    experiment = made("scaffold", rounds=30, method={"fraction": 1.0})
    sites = open_sites(experiment, tmp_path / "data")
    most = 0

    def count() -> int:
        return max(len(list((tmp_path / "kept" / name).glob("state-*-*-*"))) for name in sites)

    for _ in run_events(
        experiment, tmp_path / "run", fleet=MemoryFleet(sites, stores=stores_in(tmp_path / "kept", sites))
    ):
        most = max(most, count())
    assert SPARE < most <= SPARE + KEPT + 2
    state = next((tmp_path / "kept" / "node-0").glob("state-*-*-*")).stat().st_size
    assert state > 1000
    saved = kept_by_checkpoints(tmp_path / "run" / "checkpoint", torch.device("cpu"))
    assert all(tensor.numel() == 16 for tensor in saved[-1][0].values()), "the server has names alone"


def test_who_has_lost_its_state_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    experiment = made("ditto", method={"fraction": 1.0}, run={"evaluate_every": 1})
    sites = open_sites(experiment, tmp_path / "data")
    fleet = MemoryFleet(sites)
    for progress in run_events(experiment, tmp_path / "run", fleet=fleet):
        if progress.events_done == 2:
            fleet.stores["node-1"] = MemoryStore()
    last = rows(tmp_path / "run")[-1]
    assert (last["refused_no_state"], last["client_updates"]) == (4, 24 - 4)


def test_a_damaged_version_is_as_good_as_lost(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    versions = Versions(store, 3, "ab" * 32)
    versions.add("01", {"w": torch.ones(2)}, ())
    (path,) = tmp_path.glob("state-3-*-01")
    path.write_bytes(path.read_bytes()[:-1])
    assert versions.read("01") is None
    assert versions.read("02") is None


def test_versions_that_are_named_stay_and_tensors_keep_their_order() -> None:
    versions = Versions(MemoryStore(), 0, "ab" * 32)
    state = {"z": torch.ones(3), "a/b": torch.zeros(1, dtype=torch.int64), "m": torch.ones(2).double()}
    for number in range(10):
        versions.add(f"{number:02x}", state, ["01", "04"])
    there = [number for number in range(10) if versions.read(f"{number:02x}") is not None]
    assert there == [1, 4, 6, 7, 8, 9]
    read = versions.read("09")
    assert read is not None
    assert list(read) == list(state)
    assert all(torch.equal(read[name], tensor) for name, tensor in state.items())


def test_a_name_is_all_that_the_server_has() -> None:
    assert name_of(named("00ff10")) == "00ff10"


def test_a_node_learns_of_no_other_client(tmp_path: Path) -> None:
    """Each is sent its own number and versions alone; the model, which all are sent, is one payload."""
    experiment = made("ditto", method={"fraction": 1.0}, rounds=2)
    fleet = MemoryFleet(open_sites(experiment, tmp_path))
    heads: list[Mapping[str, bytes]] = []
    call = fleet.call

    def overheard(sent: Mapping[str, bytes], task: str, payload: bytes, timeout: float) -> Any:
        if task == "train":
            heads.append(sent)
        return call(sent, task, payload, timeout)

    fleet.call = overheard  # type: ignore[method-assign,assignment]
    carry_out(experiment, tmp_path / "run", fleet)
    requests = [{name: decode(head, TrainRequest)[0] for name, head in sent.items()} for sent in heads]
    assert len(requests) == 2, "one call an event"
    for asked in requests:
        assert {name: request.client for name, request in asked.items()} == {f"node-{k}": k for k in range(4)}
        assert len({request.nonce for request in asked.values()}) == 4
        assert max(map(len, heads[0].values())) < 1000
    assert {asked.state for asked in requests[0].values()} == {None}
    assert [asked.state for asked in requests[1].values()] == [asked.nonce for asked in requests[0].values()]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "probe": ({"run": {"probes": ["personal_model_accuracy"]}}, "run.probes = 'personal_model_accuracy': is measured"),
    "clients": ({"run": {"probes": ["client_accuracy"]}}, "run.probes = 'client_accuracy': is measured with what"),
    "loss": ({"run": {"probes": ["client_loss"]}}, "run.probes = 'client_loss': is measured with what clients keep"),
    "trained": (
        {"run": {"probes": ["trained_client_accuracy"]}},
        "which never leaves their nodes with run.executor = 'fleet'",
    ),
}


@pytest.mark.parametrize("name", ["scaffold", "int8"])
def test_clients_that_keep_no_model_are_measured_with_the_one_they_receive(name: str, tmp_path: Path) -> None:
    experiment = made(name, run={"probes": ["client_accuracy", "client_loss"]})
    carry_out(experiment, tmp_path / "run", MemoryFleet(open_sites(experiment, tmp_path / "shards")))
    here = Experiment(experiment.settings.but("run", executor="serial"))
    for _ in run_events(here, tmp_path / "here"):
        pass
    columns = "client_accuracy", "worst_client_accuracy", "client_loss"
    live, simulated = ([row[key] for row in rows(tmp_path / each) for key in columns] for each in ("run", "here"))
    assert live == simulated
    found = read_result(tmp_path / "run").clients()["accuracy"]
    assert float(np.mean(found)) == pytest.approx(live[-3])
    trained = made(name, run={"probes": ["trained_client_accuracy"]})
    with pytest.raises(InputError, match=r"run\.probes = 'trained_client_accuracy': is measured"):
        carry_out(trained, tmp_path / "trained", MemoryFleet({}))


@pytest.mark.parametrize(("changes", "told"), REFUSED.values(), ids=REFUSED)
def test_what_needs_clients_states_at_the_server_is_refused(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    experiment = made("ditto", **changes)
    with pytest.raises(InputError, match=told):
        carry_out(experiment, tmp_path / "run", MemoryFleet({}))
    assert not (tmp_path / "run").exists()


def test_clusters_that_are_learned_from_states_are_refused_by_server_and_node() -> None:
    experiment = small(method={"name": "pacfl"}, run={"executor": "fleet"})
    message = "the method's clusters are learned"
    with pytest.raises(InputError, match=message):
        make_method(experiment.settings, np.full(4, 10), experiment.module)
    with pytest.raises(InputError, match=message):
        experiment.execution.choice  # noqa: B018


@pytest.mark.parametrize(
    "changes",
    [{"name": "ditto", "penalty": 0.5}, {"name": "fedper", "personal_layers": 0}, {"name": "feddyn", "alpha": 0.5}],
    ids=str,
)
def test_sides_that_train_differently_do_not_agree(changes: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs = small(method=changes), small(method={"name": changes["name"]})
    fleet = MemoryFleet(open_sites(theirs, tmp_path))
    executor = FleetExecutor(fleet, {0: "node-0"}, agreement_of(ours), 10.0)
    (average,) = executor.train([one_cohort(ours)], ours.method.combine)
    assert average.refused == {"wrong_settings": 4}


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 7},
        {"run": {"precision": "tf32"}},
        {"run": {"debug": True}},
        {"local": {"lr": 0.7}},
        {"model": {"name": "mlp"}},
    ],
    ids=str,
)
def test_all_that_clients_work_depends_on_is_agreed_on(changes: dict[str, Any]) -> None:
    linear = small(model={"name": "linear"})
    assert agreement_of(small(**{"model": {"name": "linear"}} | changes)).digest != agreement_of(linear).digest
    apart = small(model={"name": "linear"}, rounds=9, run={"evaluate_every": 2}, faults={"max_update_norm": 5.0})
    assert agreement_of(apart).digest == agreement_of(linear).digest
