"""A node that lies about anything it may say: the run goes on with the others, and the model is theirs."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Experiment, InputError, run_events
from atoll.experiment.conditions import ReportedClients
from atoll.faults.attacks import draw_attackers
from atoll.fleet.agreed.messages import (
    ClientReport,
    DescribeReply,
    LossesReply,
    TrainReply,
    TrainRequest,
    decode,
    encode,
    pack,
)
from atoll.fleet.agreed.transport import Failure, Properties
from atoll.fleet.node.node import Reporting
from atoll.fleet.server.client_reports import as_reported, reported_table
from atoll.fleet.server.plausibility import believe
from atoll.fleet.server.soundness import Soundness
from atoll.local.models import Model
from tests.fleets import open_sites, replying, small
from tests.memory_fleet import Fault, MemoryFleet
from tests.tiers import thinned

FIRST = "1.weight"
RULES: dict[str, dict[str, Any]] = {
    "mean": {},
    "median": {"combine": "median"},
    "trimmed": {"combine": "trimmed-mean", "trim": 0.34},
    "clipped": {"combine": "norm-clipping", "clip_norm": 0.3},
}


def hostile(**changes: Any) -> Experiment:
    """Return a small experiment on one cluster, since a cluster of two has no majority."""
    common = {"clustering": {"clusters": 1}, "fleet": {"wait_seconds": 0.5, "deadline_seconds": 20.0}}
    return small(**(common | changes))


def carry(
    experiment: Experiment, fleet: MemoryFleet, folder: Path, **how: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run to the end; return the rows, and all that the operator was told."""
    told: list[str] = []
    for progress in run_events(experiment, folder, fleet=fleet, tell=told.append, **how):
        told.extend(progress.warnings)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()], told


def both(change: Callable[[str, Any, list[Model]], tuple[Any, list[Model]]]) -> Fault:
    """Return the fault of a node that changes header and models of any reply."""
    kinds: dict[str, Any] = {"train": TrainReply, "losses": LossesReply, "describe": DescribeReply}

    def fault(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure | None:
        head, models = decode(honest(), kinds[task])
        head, models = change(task, head, models)
        return encode(head, pack(models) if models else b"")

    return fault


def saying(**changes: Any) -> Fault:
    """Return the fault of a node that describes itself otherwise."""
    return both(lambda task, head, models: (head.model_copy(update=changes) if task == "describe" else head, models))


def with_loss(loss: float) -> Fault:
    return replying(lambda head, model: (head.model_copy(update={"loss": loss}), model))


def filled(value: float, *names: str) -> Fault:
    """Return the fault of a node that sends one number in the place of these tensors, or of all."""

    def change(head: TrainReply, model: Model) -> tuple[TrainReply, Model]:
        return head, {
            k: torch.full_like(v, value) if k in (names or model) and v.is_floating_point() else v
            for k, v in model.items()
        }

    return replying(change)


@pytest.mark.more
@pytest.mark.parametrize("rule", thinned(RULES.values(), 1), ids=RULES)
def test_an_absurd_loss_is_refused_and_a_lying_one_moves_no_median(rule: dict[str, Any], tmp_path: Path) -> None:
    experiment = hostile(method={"name": "fedcluster", "fraction": 1.0, **rule})
    honest, _ = carry(experiment, MemoryFleet(open_sites(experiment, tmp_path / "data")), tmp_path / "honest")
    for loss in (1.7e308, -1.7e308, 1e14):
        fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": with_loss(loss)})
        rows, _ = carry(experiment, fleet, tmp_path / f"{loss}")
        assert len(rows) == 4
        if abs(loss) > 1e15:
            assert rows[-1]["refused_too_large"] == 3
        if rule or abs(loss) > 1e15:
            assert rows[-1]["local_loss"] == pytest.approx(honest[-1]["local_loss"], rel=0.5)
        assert abs(rows[-1]["train_loss"] - honest[-1]["train_loss"]) < 0.1


def normalising(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """A module with running statistics, whose variance must not be below zero."""
    size = math.prod(shape)
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(size, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, classes),
    )


NORMALISING = {"model": {"name": "tests.fleet.test_hostile:normalising"}}
WEIGHTS: dict[str, tuple[Fault, dict[str, Any], str]] = {
    "overflowing sum": (filled(3e38), {}, "too_large"),
    "overflowing products": (filled(1e20), {}, "too_large"),
    "negative variance": (filled(-1e6, "2.running_var"), NORMALISING, "unsound"),
    "overflowing layers": (filled(9e11), {"model": {"name": "tests.fleet.test_hostile:deep"}}, "unsound"),
}


def deep(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """A module whose products overflow long before its numbers do."""
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(math.prod(shape), 8), *layers, torch.nn.Linear(8, classes)
    )


@pytest.mark.parametrize(("fault", "changes", "reason"), thinned(WEIGHTS.values(), 1), ids=WEIGHTS)
def test_weights_that_overflow_refuse_their_sender_or_else_the_event(
    fault: Fault, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Under the mean, of updates of any length; what happened is replayed to the same bits."""
    experiment = hostile(faults={"usual_norms": "off"}, **changes)
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": fault})
    rows, _ = carry(experiment, fleet, tmp_path / "live")
    events = len(rows) - 1
    assert rows[-1][f"refused_{reason}"] == events
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] - 0.001  # with the others
    assert_replays(experiment, tmp_path)


def assert_replays(experiment: Experiment, folder: Path) -> None:
    for _ in run_events(experiment, folder / "replay", schedule=folder / "live" / "happened.jsonl"):
        pass
    assert last_models(folder / "live") == last_models(folder / "replay")


def last_models(folder: Path) -> bytes:
    return max((folder / "checkpoint").glob("*.safetensors")).read_bytes()


def spoiling() -> Callable[..., Model]:
    """Return a rule that makes no model of good ones."""
    return lambda models, start, cohort_weight: {k: torch.full_like(v, 1e30) for k, v in start.items()}


def test_where_each_result_is_sound_and_the_rule_makes_no_model_the_start_stays(tmp_path: Path) -> None:
    experiment = hostile(method={"name": "fedavg", "fraction": 1.0, "combine": "tests.fleet.test_hostile:spoiling"})
    rows, told = carry(experiment, MemoryFleet(open_sites(experiment, tmp_path / "data")), tmp_path / "live")
    assert rows[-1]["refused_unsound"] == 12
    assert rows[-1]["train_loss"] == rows[0]["train_loss"]
    assert told[0] == "event 0: node 'node-0': 1 refused or missing (unsound 1)"


def test_large_numbers_hide_behind_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pixel is dark in the first samples; weights that only it meets overflow elsewhere."""
    experiment = hostile(model={"name": "tests.fleet.test_hostile:deep"})
    evaluator = experiment.execution.make_evaluator()
    data = experiment.population.data
    inputs = data.inputs.reshape(len(data), -1)[evaluator.rows]
    dark = np.flatnonzero((inputs[:32] == 0).all(axis=0) & (inputs > 0).any(axis=0))
    (drawn,) = experiment.training.initial_models()
    model = {name: torch.full_like(own, 0.0 if "bias" in name else 1e12) for name, own in drawn.items()}
    model["1.weight"][:] = 0.0
    model["1.weight"][:, dark[0]] = 1e12
    is_sound = Soundness(evaluator)
    assert not is_sound(model)
    monkeypatch.setattr("atoll.fleet.server.soundness._TAME", 1e13)
    assert is_sound(model)


def test_an_unsound_model_in_one_cluster_leaves_the_others_as_if_those_clients_were_away(tmp_path: Path) -> None:
    """With gradients, a cluster's step is its share of all that answered, which replays must know."""
    experiment = hostile(
        **NORMALISING,
        local={"steps": 1},
        method={"name": "ifca", "clusters": 2, "option": "gradients", "fraction": 1.0},
    )
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": filled(-1e6, "2.running_var")})
    carry(experiment, fleet, tmp_path / "live")
    assert_replays(experiment, tmp_path)


def report(client: int, **told: Any) -> ClientReport:
    return ClientReport(client=client, samples=40, **told)


DESCRIPTIONS: dict[str, tuple[tuple[ClientReport, ...], str]] = {
    "no such client": ((report(4),), "says that it is client 4, but data.clients = 4; they count from 0"),
    "another's": ((report(2),), "says that it is client 2, but its key is that of 1"),
    "itself and another": ((report(1), report(0)), "says that it is client 0, but its key is that of 1"),
    "twice": ((report(1), report(1)), "names client 1 twice"),
    "thousands": (tuple(map(report, range(5000))), "says that it is client 0, but its key is that of 1"),
    "other classes": ((report(1, class_counts=(40,)),), "reports 1 classes, where the data have 10, for client 1"),
    "contradiction": (
        (report(1, class_counts=(10,) * 10),),
        "reports 40 samples, but 100 in all classes, for client 1",
    ),
}


@pytest.mark.parametrize(("clients", "why"), thinned(DESCRIPTIONS.values(), 1), ids=DESCRIPTIONS)
def test_a_description_that_cannot_be_refuses_the_node(
    clients: tuple[ClientReport, ...], why: str, tmp_path: Path
) -> None:
    """By default all clients are waited for; those of such a node are not, once the time is over."""
    experiment = hostile()
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": saying(clients=clients)})
    rows, told = carry(experiment, fleet, tmp_path / "live")
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert f"node 'node-1' is left out: it {why}" in told
    assert rows[-1]["refused_gone"] == 3
    assert any(sentence.endswith(f"missing: 1; node 'node-1' {why}") for sentence in told)


@pytest.mark.parametrize("case", thinned(DESCRIPTIONS))
def test_a_description_that_cannot_be_keeps_the_last_report_when_clusters_are_made_anew(
    case: str, tmp_path: Path
) -> None:
    clients, _ = DESCRIPTIONS[case]
    experiment = small(
        rounds=4,
        clustering={"clusters": 1, "method": "dataw"},
        fleet={"wait_seconds": 0.5, "deadline_seconds": 20.0, "recluster_every": 2},
    )
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data", Reporting(class_counts=True)))
    told: list[str] = []
    for progress in run_events(experiment, tmp_path / "live", fleet=fleet, tell=told.append):
        if progress.events_done == 1:
            fleet.faults["node-1"] = saying(clients=clients)
    lines = [json.loads(line) for line in (tmp_path / "live" / "clusterings.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert lines[0]["samples"] == lines[1]["samples"] == [40] * 4
    assert any(sentence.startswith("node 'node-1' keeps its last report: ") for sentence in told)


@pytest.mark.parametrize("loss", thinned([1.7e308, -1.7e308, None, 1e14], 1))
@pytest.mark.parametrize("name", ["ifca", "cfl-mgd"])
def test_losses_by_which_clusters_are_chosen_concern_their_sender_only(
    name: str, loss: float | None, tmp_path: Path
) -> None:
    experiment = hostile(method={"name": name, "clusters": 2, "fraction": 1.0})
    lying = both(
        lambda task, head, models: (
            head.model_copy(update={"losses": (loss,) * len(head.losses)}) if task == "losses" else head,
            models,
        )
    )
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": lying})
    rows, _ = carry(experiment, fleet, tmp_path / "live")
    assert len(rows) == 4
    assert all(np.isfinite(row["train_loss"]) for row in rows)
    assert rows[-1]["dropped"] == (0 if loss == 1e14 else 3)
    assert_replays(experiment, tmp_path)


@pytest.mark.parametrize("passed", [10**15, 16 * 3 * 30 + 1])
def test_claims_of_more_work_than_there_is_are_refused_and_enter_no_plan(passed: int, tmp_path: Path) -> None:
    experiment = small(method={"name": "fedavg", "fraction": 1.0})
    assert (experiment.settings.local.steps, experiment.settings.local.batch_size) == (3, 30)
    claiming = replying(lambda head, model: (head.model_copy(update={"passed": passed, "seconds": 1e15}), model))
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": claiming})
    rows, _ = carry(experiment, fleet, tmp_path / "live")
    assert rows[-1]["refused_wrong_count"] == 3
    measured = json.loads((tmp_path / "live" / "measured.json").read_text())
    assert measured["replies"] == [3, 0, 3, 3]
    assert measured["compute_seconds"][1] is None


def lying_count(samples: int) -> Fault:
    """Return the fault of a node that says that it holds so many samples, in its description and in each reply."""

    def change(task: str, head: Any, models: list[Model]) -> tuple[Any, list[Model]]:
        if task == "describe":
            (own,) = head.clients
            return head.model_copy(update={"clients": (own.model_copy(update={"samples": samples}),)}), models
        return head.model_copy(update={"samples": samples} if task == "train" else {}), models

    return both(change)


def backwards(fault: Fault, strength: float = 10.0) -> Fault:
    """Return the fault of a node that also sends its updates backwards."""

    def other(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure | None:
        if task != "train":
            return fault(task, payload, honest)
        _, (start,) = decode(payload, TrainRequest)
        flip = replying(lambda head, own: (head, {k: start[k].lerp(v, -strength) for k, v in own.items()}))
        reply = flip(task, payload, honest)
        assert isinstance(reply, bytes)
        return fault(task, payload, lambda: reply)

    return other


@pytest.mark.parametrize(
    "rule", thinned([RULES[name] for name in ("median", "trimmed", "clipped")], 1), ids=["median", "trimmed", "clipped"]
)
def test_a_lying_count_changes_nothing_under_a_robust_rule(rule: dict[str, Any], tmp_path: Path) -> None:
    """One node in three that sends its updates backwards: whatever it says that it holds, to the same bits."""
    experiment = hostile(data={"clients": 3}, method={"name": "fedavg", "fraction": 1.0, **rule})
    honest = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": backwards(lying_count(40))})
    assert carry(experiment, honest, tmp_path / "honest")[1] == []
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": backwards(lying_count(10**15))})
    _, told = carry(experiment, fleet, tmp_path / "live")
    assert last_models(tmp_path / "live") == last_models(tmp_path / "honest")
    assert told == [
        "node 'node-1' says that client 1 holds 1000000000000000 samples and counts for 80, since the most is "
        "fleet.samples_limit = 2 times the median"
    ]
    lines = [json.loads(line) for line in (tmp_path / "live" / "happened.jsonl").read_text().splitlines()]
    assert [line["weights"] for line in lines[1:]] == [[1.0] * 3] * 3


def test_a_lying_count_weighs_no_more_than_the_limit_under_the_mean(tmp_path: Path) -> None:
    experiment = hostile(data={"clients": 3}, method={"name": "fedavg", "fraction": 1.0})
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": lying_count(10**15)})
    carry(experiment, fleet, tmp_path / "live")
    lines = [json.loads(line) for line in (tmp_path / "live" / "happened.jsonl").read_text().splitlines()]
    assert [line["weights"] for line in lines[1:]] == [[40.0, 80.0, 40.0]] * 3
    assert_replays(experiment, tmp_path)


def test_who_would_count_for_other_steps_than_it_takes_is_told_before_training(tmp_path: Path) -> None:
    """FedNova divides a client's update by the steps that follow from the samples it counts for."""
    local = {"steps": 1, "epochs": 1.0, "batch_size": 10}
    experiment = hostile(data={"clients": 3}, method={"name": "fednova", "fraction": 1.0}, local=local)
    says = r"^method\.name = 'fednova': client 1 holds 90 samples and would count for {}, but its node takes the steps"
    for kind, counted in ((MemoryFleet, 80), (Agreed, 40)):
        fleet = kind(open_sites(experiment, tmp_path / "data"), {"node-1": lying_count(90)})
        with pytest.raises(InputError, match=says.format(counted)):
            carry(experiment, fleet, tmp_path / "live")
        assert not (tmp_path / "live" / "metrics.jsonl").exists()
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": lying_count(70)})
    carry(experiment, fleet, tmp_path / "live")


class Agreed(MemoryFleet):
    """A fleet whose owners agreed on how many samples their clients count for."""

    def nodes(self) -> dict[str, Properties]:
        return {name: {**known, "samples": "40"} for name, known in super().nodes().items()}


def test_an_agreed_count_stands_whatever_a_node_says(tmp_path: Path) -> None:
    experiment = hostile(data={"clients": 3}, method={"name": "fedavg", "fraction": 1.0})
    fleet = Agreed(open_sites(experiment, tmp_path / "data"), {"node-1": lying_count(70)})
    _, told = carry(experiment, fleet, tmp_path / "live")
    lines = [json.loads(line) for line in (tmp_path / "live" / "happened.jsonl").read_text().splitlines()]
    assert all(line["weights"] == [40.0] * 3 for line in lines[1:])
    assert told == [
        "node 'node-1' says that client 1 holds 70 samples and counts for 40, since fleet.toml has another number"
    ]


def test_an_agreed_count_stands_while_its_node_is_away(tmp_path: Path) -> None:
    experiment = small(
        rounds=4,
        clustering={"clusters": 1, "method": "timezone"},
        fleet={"wait_seconds": 0.5, "deadline_seconds": 20.0, "recluster_every": 2},
    )
    sites = open_sites(experiment, tmp_path / "data", Reporting(utc_offset=1.0))
    fleet = Agreed(sites, {"node-1": lying_count(70)})
    for progress in run_events(experiment, tmp_path / "live", fleet=fleet):
        if progress.events_done == 1:
            fleet.gone.add("node-1")
    lines = [json.loads(line) for line in (tmp_path / "live" / "clusterings.jsonl").read_text().splitlines()]
    assert [(line["samples"], line["kept"]) for line in lines] == [([40] * 4, None)] * 2


def test_of_two_clients_neither_is_its_own_measure() -> None:
    believed, remarks = believe({0: report(0), 1: ClientReport(client=1, samples=10**15)}, {}, 2.0)
    assert [each.samples for each in believed.values()] == [40, 80]
    assert list(remarks) == [1]
    believed, _ = believe({0: report(0), 1: ClientReport(client=1, samples=10**15)}, {1: 7}, 2.0)
    assert [each.samples for each in believed.values()] == [14, 7]


def test_all_that_is_corrected_of_a_client_is_told() -> None:
    _, remarks = believe({0: report(0), 1: ClientReport(client=1, samples=10**15, slots=(7,))}, {}, 2.0, slots=2)
    assert remarks == {
        1: "holds 1000000000000000 samples and counts for 80, since the most is fleet.samples_limit = 2 times the "
        "median, and can train in slot 7 of 2 and counts as always there"
    }


def test_a_client_has_the_slots_before_the_last_number_and_one_beyond_them_frees_it() -> None:
    reports = {k: ClientReport(client=k, samples=40, slots=(k,)) for k in range(3)}
    believed, remarks = believe(reports, {}, "off", slots=2)
    assert [each.slots for each in believed.values()] == [(0,), (1,), (0, 1)]
    assert list(remarks) == [2]


LIES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "slot": (
        {"method": "availability", "clusters": 2, "slots_per_client": 1},
        {"slots": (86_399,)},
        "node 'node-1' says that client 1 can train in slot 86399 of 2 and counts as always there",
    ),
    "offset": ({"method": "timezone", "clusters": 2}, {"utc_offset": 6.0}, "what nodes report makes no plan ("),
    "epsilon": (
        {"method": "dataw", "clusters": 2},
        {"class_counts": (4,) * 10, "epsilon": 1e-300},
        "node 'node-1' is left out: it reports classes with epsilon = 1e-300, which tell nothing, for client 1",
    ),
}


@pytest.mark.parametrize(("clustering", "lie", "told"), thinned(LIES.values(), 1), ids=LIES)
def test_a_lie_that_makes_no_clustering_ends_no_run(
    clustering: dict[str, Any], lie: dict[str, Any], told: str, tmp_path: Path
) -> None:
    experiment = hostile(clustering=clustering)
    reporting = [Reporting(slots=(k % 2,), utc_offset=6.0 if k != 1 else -6.0, class_counts=True) for k in range(4)]
    sites = open_sites(experiment, tmp_path / "data")
    sites = {name: replace(site, reporting=own) for (name, site), own in zip(sites.items(), reporting, strict=True)}
    fleet = MemoryFleet(sites, {"node-1": saying(clients=(report(1, **lie),))})
    rows, warnings = carry(experiment, fleet, tmp_path / "live")
    assert len(rows) == 4
    assert any(warning.startswith(told) for warning in warnings)


def lying_loss(fault: Fault) -> Fault:
    """Return the fault of a node that also reports a loss as large as one may be."""

    def other(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure | None:
        reply = fault(task, payload, honest)
        assert isinstance(reply, bytes)
        return with_loss(1e14)(task, payload, lambda: reply)

    return other


FIFTH = {"rounds": 12, "data": {"clients": 10, "samples": 100}, "local": {"lr": 0.2, "steps": 10}}
WITHIN = 0.03


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Return the accuracy that the mean reaches where nobody attacks."""
    place = tmp_path_factory.mktemp("free")
    experiment = hostile(**FIFTH, method={"name": "fedavg", "fraction": 1.0})
    rows, _ = carry(experiment, MemoryFleet(open_sites(experiment, place / "data")), place / "live")
    assert rows[-1]["test_accuracy"] > 0.9
    return float(rows[-1]["test_accuracy"])


@pytest.mark.more
@pytest.mark.parametrize("rule", [{"combine": "median"}, {"combine": "trimmed-mean", "trim": 0.25}])
def test_a_fifth_that_attacks_and_lies_costs_less_than_three_points(
    rule: dict[str, Any], free: float, tmp_path: Path
) -> None:
    """Updates backwards and five times as long, 10^15 samples, a loss of 10^14; by default settings."""
    experiment = hostile(**FIFTH, method={"name": "fedavg", "fraction": 1.0, **rule})
    hostiles = {f"node-{k}": lying_loss(backwards(lying_count(10**15), 5.0)) for k in (3, 7)}
    rows, told = carry(experiment, MemoryFleet(open_sites(experiment, tmp_path / "data"), hostiles), tmp_path / "live")
    assert rows[-1]["test_accuracy"] > free - WITHIN
    assert rows[-1]["local_loss"] < 1.0
    assert [sentence.split(" says ")[0] for sentence in told] == ["node 'node-3'", "node 'node-7'"]


@pytest.mark.more
def test_a_fifth_that_attacks_and_lies_in_simulation(free: float, tmp_path: Path) -> None:
    """A median by samples bears them up to the limit, but not as well as one with equal weights, a fleet's default."""
    attacked = {"faults": {"attackers": 0.2, "attack": "sign-flip"}, "run": {"executor": "serial"}}
    accuracies = {}
    for name, weights in {"lies": None, "believed": None, "equal": "equal"}.items():
        method = {"name": "fedavg", "fraction": 1.0, "combine": "median", **({"weights": weights} if weights else {})}
        experiment = hostile(**FIFTH, **attacked, method=method)
        liars = draw_attackers(0.2, 10, experiment.settings.seed)
        reports = {k: ClientReport(client=k, samples=10**15 if k in liars else 100) for k in range(10)}
        if name == "believed":
            reports, _ = believe(reports, {}, experiment.settings.fleet.samples_limit)
        population = as_reported(experiment.population, reported_table(reports, 10))
        for _ in run_events(experiment.given(ReportedClients(population)), tmp_path / name):
            pass
        rows = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        accuracies[name] = json.loads(rows[-1])["test_accuracy"]
    assert accuracies["lies"] < 0.5
    assert accuracies["believed"] > free - 3 * WITHIN
    assert accuracies["equal"] > free - WITHIN
