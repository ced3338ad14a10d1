"""Axes and goals of sweeps, by example."""

from atoll.sweep.axes import Axis, Interval, around, parse_axes, parse_part, parse_space
from atoll.sweep.goal import Goal
from atoll.sweep.sweep_table import show
from atoll.sweep.trials import _shorten


def test_axes() -> None:
    axes = parse_axes(["local.lr=0.01,0.05", "seed=0..2,7"])
    assert axes == [Axis("local.lr", ("0.01", "0.05")), Axis("seed", ("0", "1", "2", "7"))]
    space = parse_space(["local.lr=0.001..0.1:log", "local.optimizer=sgd,adam"])
    assert space[0] == Interval("local.lr", 0.001, 0.1, is_whole=False, is_log=True)
    assert "abcdefg"[parse_part("2/3")] == "be"
    combined = around(parse_axes(["method.combine=mean,median", "seed=0..2"]))
    assert combined == [["method.combine=mean", "seed=0"], ["method.combine=median", "seed=0"]]


def test_goals() -> None:
    goals = Goal("worst_cluster_accuracy"), Goal("test_loss"), Goal("virtual_time", 0.8)
    assert [goal.rises for goal in goals] == [True, False, False]
    assert goals[2].title == "virtual_time to 80 %"
    assert Goal("client_updates", 0.5, "test_loss").title == "client_updates to test_loss 0.5"
    assert show(0.5, Goal("test_accuracy")) == "50.00 %"
    assert show(90.0, goals[2]) == "90 s"
    assert show(12345, Goal("bytes_up", 0.8)) == "12.35 kB"


def test_long_numbers_are_shortened() -> None:
    assert [_shorten(text) for text in ("0.012345678", "sgd", "20")] == ["0.01235", "sgd", "20"]
