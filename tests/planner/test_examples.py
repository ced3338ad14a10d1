"""Plans in words, by example."""

import math

from atoll.planner.budget import PlanBudget
from atoll.planner.candidates import _name_of
from atoll.planner.plan_table import in_words, level_in_words


def test_names_of_plans() -> None:
    assert _name_of({"method.pattern": "censyn", "method.intra_rounds": "5"}) == "censyn,intra_rounds=5"
    assert in_words("censyn,comaw,intra_rounds=5") == "censyn, comaw, intra_rounds 5"


def test_levels_in_words() -> None:
    assert [level_in_words(value, PlanBudget()) for value in (0.5, math.nan)] == ["50.0 %", "–"]
    assert level_in_words(0.25, PlanBudget(is_regression=True)) == "0.25"


def test_the_column_that_a_plan_is_judged_by() -> None:
    own = ["mean_cluster_accuracy"]
    assert PlanBudget().column_of() == "test_accuracy"
    assert PlanBudget().column_of(own) == "mean_cluster_accuracy"
    assert PlanBudget(metric="test_loss").column_of(own) == "test_loss"
