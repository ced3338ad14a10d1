"""When rules end a run, on rows that are made by hand."""

from typing import Any

import pytest

from atoll.runs.stopping import Stopping, StopRule

Rows = list[dict[str, Any]]


def rows_of(metric: str, *values: float | None) -> Rows:
    """Return rows of every second round."""
    return [{"round": 2 * i, metric: value} for i, value in enumerate(values)]


def stops(rule: StopRule, rows: Rows) -> list[int]:
    """Return the rounds in whose row the rule would end the run."""
    return [rows[last]["round"] for last in range(len(rows)) if rule.why(rows[: last + 1])]


@pytest.mark.parametrize(("sign", "wanted"), [(">=", [4, 6]), ("<=", [0, 4])])
def test_a_limit_is_met_where_it_is_reached(sign: str, wanted: list[int]) -> None:
    assert stops(StopRule("test_loss", sign, 0.5), rows_of("test_loss", 0.4, None, 0.5, 0.6)) == wanted


@pytest.mark.parametrize(("metric", "sign"), [("test_accuracy", 1), ("client_score", 1), ("test_loss", -1)])
def test_patience_is_counted_in_rounds_from_the_first_of_the_best(metric: str, sign: int) -> None:
    rows = rows_of(metric, *(sign * value for value in (0.1, 0.3, 0.2, 0.3, 0.4, 0.2, 0.3)))
    assert stops(StopRule(metric, "patience", 4), rows) == [6, 12]
    assert stops(StopRule(metric, "patience", 2), rows) == [4, 6, 10, 12]
    assert stops(StopRule(metric, "patience", 5), rows) == []
    assert stops(StopRule(metric, "patience", 1), rows_of(metric, None, 0.1, None)) == []
    assert ", 1 round after its best " in StopRule(metric, "patience", 1).why([rows[1], {**rows[2], "round": 3}])


def test_before_training_no_rule_ends_a_run_and_the_first_reason_stays() -> None:
    rows = rows_of("test_loss", 0.1, 0.2, 0.1)
    low, high = StopRule("test_loss", "<=", 0.1), StopRule("test_loss", ">=", 0.2)
    told = []
    stopping, resumed = Stopping([low, high]), Stopping([low, high])
    for count in range(1, 4):
        stopping.take(rows[:count])
        told.append(stopping.why)
    assert told == ["", *["in round 2, with test_loss = 0.2 >= 0.2"] * 2]
    resumed.resume(rows[:1])
    assert not resumed.why
    resumed.resume(rows[:2])
    assert resumed.why == told[1]


def test_what_on_row_does_to_a_row_stays_its_own() -> None:
    rows = rows_of("test_loss", 0.1)
    Stopping([], on_row=lambda row: row.clear()).take(rows)
    assert rows == rows_of("test_loss", 0.1)
