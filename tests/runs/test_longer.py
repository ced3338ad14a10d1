"""Runs that end early, and runs that go on after their end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll.cli import main
from atoll.runs.run_folder import Row, RunFolder
from atoll.runs.verify import verify_run
from atoll.support.errors import InputError
from tests.tiers import thinned

TINY: dict[str, Any] = {
    "data": {"clients": 8, "samples": 30},
    "local": {"lr": 0.1, "steps": 2},
    "method": {"name": "fedavg", "fraction": 0.5},
    "clustering": {"clusters": 2},
}


def run(out: Path | None, rounds: int = 12, stop_at: str | None = None, resume: bool = False, **more: Any) -> Any:
    own = {"executor": "serial", **more.pop("run", {})} | ({"stop_at": stop_at} if stop_at else {})
    return atoll.run(TINY, out, rounds=rounds, run=own, resume=resume, **more)


def same_rows(one: Path, other: Path) -> bool:
    def rows(place: Path) -> list[Row]:
        return [{key: value for key, value in row.items() if key != "wall_time"} for row in RunFolder(place).rows()]

    return rows(one) == rows(other)


def same_models(one: Any, other: Any) -> bool:
    pairs = zip(one.state.starts, other.state.starts, strict=True)
    return all(torch.equal(a[key], b[key]) for a, b in pairs for key in a)


def test_a_run_stops_at_a_value_and_is_finished(tmp_path: Path) -> None:
    whole = run(None)
    losses = whole.history["test_loss"]
    limit = float(losses[5] + losses[6]) / 2
    stopped = run(tmp_path / "a", stop_at=f"test_loss <= {limit}")
    reached = next(i for i, loss in enumerate(losses) if loss <= limit)
    assert stopped.history["test_loss"].tolist() == losses[: reached + 1].tolist()
    assert f"in round {reached}, with test_loss" in stopped.summary["stopped"]
    assert stopped.summary["events"] == stopped.summary["rounds"] == reached
    again = run(tmp_path / "a", stop_at=f"test_loss <= {limit}", resume=True)
    assert again.summary == stopped.summary
    further = run(tmp_path / "a", resume=True)  # without the condition it goes on
    assert "stopped" not in further.summary
    assert same_models(further, whole)


def test_a_run_repeats_with_a_condition_that_an_event_before_its_last_had_met(tmp_path: Path) -> None:
    run(tmp_path / "a", 4)
    assert run(tmp_path / "a", 6, stop_at="test_loss <= 100", resume=True).summary["events"] == 4
    check = verify_run(tmp_path / "a", tmp_path / "again")
    assert (check.holds, check.first_difference) == (True, "")
    assert check.what.endswith("4 events and 5 rows, run again")


def test_a_stopped_run_that_is_continued_otherwise_says_which_setting_differs(tmp_path: Path) -> None:
    run(tmp_path / "a", 3, stop_at="test_loss <= 100")
    with pytest.raises(InputError, match=r"was run with other settings: run\.evaluate_every was 1, is now 2$"):
        run(tmp_path / "a", 3, resume=True, run={"evaluate_every": 2})


def test_patience_counts_rounds_without_a_better_value(tmp_path: Path) -> None:
    schedule = {**TINY["local"], "schedule": "list", "rates": [0.1] * 4 + [0.0] * 20}
    result = run(tmp_path / "a", 20, "test_loss patience 6 or test_accuracy >= 1", local=schedule)
    best = int(result.history["test_loss"].argmin())
    assert result.history["round"][-1] == best + 6
    assert f"6 rounds after its best test_loss = {result.history['test_loss'][best]:g}" in result.summary["stopped"]


def test_patience_may_be_as_long_as_it_takes_to_the_next_row(tmp_path: Path) -> None:
    waits = "test_loss patience 4"
    assert run(None, 8, waits, run={"evaluate_every": 4}).summary["events"] == 8
    with pytest.raises(InputError, match=r"run\.evaluate_every = 4 gives no evaluation in 3 rounds"):
        run(None, 8, "test_loss patience 3", run={"evaluate_every": 4})


@pytest.mark.parametrize("executor", ["cores", pytest.param("ray", marks=pytest.mark.slow)])
def test_other_executors_stop_at_the_same_row(executor: str, tmp_path: Path) -> None:
    for name in ("serial", executor):
        run(tmp_path / name, 6, "test_loss <= 2.2", run={"executor": name, "workers": 2})
    assert same_rows(tmp_path / "serial", tmp_path / executor)
    assert RunFolder(tmp_path / "serial").summary()["stopped"] == RunFolder(tmp_path / executor).summary()["stopped"]


def test_a_run_cut_before_its_stop_resumes_to_the_same_stop(tmp_path: Path) -> None:
    condition = {"stop_at": "test_loss patience 3", "executor": "serial"}
    table = {**TINY, "rounds": 12, "local": {"lr": 1.5, "steps": 6}}
    atoll.run(table, tmp_path / "whole", run=condition)
    steps = atoll.run_events(atoll.Experiment(atoll.make_runs(table, None, {"run": condition})[0]), tmp_path / "cut")
    for step in steps:
        if step.events_done == 2:
            break
    steps.close()
    atoll.run(table, tmp_path / "cut", run=condition, resume=True)
    assert same_rows(tmp_path / "whole", tmp_path / "cut")
    assert RunFolder(tmp_path / "whole").summary().get("stopped") == RunFolder(tmp_path / "cut").summary().get(
        "stopped"
    )


def test_the_last_row_of_a_stopped_asynchronous_run_is_of_the_model_that_it_saves(tmp_path: Path) -> None:
    """Its row met the condition while other events of the group, trained together, were under way."""
    own: dict[str, Any] = {"method": {"name": "fedasync", "concurrency": 3}, "run": {"evaluate_every": 2}}
    stop_at, out = "test_loss <= 100", tmp_path / "a"
    stopped = run(out, 12, stop_at, **own)
    assert [row["event"] for row in RunFolder(out).rows()] == [0, 2, 3]
    assert stopped.summary["events"] == stopped.summary["final"]["event"] == 3
    rows = RunFolder(tmp_path / "each").rows() if run(tmp_path / "each", 3, method=own["method"]) else []
    assert rows[-1]["test_loss"] == stopped.summary["final"]["test_loss"]
    kept = (out / "metrics.jsonl").read_bytes()
    assert run(out, 12, stop_at, resume=True, **own).summary == stopped.summary
    assert (out / "metrics.jsonl").read_bytes() == kept
    (out / "summary.json").unlink()  # killed before it was written
    (out / "metrics.jsonl").write_bytes(b"".join(kept.splitlines(keepends=True)[:2]))
    assert run(out, 12, stop_at, resume=True, **own).summary["final"]["event"] == 3
    further, whole = run(out, 12, resume=True, **own), run(tmp_path / "whole", 12, **own)
    assert same_models(further, whole)
    assert same_rows(out, tmp_path / "whole")


def test_on_row_sees_every_row_and_can_stop() -> None:
    seen: list[int] = []

    def note(row: Row) -> bool:
        seen.append(row["round"])
        return bool(row["round"] == 3)

    result = run(None, on_row=note)
    assert seen == [0, 1, 2, 3]
    assert result.summary["stopped"] == "in round 3, because on_row returned a true value"


def test_before_training_on_row_does_not_end_the_run() -> None:
    result = run(None, on_row=lambda row: row["round"] != 1)
    assert result.history["round"].tolist() == [0, 1, 2]


def test_one_event_is_told_as_one(tmp_path: Path) -> None:
    run(tmp_path / "a", rounds=1)
    assert verify_run(tmp_path / "a", tmp_path / "again").what.endswith("a: 1 event and 2 rows, run again")


@pytest.mark.parametrize("several", [np.zeros(3), torch.zeros(3)])
def test_on_row_must_return_something_true_or_false(several: object) -> None:
    with pytest.raises(
        InputError, match=r"on_row: must return something true or false, it returned '(ndarray|Tensor)'"
    ):
        run(None, on_row=lambda _: several)


def test_on_row_must_be_a_function(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="on_row: must be a function, it is 'int'"):
        run(tmp_path / "a", on_row=3)
    assert not (tmp_path / "a").exists()


def test_a_metric_that_the_rows_lack_is_refused(tmp_path: Path) -> None:
    for metric in ("ari", "mean_cluster_accuracy", "epsilon"):
        with pytest.raises(InputError, match=rf"'{metric}' is unknown"):
            run(tmp_path / "a", stop_at=f"{metric} >= 0.5")
    assert not (tmp_path / "a").exists()


def test_a_run_stops_at_columns_that_only_some_runs_have(tmp_path: Path) -> None:
    local = {**TINY["local"], "lr_decay": 0.5}
    table = run(tmp_path / "a", 4, "learning_rate <= 0.03", local=local)
    assert table.summary["rounds"] == 3
    lost = run(tmp_path / "b", 12, "dropped >= 1", faults={"dropout": 0.5})
    assert lost.history["dropped"][-1] >= 1 > lost.history["dropped"][:-1].max(initial=0)
    planted = {"dataset": "regression", "clients": 8, "samples": 20, "partition": "planted"}
    ifca, linear = {"name": "ifca", "clusters": 2, "fraction": 1.0}, {"name": "linear", "bias": False}
    far = run(tmp_path / "c", 6, "parameter_error <= 1e9", data=planted, method=ifca, model=linear)
    assert far.summary["rounds"] == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"stop_at": "test_accuracy > 0.5"}, "must be a column, >= or <= and a number, such as 'test_accuracy >= 0.9'"),
        ({"stop_at": "test_accuracy >= much"}, "must be a column, >= or <= and a number"),
        ({"stop_at": "test_acuracy >= 0.5"}, "'test_acuracy' is unknown, did you mean 'test_accuracy'"),
        ({"stop_at": "h_device <= 0.5"}, r"'h_device' is not recorded; run\.probes = \['heterogeneity'\] records it"),
        (
            {"stop_at": "worst_client_accuracy >= 0.5"},
            r"'worst_client_accuracy' is not recorded; run\.probes = \['client_accuracy'\] records it",
        ),
        (
            {"stop_at": "parameter_error <= 0.5"},
            r"'parameter_error' is not recorded; run\.probes = \['parameter_error'\] records it",
        ),
        ({"stop_at": "test_accuracy >= 90"}, "accuracies are from 0 to 1; 90 % is 0.9"),
        ({"stop_at": "test_loss patience 0"}, "patience must be at least 1 round"),
        ({"stop_at": "test_loss patience 3", "evaluate_every": 5}, "run.evaluate_every = 5 gives no evaluation in 3"),
    ],
)
def test_conditions_that_never_apply_are_refused(more: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        run(tmp_path / "a", run=more)
    assert not (tmp_path / "a").exists()


def test_groups_that_nobody_planted_cannot_be_found(tmp_path: Path) -> None:
    """The column would have no value in any row."""
    with pytest.raises(InputError, match=r"'ari' is unknown\. Allowed: "):
        run(tmp_path / "a", 2, "ari >= 0.5", method={"name": "ifca", "clusters": 2})
    more: dict[str, Any] = {"data": {**TINY["data"], "rotations": 2, "partition": "rotated"}}
    assert run(None, 2, "ari >= -1", method={"name": "ifca", "clusters": 2}, **more).summary["events"] == 1


def test_a_private_run_has_no_local_loss_to_stop_at() -> None:
    private = {"trust": "server", "clip": 1.0, "noise": 2.0, "epsilon": 20.0}
    with pytest.raises(InputError, match=r"'local_loss' is unknown"):
        run(None, 2, "local_loss <= 9", privacy=private)
    assert run(None, 2, "local_loss <= 9").summary["events"] == 1


@pytest.mark.parametrize(
    ("method", "local"),
    thinned(
        [
            ({"name": "fedavg", "fraction": 0.5}, {}),
            ({"name": "fedcluster", "fraction": 0.5}, {"schedule": "step", "step_size": 2}),
            ({"name": "scaffold", "fraction": 0.5}, {"schedule": "cosine", "T_max": 9}),
            ({"name": "ifca", "clusters": 2}, {}),
            ({"name": "hierarchical", "pattern": "decsyn", "intra_rounds": 1}, {"steps": 1}),
            ({"name": "fednova", "fraction": 0.5}, {"epochs": 0.5, "schedule": "step", "step_size": 2}),
            ({"name": "fedavg", "fraction": 0.25, "select": "power-of-choice", "candidates": 4}, {}),
        ],
        3,
    ),
)
def test_4_and_5_rounds_are_9_to_the_bit(method: dict[str, Any], local: dict[str, Any], tmp_path: Path) -> None:
    own: dict[str, Any] = {"method": method, "local": {**TINY["local"], **local}, "run": {"evaluate_every": 3}}
    whole = run(tmp_path / "whole", 9, **own)
    run(tmp_path / "parts", 4, **own)
    parts = run(tmp_path / "parts", 9, resume=True, **own)
    assert same_models(whole, parts)
    assert same_rows(tmp_path / "whole", tmp_path / "parts")
    assert RunFolder(tmp_path / "parts").settings_table()["rounds"] == 9
    assert not run(tmp_path / "parts", 9, resume=True, **own).warnings


def test_a_longer_run_refuses_the_same_unusual_updates(tmp_path: Path) -> None:
    """The norms that a cluster knows are those of the event that gives it its start, in a longer run another one."""
    own: dict[str, Any] = {
        "data": {"partition": "dirichlet", "alpha": 0.3, "clients": 24},
        "method": {"name": "fedcluster", "fraction": 0.5, "order": "fixed"},
        "faults": {"usual_norms": "refuse", "attackers": 0.2, "attack": "noise", "attack_strength": 20.0},
    }
    table = TINY | own | {"model": {"name": "linear"}, "local": {"lr": 0.2, "steps": 2, "batch_size": 4}}
    atoll.run(table, tmp_path / "whole", rounds=3)
    for rounds in (1, 3):
        atoll.run(table, tmp_path / "parts", rounds=rounds, resume=rounds > 1)
    assert RunFolder(tmp_path / "whole").rows()[-1]["refused_unusual"] > 0
    assert same_rows(tmp_path / "whole", tmp_path / "parts")


def test_an_interrupted_run_may_become_longer_or_shorter(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 6)
    steps = atoll.run_events(
        atoll.Experiment(atoll.make_runs(TINY, None, {"rounds": 9, "run": {"executor": "serial"}})[0]), tmp_path / "a"
    )
    for step in steps:
        if step.events_done == 4:
            break
    steps.close()
    assert same_models(run(tmp_path / "a", 6, resume=True), whole)
    with pytest.raises(InputError, match=r"cannot go on \(rounds was 6, is now 5\): it has done 6 events"):
        run(tmp_path / "a", 5, resume=True)


@pytest.mark.parametrize("rounds", [5, 6])
def test_an_interrupted_run_ends_at_no_event_that_has_no_row(rounds: int, tmp_path: Path) -> None:
    """Saved after event 6, measured last after event 4."""
    made = {"rounds": 9, "run": {"executor": "serial", "evaluate_every": 4}}
    steps = atoll.run_events(atoll.Experiment(atoll.make_runs(TINY, None, made)[0]), tmp_path)
    next(step for step in steps if step.events_done == 6)
    steps.close()
    told = rf"rounds was 9, is now {rounds}\): it has done 6 events, and the new schedule has {rounds}; raise rounds"
    with pytest.raises(InputError, match=told):
        run(tmp_path, rounds, run={"evaluate_every": 4}, resume=True)
    assert run(tmp_path, 7, run={"evaluate_every": 4}, resume=True).summary["events"] == 7


def test_more_rounds_do_not_help_a_run_that_something_else_ends(tmp_path: Path) -> None:
    run(tmp_path, run={"client_updates": 8})
    with pytest.raises(
        InputError, match=r"has done 2 events, .* has 2; raise run\.client_updates or rounds; a new run may begin"
    ):
        run(tmp_path, 20, run={"client_updates": 8}, resume=True)


def test_a_run_that_would_have_begun_differently_says_what_to_do(tmp_path: Path) -> None:
    run(tmp_path / "a", 4, local={**TINY["local"], "schedule": "cosine"})
    before = (tmp_path / "a" / "config.toml").read_bytes()
    with pytest.raises(
        InputError, match=r"learning rates would differ from round 1 on; keep .* local\.T_max .* model\.start"
    ):
        run(tmp_path / "a", 8, local={**TINY["local"], "schedule": "cosine"}, resume=True)
    with pytest.raises(
        InputError, match=r"was run with other settings: local\.lr was 0\.1, is now 0\.2, .*rounds was 4"
    ):
        run(tmp_path / "a", 8, local={"lr": 0.2, "steps": 2, "schedule": "cosine"}, resume=True)
    run(tmp_path / "b", 4, method={"name": "ifca", "clusters": 2, "resample": True})
    with pytest.raises(InputError, match=r"what clients do depends on rounds$"):  # no one model of it is a start
        run(tmp_path / "b", 8, method={"name": "ifca", "clusters": 2, "resample": True}, resume=True)
    run(tmp_path / "c", 4, method={"name": "fedbuff", "concurrency": 3, "buffer": 2})
    run(tmp_path / "e", 2, method={"name": "fedasync", "concurrency": 3})
    with pytest.raises(InputError, match="its schedule would differ throughout"):
        run(tmp_path / "e", 4, method={"name": "fedasync", "concurrency": 3}, resume=True)
    with pytest.raises(InputError, match="its schedule would differ from event 2 on"):
        run(tmp_path / "c", 8, method={"name": "fedbuff", "concurrency": 3, "buffer": 2}, resume=True)
    assert (tmp_path / "a" / "config.toml").read_bytes() == before
    assert RunFolder(tmp_path / "a").is_finished


def test_a_private_run_whose_budget_is_spent_says_that_it_was_planned(tmp_path: Path) -> None:
    privacy = {"trust": "server", "clip": 1.0, "noise": 2.0, "epsilon": 2.0}
    run(tmp_path / "a", 8, privacy=privacy)
    with pytest.raises(InputError, match="its privacy budget, or its fleet, was planned for the first length"):
        run(tmp_path / "a", 16, privacy=privacy, resume=True)


@pytest.mark.more
def test_a_start_chosen_after_fewer_trial_rounds_is_no_longer_runs(tmp_path: Path) -> None:
    method = {"name": "ifca", "clusters": 2, "restarts": 2, "restart_rounds": 4, "fraction": 1.0}
    run(tmp_path / "a", 2, method=method)
    told = "its start was chosen after 2 rounds, not after method.restart_rounds = 4"
    with pytest.raises(InputError, match=told):
        run(tmp_path / "a", 6, method=method, resume=True)
    run(tmp_path / "b", 4, method=method)
    assert same_models(run(tmp_path / "b", 6, method=method, resume=True), run(None, 6, method=method))


def spoil(out: Path, what: str) -> None:
    """Make something of a run's folder be of another run, so that it cannot go on."""
    note: dict[str, Any] = json.loads((out / "environment.json").read_text())
    if what == "schedule":
        note["replayed"] = "0" * 64
    if what == "data":
        note["data"] = {"train.csv": "0" * 64}
    (out / "environment.json").write_text("[" if what == "environment" else json.dumps(note))
    if what == "rows":
        (out / "metrics.jsonl").write_text((out / "metrics.jsonl").read_text().split("\n", 1)[1])


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("schedule", "was run with a.* --schedule; continue in the same way"),
        ("data", r"train\.csv .* is missing since"),
        ("environment", "environment.json is missing or damaged"),
        ("rows", "the row of event 0 is missing"),
        ("executor", "run.executor now gives the bits of 'stacked'"),
    ],
)
def test_a_finished_run_that_is_refused_more_rounds_stays_as_it_is(what: str, told: str, tmp_path: Path) -> None:
    run(tmp_path / "a", 2)
    spoil(tmp_path / "a", what)
    kept = {path: path.read_bytes() for path in sorted((tmp_path / "a").rglob("*")) if path.is_file()}
    executor = "stacked" if what == "executor" else "serial"
    with pytest.raises(InputError, match=told):
        run(tmp_path / "a", 4, resume=True, run={"executor": executor})
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_run_without_its_folder_of_checkpoints_begins_again(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "a", 2)
    for file in (tmp_path / "a" / "checkpoint").iterdir():
        file.unlink()
    (tmp_path / "a" / "checkpoint").rmdir()
    assert same_models(run(tmp_path / "a", 4, resume=True), whole)
    assert same_rows(tmp_path / "a", tmp_path / "whole")


def test_the_command_line_says_why_a_run_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "quickstart", "--only", "FedAvg", "--set", "rounds=4", "--set", "data.clients=10"]
    words += ["--set", "run.stop_at=test_loss <= 100", "--out", str(tmp_path / "a")]
    assert main(words) == 0
    assert "stopped: in round 1, with test_loss" in (first := capsys.readouterr()).out + first.err
    assert main([*words, "--resume"]) == 0
    assert "stopped: in round 1" in (second := capsys.readouterr()).out + second.err
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["rounds"] == 1
