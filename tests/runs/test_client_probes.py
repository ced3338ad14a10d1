"""Accuracies of single clients: against loops by hand, before and after training, of new clients, resumed."""

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import (
    Dataset,
    Experiment,
    InputError,
    RunError,
    State,
    Trainer,
    init,
    load,
    load_model,
    make_runs,
    run_events,
    train,
)
from atoll.local.batches import Batches, measure_models
from atoll.local.models import Model
from atoll.local.task import ClientTask
from atoll.local.weights import read_model
from atoll.runs.named_probes import spread_of
from atoll.runs.probes import Probes
from tests.killing import carry_to_end, count_steps, kill_at
from tests.made_runs import timeless

PROBES = ("client_accuracy", "trained_client_accuracy", "new_client_accuracy", "trained_new_client_accuracy")
WANTED: dict[str, Any] = {
    "rounds": 3,
    "data": {"clients": 6, "samples": 20, "partition": "dirichlet", "alpha": 0.5, "held_out_clients": 3},
    "model": {"name": "linear"},
    "local": {"steps": 3, "batch_size": 4},
    "method": {"name": "fedavg", "fraction": 0.5},
    "run": {"executor": "serial", "checkpoint_every": 1, "probes": list(PROBES)},
}


def experiment(*changes: str) -> Experiment:
    return Experiment(make_runs(WANTED, changes=list(changes))[0])


def last_state(made: Experiment) -> State:
    state = init(made.method, *made.training.initial_models())
    with closing(made.execution.make_executor()) as executor:
        for step in train(made.method, executor, state):
            state = step.state
    return state


def accuracy_by_hand(made: Experiment, rows: Any, model: Model) -> float:
    """Class by class: the share of the client's samples times the accuracy on the test samples of that class."""
    data = made.clients.dealt.data
    load_model(made.module, read_model(made.module) | model)
    answers = made.module(torch.tensor(data.test_inputs).float() * data.scale).argmax(dim=1).numpy()
    labels = data.labels_of(rows)
    return float(np.mean([np.mean(answers[data.test_targets == label] == label) for label in labels]))


def trained_by_hand(made: Experiment, population: Any, client: int, model: Model) -> Model:
    trainer = Trainer(experiment().module, population, made.method.rule, made.settings.seed)
    rounds = len(made.method.schedule)
    return trainer.train(ClientTask(rounds, rounds - 1, 0, 0, client, model, drawn_as=10**15)).model


def test_they_are_the_loop_by_hand(tmp_path: Path) -> None:
    made = experiment()
    carry_to_end(made, tmp_path / "run")
    server = last_state(made).server
    assert server is not None
    assert made.clients.new is not None
    expected = {}
    for name, clients in (("client", made.clients.dealt), ("new_client", made.clients.new)):
        everyone = range(len(clients))
        expected[f"{name}_accuracy"] = [accuracy_by_hand(made, clients.samples(k), server) for k in everyone]
        trained = [trained_by_hand(made, clients, k, server) for k in everyone]
        expected[f"trained_{name}_accuracy"] = [
            accuracy_by_hand(made, clients.samples(k), trained[k]) for k in everyone
        ]
    row = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    kept = json.loads((tmp_path / "run/clients.json").read_text())
    for name, values in expected.items():
        np.testing.assert_allclose(kept[name]["values"], values, rtol=1e-9)
        found = [row[name], row[f"{name}_std"], row[f"p10_{name}"], row[f"worst_{name}"]]
        wanted: Any = [np.mean(values), np.std(values), np.percentile(values, 10), min(values)]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert kept["round"] == 3


def test_measuring_changes_no_bits() -> None:
    probed, plain = last_state(experiment()), last_state(experiment("run.probes=[]"))
    assert probed.server is not None
    assert plain.server is not None
    assert all(tensor.equal(plain.server[name]) for name, tensor in probed.server.items())


def test_a_run_cut_within_a_round_trains_clients_as_in_that_round() -> None:
    """Its last event is of a round that is not complete, in which clients have other data and another rate."""
    own: tuple[str, ...] = ("method.name=fedcluster", "clustering.clusters=2", "data.held_out_clients=0")
    own += ("drift.kind=partition", "drift.rounds=[2]", "local.schedule=step", "local.step_size=1")
    own += ('run.probes=["trained_client_accuracy"]',)
    whole, cut = experiment(*own), experiment(*own, "run.client_updates=10")
    state = last_state(cut)
    assert (state.events_done, cut.method.schedule.events[-1].round, cut.method.schedule.rounds) == (5, 2, 2)
    assert Probes(cut).measure(state) == Probes(whole).measure(state)


@pytest.mark.parametrize("changes", [("method.name=fedper",), ("method.name=ditto",), ("method.name=local",)])
def test_clients_that_keep_a_model_are_measured_with_it(changes: tuple[str, ...]) -> None:
    """Its own, or the part that stays in the one that is sent; before its first task what it would be sent."""
    name = "mlp" if "fedper" in changes[0] else "linear"
    made = experiment(f"model.name={name}", *changes)
    state = last_state(made)
    assert state.server is not None
    first = read_model(made.module)
    found = Probes(made)
    found.measure(state)
    for client, value in enumerate(found.by_client["client_accuracy"]):
        whole = first | state.server | dict(state.clients.get(client, {}))
        assert value == pytest.approx(accuracy_by_hand(made, made.clients.dealt.samples(client), whole))


def test_without_a_server_clients_are_measured_with_their_clusters_model() -> None:
    made = experiment("method.name=ifca", "method.clusters=2", "method.fraction=1.0")
    state = init(made.method, *made.training.initial_models())
    probes = Probes(made)
    probes.measure(state)
    with closing(made.execution.make_executor()) as executor:
        chosen = executor.losses(state.starts, np.arange(6), 0).argmin(axis=1)
    for client, value in enumerate(probes.by_client["client_accuracy"]):
        expected = accuracy_by_hand(made, made.clients.dealt.samples(client), state.starts[chosen[client]])
        assert value == pytest.approx(expected)
    assert np.isfinite(probes.by_client["trained_new_client_accuracy"]).all()


def test_new_clients_take_no_model_of_a_cluster_without_clients() -> None:
    """Which is still the first one, and at this rate better than what training has made."""
    made = experiment("method.name=cfl", "method.fraction=", "method.eps1=0.0", "local.lr=20.0")
    state, probes = last_state(made), Probes(made)
    probes.measure(state)
    assert made.clients.new is not None
    expected = [accuracy_by_hand(made, made.clients.new.samples(k), state.starts[0]) for k in range(3)]
    assert probes.by_client["new_client_accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize("changes", [("method.name=fedgroup",), ("method.name=stocfl", "method.penalty=0.0")])
def test_a_new_client_trains_also_where_its_first_task_is_to_be_grouped(changes: tuple[str, ...]) -> None:
    made = experiment(*changes, "method.clusters=2")
    state, new = last_state(made), made.clients.new
    assert new is not None
    probes = Probes(made)
    probes.measure(state)
    starts = [{name: each for name, each in start.items() if "@" not in name} for start in state.starts]
    losses = measure_models(made.module, Batches(new.data, made.module), starts, [new.samples(k) for k in range(3)])
    for client, cluster in enumerate(losses.losses.argmin(axis=1)):
        task = ClientTask(0, 2, 0, cluster, client, starts[cluster], drawn_as=10**15)
        trained = Trainer(experiment().module, new, made.method.rule, made.settings.seed).train(task).model
        expected = accuracy_by_hand(made, new.samples(client), trained)
        assert probes.by_client["trained_new_client_accuracy"][client] == pytest.approx(expected)
    assert (probes.by_client["trained_new_client_accuracy"] != probes.by_client["new_client_accuracy"]).any()


@pytest.mark.parametrize(
    "changes",
    [
        ("method.name=fedcluster", "clustering.clusters=2"),
        ("method.name=hierarchical", "clustering.clusters=2", "rounds=6", "method.pattern=decsyn", "method.fraction="),
        ("method.name=centralized", "method.fraction="),
        ("method.name=cfl-mgd", "method.clusters=2"),
        ("method.name=bcd",),
        ("model.travels=['1.weight']",),
        ("local.lr_decay=0.9", "faults.attackers=0.3"),
    ],
)
def test_every_method_has_them(changes: tuple[str, ...]) -> None:
    intra = ("method.intra_rounds=1",) if "hierarchical" in changes[0] else ()
    made = experiment(*changes, *intra)
    found = Probes(made).measure(last_state(made))
    assert all(0 <= (found[name] or -1.0) <= 1 for name in PROBES)


def test_a_large_population_is_sampled_by_the_seed() -> None:
    made = experiment("run.evaluate_samples=60")
    probes = Probes(made)
    probes.measure(last_state(made))
    assert np.isfinite(probes.by_client["client_accuracy"]).sum() == 3
    assert np.isfinite(probes.by_client["new_client_accuracy"]).sum() == 3


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_run_that_was_killed_has_the_same_rows_and_file(tmp_path: Path) -> None:
    made = experiment()
    carry_to_end(made, tmp_path / "whole")
    steps = count_steps(made, tmp_path / "counted")
    for number in range(steps // 4, steps, 9):
        kill_at(made, tmp_path / "killed", number, 0.5)
    carry_to_end(made, tmp_path / "killed")
    rows = [
        [timeless(line) for line in text.splitlines()]
        for text in ((tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "killed"))
    ]
    assert rows[0] == rows[1]
    assert (tmp_path / "whole/clients.json").read_bytes() == (tmp_path / "killed/clients.json").read_bytes()


def test_held_out_clients_are_further_ones_and_leave_the_others_as_many() -> None:
    iid = ("data.partition=iid", "data.alpha=")
    made, plain = experiment(*iid), experiment(*iid, "data.held_out_clients=0", "run.probes=[]")
    assert made.clients.new is not None
    assert (len(made.clients.dealt), len(made.clients.new), len(plain.clients.dealt)) == (6, 3, 6)
    assert plain.clients.new is None
    held = [set(map(int, each.indices)) for each in (made.clients.dealt, made.clients.new)]
    assert not held[0] & held[1]


def owned() -> Dataset:
    """Digits whose samples have owners, of train and test alike; owner 2 has no test samples."""
    digits = load("digits")
    test_owners = np.arange(len(digits.test_inputs)) % 5
    test_owners[test_owners == 2] = 3
    return replace(digits, owners=np.arange(len(digits.inputs)) % 5, test_owners=test_owners)


def test_owners_are_tested_on_what_they_hold() -> None:
    natural = (f"data.dataset={__name__}:owned", "data.partition=natural", "data.alpha=", "data.samples=")
    made = experiment(*natural, "data.clients=4", "data.held_out_clients=1", "run.evaluate_samples=")
    state = last_state(made)
    probes = Probes(made)
    probes.measure(state)
    data = made.clients.dealt.data
    assert data.owners is not None
    assert data.test_owners is not None
    load_model(made.module, state.server or {})
    answers = made.module(torch.tensor(data.test_inputs).float() * data.scale).argmax(dim=1).numpy()
    for clients, column in ((made.clients.dealt, "client_accuracy"), (made.clients.new, "new_client_accuracy")):
        assert clients is not None
        for client, value in enumerate(probes.by_client[column]):
            own = data.test_owners == data.owners[clients.samples(client)[0]]
            expected = np.mean((answers == data.test_targets)[own]) if own.any() else np.nan
            assert value == pytest.approx(expected, nan_ok=True)


def test_what_is_no_accuracy_is_worst_where_it_is_greatest() -> None:
    found = spread_of("own_loss", np.array([1.0, 3.0, np.nan]))
    assert found == {"own_loss": 2.0, "own_loss_std": 1.0, "p90_own_loss": pytest.approx(2.8), "worst_own_loss": 3.0}
    assert set(spread_of("a_accuracy", np.array([np.nan])).values()) == {None}


def test_an_infinite_value_of_one_client_is_not_left_out(tmp_path: Path) -> None:
    """Others' would look like all clients'; as an infinite number, it ends the run."""
    found = spread_of("gap", np.array([1.0, np.inf, np.nan]))
    assert found["gap"] == np.inf
    assert found["worst_gap"] != 1.0
    with pytest.raises(RunError, match="gap is not finite; the rows before it are kept"):
        carry_to_end(experiment(f"run.probes=['{__name__}:gap']"), tmp_path / "run")


def gap(population: Any, state: Any) -> Any:
    return np.array([np.inf if state.events_done else 0.5, *(len(population) - 1) * [0.5]])


def test_an_infinite_value_before_training_is_told_before_anything_is_written(tmp_path: Path) -> None:
    told = r"^run\.probes: endless is not finite before training; NaN stands for no value"
    with pytest.raises(InputError, match=told):
        carry_to_end(experiment(f"run.probes=['{__name__}:endless']"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def endless() -> float:
    return np.inf


def halves(population: Any) -> Any:
    return np.full(len(population), 0.5)


def test_a_probe_of_ones_own_may_return_a_number_for_every_client(tmp_path: Path) -> None:
    made = experiment(f"run.probes=['{__name__}:halves']")
    carry_to_end(made, tmp_path / "run")
    assert json.loads((tmp_path / "run/clients.json").read_text())["halves"]["values"] == [0.5] * 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.held_out_clients=0"], r"'new_client_accuracy': needs clients that never train.*held_out_clients"),
        (["data.held_out_clients=-1"], r"data\.held_out_clients = -1"),
        (["data.dataset=regression", "data.partition=iid", "data.alpha="], r"the data have no classes"),
    ],
)
def test_where_they_mean_nothing_they_are_refused_before_anything_is_written(
    changes: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        list(run_events(experiment(*changes), tmp_path / "run"))
    assert not list(tmp_path.iterdir())
