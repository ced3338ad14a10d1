"""The search, without processes: what is proposed, pruned and resumed."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from atoll import InputError
from atoll.report.tables.formats import csv_table
from atoll.runs.run_folder import Row
from atoll.settings.experiment_file import make_runs
from atoll.settings.validation import Settings
from atoll.sweep import trials as listing
from atoll.sweep import tuning
from atoll.sweep.axes import Axis, Interval, parse_space
from atoll.sweep.goal import Goal
from atoll.sweep.sweep_worker import Job, News
from atoll.sweep.tuning import Search
from tests.made_runs import make_rows, write_run

SPACE = parse_space(["local.lr=0.001..1:log", "local.steps=1..9", "local.optimizer=sgd,adam"])
ROUNDS = 10


def make(changes: Sequence[str], label: str) -> Settings:
    (settings,) = make_runs({"rounds": ROUNDS}, None, changes)
    return settings.model_copy(update={"label": label})


def search(out: Path, metric: str = "test_loss", seed: int = 0, space: Sequence[Axis | Interval] = SPACE) -> Search:
    out.mkdir(exist_ok=True)
    return Search(out, space, Goal(metric), make, ROUNDS, seed)


def loss_of(settings: Settings, round_: int) -> float:
    """Least for a learning rate of 0.1, and falling with the rounds."""
    return abs(settings.local.lr - 0.1) + 1 / (1 + round_)


def rows(settings: Settings, from_round: int = 0) -> Iterator[Row]:
    for round_ in range(from_round, ROUNDS + 1):
        loss = loss_of(settings, round_)
        yield {"event": round_, "round": round_, "test_loss": loss, "test_accuracy": 1 / (1 + loss)}


def run_events(of: Search, job: Job) -> str:
    """Play a run; return how it ended."""
    for row in rows(job.settings):
        if of.judge(job, News("running", row=row)) == "prune":
            of.settle(job, News("pruned"))
            return "pruned"
    assert of.settle(job, News("finished")) == ""
    return "finished"


def search_to(of: Search, trials: int) -> None:
    for job in of.jobs(trials):
        run_events(of, job)


@pytest.mark.more
def test_the_best_is_found_and_laggards_are_pruned(tmp_path: Path) -> None:
    of = search(tmp_path)
    search_to(of, 40)
    found = of.trials()
    assert [trial.number for trial in found] == list(range(40))
    best = of.best()
    assert best is not None
    assert best.value == min(trial.value for trial in found if trial.state == "complete" and trial.value is not None)
    assert float(best.texts["local.lr"]) == pytest.approx(0.1, abs=0.03)
    pruned = [trial for trial in found if trial.state == "pruned"]
    assert len(pruned) >= 5
    assert all(trial.number >= 5 and 2 <= trial.rounds < ROUNDS for trial in pruned)


def test_more_is_better_for_an_accuracy(tmp_path: Path) -> None:
    of = search(tmp_path, "test_accuracy")
    search_to(of, 12)
    best = of.best()
    assert best is not None
    assert best.value == max(trial.value or 0.0 for trial in of.trials() if trial.state == "complete")


@pytest.mark.more
def test_proposals_depend_on_the_seed_and_what_came_before(tmp_path: Path) -> None:
    """Stopped in the middle of a trial and opened anew, a search goes on as if it had not been stopped."""
    whole = search(tmp_path / "whole")
    search_to(whole, 16)
    for number in range(12):
        parted = search(tmp_path / "parted")
        search_to(parted, number)
        if number % 4 == 3:  # here a trial is stopped on its way
            job = next(parted.jobs(number + 1))
            for row in list(rows(job.settings))[:2]:
                assert parted.judge(job, News("running", row=row)) == "go on"
            assert parted.settle(job, News("stopped")) == ""
            assert parted.trials()[-1].state == "running"
    parted = search(tmp_path / "parted")
    search_to(parted, 16)
    assert parted.trials() == whole.trials()
    other = search(tmp_path / "other", seed=1)
    search_to(other, 3)
    assert other.trials()[0].texts != whole.trials()[0].texts


def test_a_stopped_trial_comes_first_with_its_values(tmp_path: Path) -> None:
    of = search(tmp_path)
    jobs = of.jobs(3)
    first, second = next(jobs), next(jobs)
    run_events(of, second)
    again = search(tmp_path)
    (job, *more) = list(again.jobs(3))
    assert (job.name, job.settings) == (first.name, first.settings)
    assert [each.name for each in more] == ["trial-002"]


def test_a_row_that_is_told_again_changes_nothing(tmp_path: Path) -> None:
    """A run that is resumed begins with the row that it ended with."""
    of = search(tmp_path)
    job = next(of.jobs(1))
    for row in [*list(rows(job.settings))[:4], *rows(job.settings, 3)]:
        of.judge(job, News("running", row=row))
    of.settle(job, News("finished"))
    (trial,) = of.trials()
    assert trial.value == pytest.approx(loss_of(job.settings, ROUNDS))


def test_failed_trials_count_and_are_told(tmp_path: Path) -> None:
    of = search(tmp_path)
    jobs = of.jobs(2)
    job = next(jobs)
    assert of.settle(job, News("failed", error="not finite")) == "not finite"
    job = next(jobs)
    assert of.judge(job, News("running", row={"round": 0, "test_loss": None})) == "go on"
    assert of.judge(job, News("running", row={"round": 1, "test_loss": None})) == "stop"
    assert of.settle(job, News("stopped")) == "--metric test_loss: its last row does not hold it"
    assert list(jobs) == []
    assert [trial.state for trial in of.trials()] == ["fail", "fail"]
    assert of.best() is None


def test_a_trial_that_its_user_stops_where_the_metric_has_no_value_goes_on(tmp_path: Path) -> None:
    """As local_loss has none before training."""
    of = search(tmp_path)
    job = next(of.jobs(1))
    for round_, loss in enumerate((None, 0.9, None)):
        assert of.judge(job, News("running", row={"round": round_, "test_loss": loss})) == "go on"
        assert of.settle(job, News("stopped")) == ""
        assert [trial.state for trial in of.trials()] == ["running"]


def test_a_row_without_the_metric_ends_no_trial_that_has_had_it(tmp_path: Path) -> None:
    """A probe may have no value now and then; at the end it needs one."""
    of = search(tmp_path)
    for last, told in ((0.5, ""), (None, "--metric test_loss: its last row does not hold it")):
        job = next(of.jobs(3))
        for round_, loss in enumerate((1.0, 0.9, None, None, last)):
            assert of.judge(job, News("running", row={"round": round_, "test_loss": loss})) == "go on"
        assert of.settle(job, News("finished")) == told
    assert [(trial.state, trial.rounds) for trial in of.trials()] == [("complete", 4), ("fail", 4)]


def test_the_ends_of_ranges_are_tried_out() -> None:
    assert tuning.corners(SPACE) == [
        ["local.lr=0.001", "local.steps=1", "local.optimizer=sgd"],
        ["local.lr=1.0", "local.steps=9", "local.optimizer=adam"],
    ]


def test_the_table(tmp_path: Path) -> None:
    of = search(tmp_path)
    search_to(of, 3)
    trials, best = of.trials(), of.best()
    assert best is not None
    text = listing.table_of(trials, best, Goal("test_loss")).as_markdown()
    (line,) = [line for line in text.splitlines() if "best" in line]
    assert line.startswith(f"| {best.number} ")
    assert csv_table(listing.as_dicts(trials, best, Goal("test_loss"))).count("\n") == 4
    json.dumps(listing.as_dicts(trials, best, Goal("test_loss")), allow_nan=False)


def test_rounds_that_are_searched_stay_beside_those_completed() -> None:
    trial = listing.Trial(0, {"rounds": "40"}, "pruned", 8, 0.5)
    (row,) = listing.as_dicts([trial], None, Goal("test_loss"))
    assert (row["rounds"], row["rounds_done"]) == ("40", 8)
    (row,) = listing.as_dicts([listing.Trial(0, {"local.lr": "1"}, "pruned", 8, 0.5)], None, Goal("test_loss"))
    assert (row["rounds"], "rounds_done" in row) == (8, False)


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"^--tune needs Optuna; run pip install 'optuna>=4.5'$"):
        tuning.require_optuna()


def test_a_note_is_written_for_each_proposal(tmp_path: Path) -> None:
    calls: list[int] = []
    of = search(tmp_path)
    note: Callable[[], None] = lambda: calls.append(len(of.trials()))  # noqa: E731
    for job in of.jobs(2, note=note):
        run_events(of, job)
    assert calls == [1, 2]


def test_a_search_for_the_least_cost_reads_it_where_the_target_is_met(tmp_path: Path) -> None:
    found = Search(tmp_path, SPACE, Goal("client_updates", 0.5), make, ROUNDS, 0)
    for job in found.jobs(2):
        reached = job.name == "trial-000"
        write_run(job.folder, make_rows(10, 5 if reached else 500))
        assert (
            found.judge(job, News("running", row={"round": 9, "client_updates": 900, "test_accuracy": 0.9})) == "go on"
        )
        error = found.settle(job, News("finished"))
        assert error == ("" if reached else "--target 0.5: its test_accuracy did not reach it")
    trials, best = found.trials(), found.best()
    assert [(trial.state, trial.value) for trial in trials] == [("complete", 300.0), ("fail", None)]
    assert [trial.rounds for trial in trials] == [9, 9]
    assert best == trials[0]
    assert "client_updates to 50 %" in listing.table_of(trials, best, found.goal).as_markdown()
