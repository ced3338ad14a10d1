"""The probes `cycle_accuracy` and `personal_model_accuracy` against loops by hand, also of runs that were stopped."""

import math
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Evaluator, Experiment, InputError, State, init, load_model, make_runs, run_events, train
from atoll.runs.probes import check_probes
from tests.killing import carry_to_end, count_steps, kill_at
from tests.made_runs import timeless
from tests.tiers import thinned

BASE: dict[str, Any] = {
    "rounds": 4,
    "data": {"clients": 12, "samples": 12, "partition": "dirichlet", "alpha": 0.3},
    "model": {"name": "linear"},
    "local": {"lr": 0.5, "steps": 3, "batch_size": 6},
    "clustering": {"clusters": 3},
    "method": {"name": "fedcluster", "fraction": 0.5},
    "run": {"executor": "serial", "probes": ["cycle_accuracy"], "checkpoint_every": 1, "evaluate_samples": 20},
}


def experiment(*changes: str) -> Experiment:
    made = Experiment(make_runs(BASE, changes=list(changes))[0])
    made.check()
    return made


def rows_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [timeless(line) for line in lines]


def states(made: Experiment) -> list[State]:
    executor = made.execution.make_executor()
    with closing(executor):
        return [step.state for step in train(made.method, executor, init(made.method, *made.training.initial_models()))]


def by_hand(made: Experiment) -> dict[int, float]:
    """The mean test accuracy over each round's events, by how many events are done after the last."""
    evaluator: Evaluator = made.execution.make_evaluator()
    by_round: dict[int, list[float]] = defaultdict(list)
    ends = {}
    for event, state in zip(made.method.schedule.events, states(made), strict=True):
        by_round[event.round].append(evaluator.test(made.method.global_model(state))[1] or 0.0)
        ends[event.round] = state.events_done
    return {ends[r]: float(np.mean(accuracies)) for r, accuracies in by_round.items()}


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["run.evaluate_every=2"],
        ["run.evaluate_every=3"],
        ["run.virtual_seconds=11"],
        ["method.name=fedavg"],
        ["method.name=hierarchical", "method.pattern=cenasy", "rounds=10", "method.intra_rounds=2", "local.steps=1"],
    ],
)
def test_it_is_the_mean_over_the_events_of_the_rows_round(changes: list[str], tmp_path: Path) -> None:
    made = experiment(*changes)
    carry_to_end(made, tmp_path / "run")
    first, *rows = rows_of(tmp_path / "run")
    assert first["cycle_accuracy"] is None
    expected = by_hand(made)
    assert [row["cycle_accuracy"] for row in rows] == [expected[row["event"]] for row in rows]
    if "method.name=fedavg" in changes:
        assert [row["cycle_accuracy"] for row in rows] == [row["test_accuracy"] for row in rows]


def test_measuring_it_changes_no_bits(tmp_path: Path) -> None:
    for name, changes in (("with", []), ("without", ["run.probes=[]"])):
        carry_to_end(experiment(*changes), tmp_path / name)
    last = "checkpoint/event-00000012.safetensors"
    assert (tmp_path / "with" / last).read_bytes() == (tmp_path / "without" / last).read_bytes()
    plain = [{k: v for k, v in row.items() if k != "cycle_accuracy"} for row in rows_of(tmp_path / "with")]
    assert plain == rows_of(tmp_path / "without")


@pytest.mark.parametrize("stop", thinned(range(1, 13), 3))
def test_a_run_that_was_stopped_within_a_round_has_the_same_rows(stop: int, tmp_path: Path) -> None:
    made = experiment("run.checkpoint_every=", "run.checkpoint_minutes=1e-9")
    carry_to_end(made, tmp_path / "whole")
    with closing(run_events(made, tmp_path / "run")) as steps:
        progress = [next(steps) for _ in range(stop + 1)][-1]
    assert progress.is_settled == (stop % 3 == 0)
    saved = [int(path.stem.removeprefix("event-")) for path in (tmp_path / "run/checkpoint").glob("*.safetensors")]
    assert max(saved, default=0) == stop // 3 * 3
    carry_to_end(made, tmp_path / "run")
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_run_that_was_killed_has_the_same_rows(tmp_path: Path) -> None:
    made = experiment("run.checkpoint_minutes=1e-9")
    carry_to_end(made, tmp_path / "whole")
    steps = count_steps(made, tmp_path / "counted")
    for number in range(steps // 3, steps, 9):
        kill_at(made, tmp_path / "killed", number, 0.5)
    carry_to_end(made, tmp_path / "killed")
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")


def test_sweeps_know_its_column() -> None:
    assert check_probes(experiment()) == {"cycle_accuracy": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["method.name=ifca"], r"run\.probes = 'cycle_accuracy': is measured at the server's model.*'ifca' has none"),
        (["run.probes=['personal_model_accuracy']"], r"'personal_model_accuracy': clients keep no models"),
        (["run.probes=['parameter_error']"], r"'parameter_error': the data have no planted parameters"),
        (["run.probes=['cycle_acuracy']"], r"did you mean 'cycle_accuracy'"),
        (
            [
                "method.name=bcd",
                "data.dataset=regression",
                "data.partition=iid",
                "run.probes=['personal_model_accuracy']",
            ],
            "the data have no classes",
        ),
    ],
)
def test_where_they_mean_nothing_they_are_refused_before_anything_is_written(
    changes: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        carry_to_end(experiment(*changes), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changes", [[], ["data.partition=rotated", "data.rotations=2"]])
def test_personal_models_are_tested_on_samples_like_their_clients_own(changes: list[str], tmp_path: Path) -> None:
    """Class by class of each group: the share of the client's samples times the accuracy there."""
    made = experiment("method.name=bcd", "rounds=3", "run.probes=['personal_model_accuracy']", *changes)
    carry_to_end(made, tmp_path / "run")
    first, *rows = rows_of(tmp_path / "run")
    assert first["personal_model_accuracy"] is None
    for row, state in zip(rows, states(made), strict=True):
        expected = np.mean([accuracy_by_hand(made, client, dict(kept)) for client, kept in state.clients.items()])
        assert math.isclose(row["personal_model_accuracy"], expected, rel_tol=1e-12)


def accuracy_by_hand(made: Experiment, client: int, model: dict[str, torch.Tensor]) -> float:
    data, images = made.population.data, len(made.population.data.test_inputs)
    load_model(made.module, model)
    weighted, total = 0.0, 0.0
    rows = made.population.samples(client)
    for turn, quarters in enumerate(data.turns):
        inputs = torch.rot90(torch.tensor(data.test_inputs).float() * data.scale, quarters, dims=(-2, -1))
        answers = made.module(inputs).argmax(dim=1).numpy()
        assert len(answers) == images
        for label in range(data.classes):
            held = sum(1 for r in rows if data.targets[r % len(data.inputs)] == label and r // len(data.inputs) == turn)
            there = data.test_targets == label
            weighted += held * float((answers[there] == label).mean())
            total += held
    return weighted / total
