"""What a plan has reached in a race, by rows written by hand: a minute apart, 3,000 bytes each."""

import math
from pathlib import Path

import pytest

from atoll.planner.budget import PlanBudget
from atoll.planner.entrants import (
    GIVES_UP,
    Entrant,
    cost_of,
    estimate_of,
    is_there,
    latest,
    level_of,
    meets,
    met_by,
    rank,
    rows_of,
    seed_folder,
    settle,
)
from tests.made_runs import make_rows, write_run
from tests.planner.test_schedules import scored, settings_of

HALF, LOSS = PlanBudget(target=0.5), PlanBudget(target=0.5, is_regression=True)


def entrant_of(folder: Path, values: list[float], column: str = "test_accuracy", seed: int = 0) -> Entrant:
    """Return a plan whose run has these values in its rows; rows with NaN have none."""
    rows = [{**row, column: value} for row, value in zip(make_rows(len(values)), values, strict=True)]
    rows = [{name: value for name, value in row.items() if not math.isnan(value)} for row in rows]
    write_run(folder / seed_folder(seed), rows, finished=False)
    return Entrant(scored(f"censyn,{folder.name}", settings_of(folder)), folder)


def test_a_target_is_met_by_the_value_itself_and_by_the_moment_itself(tmp_path: Path) -> None:
    assert meets(0.5, 0.5, HALF)
    assert meets(0.5, 0.5, LOSS)
    assert not meets(0.6, 0.5, LOSS)
    run = rows_of(entrant_of(tmp_path / "a", [0.1, 0.2, 0.5, 0.4]))
    assert met_by(run, 120.0, HALF) == 120.0
    assert met_by(run, 119.0, HALF) is None
    assert is_there(run, 1e9, HALF)
    assert [is_there(run, until, PlanBudget()) for until in (180.0, 181.0)] == [True, False]


def test_others_train_a_tenth_longer_than_the_first_to_meet_the_target(tmp_path: Path) -> None:
    plans = [entrant_of(tmp_path / name, values) for name, values in (("a", [0.1, 0.2, 0.6]), ("b", [0.1, 0.7, 0.6]))]
    assert latest(plans, 900.0, HALF) == pytest.approx(GIVES_UP * 60.0)
    assert latest(plans[:1], 900.0, HALF) == pytest.approx(GIVES_UP * 120.0)
    assert latest(plans, 30.0, HALF) == math.inf


def test_who_met_the_target_is_ahead_and_then_who_is_better(tmp_path: Path) -> None:
    early, late = entrant_of(tmp_path / "a", [0.1, 0.6, 0.1]), entrant_of(tmp_path / "b", [0.1, 0.4, 0.6])
    good, bad = entrant_of(tmp_path / "c", [0.1, 0.1, 0.4]), entrant_of(tmp_path / "d", [0.1, 0.1, 0.3])
    assert sorted([bad, late, good, early], key=lambda each: rank(each, 120.0, HALF)) == [early, late, good, bad]


def test_where_there_are_no_classes_the_least_loss_is_first(tmp_path: Path) -> None:
    low, high = (entrant_of(tmp_path / name, [9.0, 1.0 + len(name)], "test_loss") for name in ("a", "bb"))
    budget = PlanBudget(is_regression=True)
    for each in (low, high):
        settle(each, 0, 60.0, budget)
        each.level = each.costs[0]
    assert [each.costs for each in (low, high)] == [[2.0], [3.0]]
    assert cost_of(low, budget) < cost_of(high, budget)
    low.costs, high.costs = [math.inf], [math.inf]  # neither meets a target: the level counts
    assert cost_of(low, LOSS) < cost_of(high, LOSS)
    low.problem = "failed"
    assert cost_of(low, budget) > cost_of(high, budget)


def test_seconds_and_bytes_are_those_to_the_target(tmp_path: Path) -> None:
    plan = entrant_of(tmp_path / "a", [0.1, 0.2, 0.5, 0.9])
    entrant_of(tmp_path / "a", [0.1, 0.6, 0.9], seed=1)
    for seed in range(2):
        settle(plan, seed, 900.0, HALF)
    assert (plan.costs, plan.sizes) == ([120.0, 60.0], [6000.0, 3000.0])
    found = estimate_of(plan, HALF)
    assert found is not None
    assert found.mean == 90.0
    plan.costs = [0.25, 0.75]  # seconds, so that the interval is Student's also where they look like shares
    found = estimate_of(plan, HALF)
    assert found is not None
    assert found.low is not None
    assert found.low < 0
    plan.costs.append(math.inf)
    assert estimate_of(plan, HALF) is None


def test_a_level_is_the_mean_over_the_last_quarter_of_what_was_evaluated(tmp_path: Path) -> None:
    plan = entrant_of(tmp_path / "a", [0.9, 0.9, 0.9, 0.9, 0.1, 0.2, 0.3, 0.5, math.nan])
    assert level_of(plan, 0, 900.0, HALF) == pytest.approx((0.3 + 0.5) / 2)  # from 315 s to 420 s
    assert level_of(plan, 0, 300.0, HALF) == pytest.approx((0.1 + 0.2) / 2)  # from 225 s
    assert math.isnan(level_of(plan, 0, -1.0, HALF))
