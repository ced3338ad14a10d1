"""Rows and summaries, against sums over the events and rows that are made by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll import Experiment, init, make_runs
from atoll.runs.rows import Recorder

TINY: dict[str, Any] = {
    "rounds": 5,
    "data": {"clients": 6, "samples": 8},
    "model": {"name": "linear"},
    "local": {"steps": 1, "batch_size": 4},
    "clustering": {"clusters": 2},
    "method": {"fraction": 0.5},
    "run": {"executor": "serial"},
}


def experiment(*changes: str) -> Experiment:
    return Experiment(make_runs(TINY, changes=changes)[0])


def test_rows_come_after_every_so_many_rounds_and_the_last_event() -> None:
    recorder = Recorder(experiment("method.name=fedavg"))
    assert [done for done in range(1, 6) if recorder.is_due(done, 2)] == [2, 4, 5]
    cycling = Recorder(experiment())  # each of whose rounds has two events
    assert [done for done in range(1, 11) if cycling.is_due(done, 2)] == [4, 8, 10]


def test_the_row_before_training_has_cost_nothing() -> None:
    made = experiment("method.name=fedavg", "faults.dropout=0.5")
    row = Recorder(made).measure(init(made.method, *made.training.initial_models()), None, 0.0)
    names = ("event", "round", "virtual_time", "client_updates", "bytes_up", "bytes_down", "absent", "dropped", "late")
    assert {row[name] for name in names} == {0}


def only_trained(shape: tuple[int, ...], classes: int) -> nn.Module:
    class OnlyTrained(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if not self.training and len(inputs) > 4:
                raise ValueError("not like this")
            return super().forward(inputs.flatten(1))

    return OnlyTrained(math.prod(shape), classes)


def test_a_model_that_fails_when_it_is_measured_is_told_in_a_sentence(tmp_path: Path) -> None:
    told = r"before training: measuring the model failed \(ValueError: not like this, test_rows.py line \d+\)"
    with pytest.raises(atoll.RunError, match=told):
        atoll.run(TINY, tmp_path / "run", model=only_trained)


@pytest.mark.parametrize("is_live", [False, True])
def test_costs_and_losses_are_sums_over_the_events(is_live: bool) -> None:
    """Of a live run over those that happened, whatever was planned."""
    made = experiment("method.name=fedavg", "faults.tolerate=true")
    events = [
        replace(event, absent=i, dropped=10 * i, late=100 * i, cohort=event.cohort[1:], weights=event.weights[1:])
        for i, event in enumerate(made.method.schedule.events)
    ]
    if is_live:
        recorder = Recorder(made, is_live=True)
        for event in events:
            recorder.take(event)
    else:
        recorder = Recorder(Experiment(made.settings, replace(made.method.schedule, events=tuple(events))))
    state = replace(init(made.method, *made.training.initial_models()), events_done=3)
    row = recorder.measure(state, None, 0.0)
    assert [row[name] for name in ("absent", "dropped", "late")] == [3, 30, 300]
    assert row["client_updates"] == sum(len(event.cohort) for event in events[:3])
    assert row["bytes_down"] == sum(event.models_down for event in events[:3]) * made.traffic.message_bytes
    assert row["virtual_time"] == events[2].seconds


def test_a_summary_is_of_what_happened_until_a_run_stopped() -> None:
    made = experiment("method.name=fedasync", "method.concurrency=3")
    recorder = Recorder(made)
    pairs = (0.1, 3.0), (0.9, 5.0), (None, 1.0), (0.4, 2.0)
    rows: list[dict[str, Any]] = [{"test_accuracy": accuracy, "h_device": h} for accuracy, h in pairs]
    rows[0]["cluster_clients"], rows[-1]["cluster_clients"] = [6, 0, 0], [0, 5, 1]
    found = recorder.summarize(rows, 3, "in round 3, for a reason")
    events = made.method.schedule.events[:3]
    assert found["final"] == rows[-1]
    assert (found["best_test_accuracy"], found["max_h_device"], found["clusters_nobody_chooses"]) == (0.9, 5.0, [0])
    assert (found["events"], found["stopped"]) == (3, "in round 3, for a reason")
    assert found["max_staleness"] == max(max(event.staleness, default=0) for event in events)
    updates = np.bincount(np.concatenate([event.active for event in events]), minlength=made.clustering.clusters)
    np.testing.assert_allclose(found["cluster_frequencies"], updates / updates.sum())


def test_a_summary_has_the_names_of_planted_groups_in_the_order_of_their_counts() -> None:
    rng = np.random.default_rng(0)
    data = atoll.Dataset(
        "coasts",
        inputs=rng.normal(size=(40, 3)).astype(np.float32),
        targets=np.arange(40) % 2,
        test_inputs=rng.normal(size=(20, 3)).astype(np.float32),
        test_targets=np.arange(20) % 2,
        classes=2,
        groups=np.arange(40) // 20,
        test_groups=np.arange(20) // 10,
        owners=np.arange(40) // 10,
        names={"groups": ("north", "south")},
    )
    made = Experiment(rounds=1, data={"dataset": data, "partition": "natural", "clients": 4}, method="fedavg")
    assert made.population.groups().tolist() == [0, 0, 1, 1]
    assert Recorder(made).summarize([{"test_accuracy": 0.5}], 1, "")["groups"] == ["north", "south"]
    assert "groups" not in Recorder(experiment()).summarize([{"test_accuracy": 0.5}], 1, "")


def test_a_start_in_one_cluster_is_warned_of_only_where_clients_choose() -> None:
    """Methods that learn labels may begin with one cluster, which they divide."""
    chooses, learns = (Recorder(experiment(f"method.name={name}")) for name in ("ifca", "cfl"))
    alone, spread = {"cluster_clients": [0, 6]}, {"cluster_clients": [1, 5]}
    assert [len(chooses.warn_of(row)) for row in (alone, spread, {})] == [1, 0, 0]
    assert "cluster 1 of 2" in chooses.warn_of(alone)[0]
    assert learns.warn_of(alone) == []
