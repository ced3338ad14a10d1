"""Sweeps without processes: what `--over` says, the runs it makes, and what their metrics come to."""

import itertools
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import InputError
from atoll.report.tables.formats import csv_table
from atoll.settings.experiment_file import make_runs, read_experiment
from atoll.support.errors import SettingWarning
from atoll.support.estimates import Estimate, estimate, estimate_share
from atoll.sweep import axes
from atoll.sweep import sweep_folder as folders
from atoll.sweep import sweep_table as table
from atoll.sweep.axes import Axis, Interval, parse_axes, parse_part, parse_space
from atoll.sweep.goal import Goal, make_goal
from atoll.sweep.sweep_plan import Member, check_members, make_members, require_effect


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("seed=0..3", ("0", "1", "2", "3")),
        ("seed=3..3", ("3",)),
        ("seed=0..1,5", ("0", "1", "5")),
        ("local.lr=0.01, 0.05", ("0.01", "0.05")),
        ("local.lr=1e-3,1e-2", ("1e-3", "1e-2")),
        ("network.grid=[2, 5],[5,2]", ("[2, 5]", "[5,2]")),
        ("local.optimizer=sgd,adam", ("sgd", "adam")),
        ("data.root=../here,../there", ("../here", "../there")),
        ('data.root="a,b",c', ('"a,b"', "c")),
        ("data.root=ann's,bob's", ("ann's", "bob's")),
        ("data.classes=['a,b', 'c'],['d']", ("['a,b', 'c']", "['d']")),
    ],
)
def test_values(text: str, values: tuple[str, ...]) -> None:
    (axis,) = parse_axes([text])
    assert axis.texts == values


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["local.lr"], "must have the form"),
        (["=1"], "must have the form"),
        (["local.=1"], "must have the form"),
        (["local.lr="], "must have the form"),
        (["local.lr=0.1,"], "has an empty value"),
        (["seed=4..0"], "is empty"),
        (["seed=0..1000000000000"], "at most 10,000"),
        (["seed=0..999", "rounds=1..11"], "11,000 combinations; at most 10,000"),
        (["local.lr=0.1..0.2"], "needs whole numbers"),
        (["local.lr=1..2:log"], "needs whole numbers"),
        (["local.lr=0.1,0.10"], "0.10 is repeated"),
        (["local.lr=1,1.0"], "1.0 is repeated"),
        (["seed=1..3,2"], "2 is repeated"),
        (["seed=1", "seed=2"], "is given twice"),
        (["label=a,b"], "names runs, which the sweep does itself"),
    ],
)
def test_bad_values(texts: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_axes(texts)


def test_space() -> None:
    assert parse_space(["local.lr=0.001..0.1:log", "local.steps=5..40", "local.proximal=0..0.5", "seed.x=a,b"]) == [
        Interval("local.lr", 0.001, 0.1, False, True),
        Interval("local.steps", 5, 40, True, False),
        Interval("local.proximal", 0, 0.5, False, False),
        Axis("seed.x", ("a", "b")),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seed=0..4", "a lucky seed"),
        ("local.lr=0.2..0.1", "is empty"),
        ("local.lr=0.1..0.1", "is empty"),
        ("local.lr=0..1:log", "must start above 0"),
    ],
)
def test_bad_space(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_space([text])


TABLE: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 6, "samples": 8},
    "runs": [{"label": "One", "method": {"name": "fedcluster"}}, {"label": "Two", "method": {"name": "fedavg"}}],
    "clustering": {"clusters": 2},
    "scales": {"small": {"rounds": 1}},
}


def test_every_run_with_every_combination() -> None:
    """Twin: the same settings given by `--set`."""
    members = make_members(TABLE, parse_axes(["local.lr=0.1,0.2", "seed=4..6"]), "small", ["local.steps=3"])
    assert len(members) == 2 * 2 * 3
    assert [member.name for member in members[:3]] == ["one,lr=0.1,seed=4", "two,lr=0.1,seed=4", "one,lr=0.1,seed=5"]
    expected = [
        settings.model_copy(update={"label": f"{settings.label}, lr = {lr}, seed {seed}"})
        for lr in ("0.1", "0.2")
        for seed in (4, 5, 6)
        for settings in make_runs(TABLE, "small", ["local.steps=3", f"local.lr={lr}", f"seed={seed}"])
    ]
    assert [member.settings for member in members] == expected
    assert {member.setting for member in members if member.values["local.lr"] == 0.1 and member.run == "One"} == {
        members[0].setting
    }


def test_only_some_runs() -> None:
    members = make_members(TABLE, parse_axes(["seed=0..1"]), only=["Two"])
    assert [(member.name, member.run) for member in members] == [("seed=0", ""), ("seed=1", "")]
    assert {member.settings.method.name for member in members} == {"fedavg"}


def test_a_parameter_of_one_function_is_left_out_of_runs_of_the_others() -> None:
    axes = parse_axes(["method.combine=median,krum,multi-krum"])
    members = make_members({}, axes, changes=["method.byzantine=1"])
    assert [member.settings.method.get("byzantine") for member in members] == [None, 1, 1]
    with pytest.raises(InputError, match=r"byzantine: is taken by .*'krum'.*, not by method\.combine = 'mean'"):
        make_members({}, parse_axes(["method.combine=median,mean"]), changes=["method.byzantine=1"])
    with pytest.raises(InputError, match=r"byzantine: is taken by .*'krum'.*, not by method\.combine = 'median'"):
        make_members({}, [*axes, *parse_axes(["method.byzantine=1,2"])])


def test_two_runs_of_the_same_folder_are_refused() -> None:
    with pytest.raises(
        InputError, match="have the same folder name 'root=a-b'; sweep over each in a folder of its own, with --out"
    ):
        make_members({}, parse_axes(["data.root=a/b,a-b"]))


def test_folders_with_letters_of_several_bytes_are_not_too_long(tmp_path: Path) -> None:
    """File systems count bytes, of which a letter may have four."""
    table = {"runs": [{"label": "\U00020000" * 200}, {"label": "b"}]}
    for member in make_members(table, parse_axes([f"data.root={'界' * 60},a"])):
        (tmp_path / f".{member.name}.json.gz.part").mkdir()


def test_long_values_are_told_apart_or_refused() -> None:
    first, second = (make_members({}, parse_axes([f"data.root={'x' * 300}{end},y"])) for end in ("a", "b"))
    assert len(first[0].name) < 255
    assert first[0].name == second[0].name
    with pytest.raises(InputError, match="have the same folder name"):
        make_members({}, parse_axes([f"data.root={'x' * 300}a,{'x' * 300}b"]))


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ("local.lrr=1,2", "local.lrr: unknown, did you mean 'lr'"),
        ("nothing=1,2", "nothing: unknown"),
        ("local.lr=0.1,-1", "local.lr = -1: must be"),
        ("local.steps=0.5,1", "local.steps = 0.5: must be a whole number"),
    ],
)
def test_bad_settings_are_told_as_ever(over: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        make_members({}, parse_axes([over]))


def test_what_a_run_cannot_do_is_told_with_its_name() -> None:
    members = make_members(TABLE, parse_axes(["clustering.clusters=2,99", "seed=0..1"]))
    with pytest.raises(InputError, match=r"one,clusters=99,seed=0: clustering.clusters = 99: must be at most"):
        check_members(members)


# The table ------------------------------------------------------------------------------------------------------------


def test_estimate_by_hand() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.n, found.mean) == (5, 3.0)
    assert found.std == pytest.approx(math.sqrt(2.5))
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)  # the 97.5 % point of Student's t with 4 degrees of freedom
    assert (found.low, found.high) == (pytest.approx(3 - half), pytest.approx(3 + half))
    assert estimate([7.0]) == Estimate(1, 7.0, None, None, None)


def test_the_interval_holds_the_mean_in_95_of_100_samples() -> None:
    rng = np.random.default_rng(0)
    found = [estimate(list(rng.normal(3.0, 2.0, 4))) for _ in range(4000)]
    covered = np.mean([one.low is not None and one.high is not None and one.low <= 3 <= one.high for one in found])
    assert covered == pytest.approx(0.95, abs=0.012)  # three and a half standard errors


def write_run(folder: Path, accuracies: Sequence[float | None], finished: bool = True) -> None:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('name = "a"\n')
    rows = [
        {"event": i, "round": i, "virtual_time": 60.0 * i, "test_accuracy": a, "test_loss": 2.0 - i}
        for i, a in enumerate(accuracies)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / "summary.json").write_text("{}")


def test_the_table(tmp_path: Path) -> None:
    members = make_members({}, parse_axes(["local.lr=0.1,0.2,0.3", "seed=0..2"]))
    curves = {
        ("0.1", 0): [0.1, 0.9, 0.5],
        ("0.1", 1): [0.1, 0.7, 0.7],
        ("0.2", 0): [0.1, 0.65, 0.65],
        ("0.2", 1): [0.1, 0.75, 0.75],
        ("0.2", 2): [0.1, 0.7, 0.7],
    }
    for (lr, seed), curve in curves.items():
        write_run(tmp_path / f"lr={lr},seed={seed}", curve)
    write_run(tmp_path / "lr=0.1,seed=2", [0.1, 1.0], finished=False)
    lines = table.sum_up(tmp_path, members, Goal("test_accuracy"))
    assert [line.values for line in lines] == [{"local.lr": lr} for lr in (0.1, 0.2, 0.3)]
    first, second, third = lines
    assert first.last is not None
    assert first.best is not None
    assert (first.last.n, first.last.mean, first.last.std) == (2, pytest.approx(0.6), pytest.approx(0.02**0.5))
    assert (first.best.mean, first.seeds) == (pytest.approx(0.8), 3)
    assert second.last is not None
    assert (second.last.n, second.last.mean, second.last.std) == (3, pytest.approx(0.7), pytest.approx(0.05))
    assert (third.last, third.best) == (None, None)
    assert [(line.is_best_last, line.is_best) for line in lines] == [(False, False), (True, True), (False, False)]
    text = table.table_of(lines, Goal("test_accuracy")).as_markdown()
    assert "70.00 ± 5.00 %" in text
    assert "2 of 3" in text
    assert csv_table(table.as_dicts(lines, Goal("test_accuracy"))).count("\n") == 4
    json.dumps(table.as_dicts(lines, Goal("test_accuracy")), allow_nan=False)


def test_a_setting_of_which_a_seed_failed_is_not_best(tmp_path: Path) -> None:
    """Else the learning rate of whose seeds one survived, by luck, would be recommended."""
    members = make_members({}, parse_axes(["local.lr=0.1,9", "seed=0..1"]))
    for seed in (0, 1):
        write_run(tmp_path / f"lr=0.1,seed={seed}", [0.1, 0.5])
    write_run(tmp_path / "lr=9,seed=0", [0.1, 0.8])
    write_run(tmp_path / "lr=9,seed=1", [0.1], finished=False)
    sound, lucky = table.sum_up(tmp_path, members, Goal("test_accuracy"))
    assert lucky.last is not None
    assert (lucky.last.mean, lucky.is_best_last, lucky.is_best) == (0.8, False, False)
    assert (sound.is_best_last, sound.is_best) == (True, True)


def test_of_a_loss_the_least_is_best(tmp_path: Path) -> None:
    members = make_members({}, parse_axes(["local.lr=0.1,0.2"]))
    write_run(tmp_path / "lr=0.1", [0.1, 0.2])
    write_run(tmp_path / "lr=0.2", [0.1, 0.2, 0.3])
    lines = table.sum_up(tmp_path, members, Goal("test_loss"))
    assert [line.last.mean for line in lines if line.last] == [1.0, 0.0]
    assert [line.is_best_last for line in lines] == [False, True]
    assert [(line.best.mean, line.is_best) for line in lines if line.best] == [(1.0, False), (0.0, True)]


def test_a_metric_that_was_not_recorded_leaves_dashes(tmp_path: Path) -> None:
    members = make_members({}, parse_axes(["local.lr=0.1,0.2"]))
    write_run(tmp_path / "lr=0.1", [None, None])
    for metric in ("test_accuracy", "ari"):
        with pytest.warns(SettingWarning, match=rf"left out: .*lr=0\.1: its rows have no {metric}"):
            lines = table.sum_up(tmp_path, members, Goal(metric))
        assert [line.last for line in lines] == [None, None]


def test_a_finished_run_that_does_not_end_with_the_metric_is_told(tmp_path: Path) -> None:
    members = make_members({}, parse_axes(["seed=0..1"]))
    write_run(tmp_path / "seed=0", [0.1, 0.6])
    write_run(tmp_path / "seed=1", [0.1, None])
    with pytest.warns(SettingWarning, match=r"left out: .*seed=1: its last row has no test_accuracy"):
        (line,) = table.sum_up(tmp_path, members, Goal("test_accuracy"))
    assert line.finished == 1


def test_unknown_metrics_are_refused() -> None:
    with pytest.raises(InputError, match="--metric test_acuracy: unknown, did you mean 'test_accuracy'"):
        make_goal("test_acuracy", None, "test_accuracy")


@pytest.mark.parametrize(
    ("metric", "target", "of", "told"),
    [
        ("virtual_time", None, "test_accuracy", "--metric virtual_time: is a cost, compared once a test_accuracy"),
        ("bytes_up", None, "test_loss", "once a test_loss is reached; add --target, such as --target 0.1"),
        ("test_accuracy", 0.8, "test_accuracy", "--target 0.8: needs a cost to compare"),
        (None, 1.5, "test_accuracy", "--target 1.5: must be greater than 0 and at most 1"),
        (None, float("nan"), "test_loss", "--target nan: must be greater than 0"),
    ],
)
def test_a_cost_needs_a_target_and_a_target_a_cost(
    metric: str | None, target: float | None, of: str, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        make_goal(metric, target, of)


def test_a_target_alone_compares_virtual_time() -> None:
    assert make_goal(None, 0.8, "test_accuracy") == Goal("virtual_time", 0.8)
    assert make_goal(None, None, "test_loss") == Goal("test_loss", None, "test_loss")


def test_virtual_time_is_the_least_to_a_target(tmp_path: Path) -> None:
    members = make_members({}, parse_axes(["local.lr=0.1,0.2,0.3", "seed=0..1"]))
    curves = {"0.1": [[0.1, 0.6, 0.8], [0.1, 0.7, 0.9]], "0.2": [[0.1, 0.2, 0.7], [0.1, 0.2, 0.8]]}
    curves["0.3"] = [[0.1, 0.9, 0.9], [0.1, 0.2, 0.3]]  # the seed that gets there is not all
    for lr, both in curves.items():
        for seed, curve in enumerate(both):
            write_run(tmp_path / f"lr={lr},seed={seed}", curve)
    goal = Goal("virtual_time", 0.6)
    first, second, third = table.sum_up(tmp_path, members, goal)
    assert first.last is not None
    assert second.last is not None
    assert (first.last.mean, second.last.mean, third.last, third.missed) == (60.0, 120.0, None, 1)
    assert [line.is_best_last for line in (first, second, third)] == [True, False, False]
    text = table.table_of([first, second, third], goal).as_markdown()
    assert "virtual_time to 60 %" in text
    assert "| 2 of 2 |             60 ± 0 s |" in text
    assert "missed by 1 of 2" in text
    assert "Best test" not in text
    told = table.as_dicts([first, second, third], goal)
    assert [(line["target"], line["missed"]) for line in told] == [(0.6, 0), (0.6, 0), (0.6, 1)]


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("client_updates", ["12,442", "12,440 ± 141", "11,169 to 13,711"]),
        ("bytes_up", ["12.44 kB", "12.44 ± 0.14 kB", "11.17 to 13.71 kB"]),
    ],
)
def test_large_costs_are_written_out(metric: str, told: list[str]) -> None:
    """As 1.244e+04 ± 1.4e+02 they could be told apart neither from each other nor at a glance."""
    goal, found = Goal(metric, 0.6), estimate([12_340, 12_540])
    (cells,) = table.table_of([table.Line("", {}, 2, 2, found, found)], goal).cells[1:]
    assert [table.show(12_442, goal), *cells[1:3]] == told


def test_the_interval_of_an_accuracy_stays_in_0_to_1() -> None:
    for values in ([0.99, 0.999, 0.95], [0.0, 0.0, 0.01], [0.0, 1.0]):
        plain, share = estimate(values), estimate_share(values)
        assert (share.n, share.mean, share.std) == (plain.n, plain.mean, plain.std)
        assert plain.low is not None
        assert plain.high is not None
        assert plain.low < 0 or plain.high > 1
        assert share.low is not None
        assert share.high is not None
        assert 0 <= share.low <= share.mean <= share.high <= 1
    inside, plain = estimate_share([0.5, 0.51, 0.52]), estimate([0.5, 0.51, 0.52])
    assert (inside.low, inside.high) == (pytest.approx(plain.low, abs=1e-4), pytest.approx(plain.high, abs=1e-4))
    assert estimate_share([1.0, 1.0]).high == 1.0
    assert estimate_share([0.7]).low is None
    assert estimate_share([0.5, 1.5]) == estimate([0.5, 1.5])  # no shares


def test_equal_values_do_not_deviate_by_rounding() -> None:
    assert np.std([0.1, 0.1, 0.1]) > 0
    assert estimate([0.1, 0.1, 0.1]).std == 0.0


def test_the_interval_of_an_accuracy_holds_the_mean_near_the_edge() -> None:
    """Accuracies of mean 0.97 over three seeds: 945 of 1,000 intervals hold it, of Student's t 925."""
    draws = np.random.default_rng(0).beta(97, 3, (2000, 3))
    found = [estimate_share(list(draw)) for draw in draws]
    covered = np.mean([one.low is not None and one.high is not None and one.low <= 0.97 <= one.high for one in found])
    assert covered == pytest.approx(0.95, abs=0.02)


def test_the_table_says_which_interval(tmp_path: Path) -> None:
    assert "by Wilson's score" in table.note_of(Goal("test_accuracy"))
    assert "by Student's t." in table.note_of(Goal("test_loss"))
    members = make_members({}, parse_axes(["seed=0..2"]))
    for seed, last in enumerate((0.99, 0.999, 0.95)):
        write_run(tmp_path / f"seed={seed}", [0.1, last])
    assert (
        "79.40 to 99.83 %"
        in table.table_of(table.sum_up(tmp_path, members, Goal("test_accuracy")), Goal("test_accuracy")).as_markdown()
    )


# What changes nothing -------------------------------------------------------------------------------------------------

TWO = {"runs": [{"label": "A"}, {"label": "B", "method": {"name": "fedavg"}}]}


@pytest.mark.parametrize(
    ("experiment", "over", "told"),
    [
        ({"method": {"name": "fedavg"}}, "clustering.clusters=2,5", "'fedavg' uses no clustering"),
        ({}, "run.workers=1,2", "changes no result of a run, only its wall time"),
        (TWO, "run.checkpoint_every=1,2", "changes no result of a run"),
        ({"data": {"dataset": "mnist"}}, "data.root=a,b", "changes no result of a run"),
        ({}, "data.root=a,b", "changes no result of a run"),  # of digits, which read no files
        ({"local": {"epochs": 1}}, "local.steps=5,10", "changes nothing in any run, since local.epochs is set"),
    ],
)
def test_a_sweep_over_what_changes_nothing_is_refused(experiment: dict[str, Any], over: str, told: str) -> None:
    members = make_members(experiment, parse_axes([over, "seed=0..1"]))
    with pytest.raises(InputError, match=rf"^--over {over.partition('=')[0]}: .*{told}"):
        require_effect(["seed", over.partition("=")[0]], members, Goal("test_accuracy"))


def test_conditions_to_stop_may_be_compared() -> None:
    members = make_members({}, parse_axes(['run.stop_at="test_loss patience 3","test_loss patience 5"']))
    assert require_effect(["run.stop_at"], members, Goal("test_accuracy")) == []


def test_what_changes_some_runs_only_is_told() -> None:
    members = make_members(TWO, parse_axes(["clustering.clusters=2,5"]))
    (told,) = require_effect(["clustering.clusters"], members, Goal("test_accuracy"))
    assert told == "--over clustering.clusters: changes nothing in B, so those runs will be identical"


@pytest.mark.parametrize(
    ("over", "goal"),
    [
        ("local.lr=0.1,0.2", Goal("test_loss")),
        ("local.steps=5,10", Goal("test_loss")),
        ("clustering.clusters=2,5", Goal("test_accuracy")),
        ("run.workers=1,2", Goal("wall_time", 0.8)),
        ("run.executor=serial,stacked", Goal("test_accuracy")),
        ("run.workers=1", Goal("test_accuracy")),
    ],
)
def test_a_sweep_over_what_changes_something_goes_on(over: str, goal: Goal) -> None:
    assert require_effect([over.partition("=")[0]], make_members({}, parse_axes([over])), goal) == []


@pytest.mark.parametrize("value", [1, 0.5, True, "text", [1, "a"], {"a": 1, "b": "c"}, {"k": [1, 2]}])
def test_a_value_is_shown_as_it_is_read(value: Any) -> None:
    assert axes.parse_value("model.options", table.show_value(value)) == value


def test_a_sweep_over_tables_goes_on() -> None:
    table = {"data": {"dataset": "table", "target": "y"}}
    assert require_effect(["data.root"], make_members(table, parse_axes(["data.root=a.csv,b.csv"])), Goal("x")) == []


@pytest.mark.parametrize("run", [{"heterogeneity": True}, {"probes": ["heterogeneity"]}])
def test_clusters_may_be_swept_over_for_a_probe_alone(run: dict[str, Any]) -> None:
    """H_device and H_cluster are measured between and within clusters, whatever trains."""
    members = make_members({"method": {"name": "fedavg"}, "run": run}, parse_axes(["clustering.clusters=2,5"]))
    assert require_effect(["clustering.clusters"], members, Goal("h_cluster")) == []


# The folder -----------------------------------------------------------------------------------------------------------


def note_of(members: Sequence[Member]) -> dict[str, Any]:
    return {"kind": "grid", "runs": {member.name: {} for member in members}}


def test_a_sweep_may_grow_but_not_change(tmp_path: Path) -> None:
    few, more = (make_members({}, parse_axes([f"seed=0..{last}"])) for last in (1, 3))
    assert not folders.require_folder(tmp_path / "new", note_of(few), resume=False)
    with folders.claimed(tmp_path / "new", note_of(few)):
        pass
    with pytest.raises(InputError, match="add --resume"):
        folders.require_folder(tmp_path / "new", note_of(few), resume=False)
    assert folders.require_folder(tmp_path / "new", note_of(more), resume=True)
    with folders.claimed(tmp_path / "new", note_of(more)):
        pass
    with pytest.raises(InputError, match="another sweep, with 2 runs that this one lacks, such as seed=2"):
        folders.require_folder(tmp_path / "new", note_of(few), resume=True)
    with pytest.raises(InputError, match="holds a grid, not a search"):
        folders.require_folder(tmp_path / "new", {**note_of(few), "kind": "search"}, resume=True)


def test_a_search_is_resumed_with_the_condition_to_stop_that_it_began_with(tmp_path: Path) -> None:
    """Its trials are over, and would have ended elsewhere."""
    note: dict[str, Any] = {
        "kind": "search",
        "over": {},
        "metric": "",
        "target": None,
        "settings": "",
        "run.stop_at": None,
        "runs": {},
    }
    with folders.claimed(tmp_path, note):
        pass
    assert folders.require_folder(tmp_path, note, resume=True)
    with pytest.raises(InputError, match=r"another search, which differs in run\.stop_at; give the same options"):
        folders.require_folder(tmp_path, {**note, "run.stop_at": "test_loss <= 1"}, resume=True)


def test_a_run_that_another_condition_stopped_is_not_over(tmp_path: Path) -> None:
    """Only what `run.stop_at` ended goes on without it, as by `atoll run --resume`."""
    (plain,), (stopping,) = (make_runs({}, changes=each) for each in ((), ["run.stop_at=test_loss <= 1"]))
    for name, summary in (("early", {"stopped": "in round 1"}), ("whole", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text('[run]\nstop_at = "test_loss <= 1"\n')
        assert not folders.is_over(tmp_path / name, stopping)
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    assert [folders.is_over(tmp_path / name, plain) for name in ("early", "whole")] == [False, True]
    assert [folders.is_over(tmp_path / name, stopping) for name in ("early", "whole")] == [True, True]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("other.txt", "", "is not empty and holds no sweep"),
        ("config.toml", "", "is not empty and holds no sweep"),
        ("sweep.json", "{", "cannot be read"),
        ("sweep.json", "[]", "cannot be read"),
        ("sweep.json", '{"runs": []}', "cannot be read"),
    ],
)
def test_other_folders_are_refused(name: str, content: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=told):
        folders.require_folder(tmp_path, note_of([]), resume=True)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="is a file, or lies below one"):
            folders.require_folder(path, note_of([]), resume=False)


def test_what_a_killed_sweep_began_with_is_taken_over(tmp_path: Path) -> None:
    for name in (".lock", "experiment.json", ".sweep.json.part"):
        (tmp_path / name).write_text("")
    assert not folders.require_folder(tmp_path, note_of([]), resume=True)


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        folders.claimed(tmp_path, note_of([])),
        pytest.raises(InputError, match="is in use by process"),
        folders.claimed(tmp_path, note_of([])),
    ):
        pass


def test_a_recipe_can_be_swept() -> None:
    members = make_members(read_experiment("quickstart"), parse_axes(["seed=0..1"]))
    assert [member.name for member in members][:2] == ["fedcluster-m-10,seed=0", "fedavg,seed=0"]
    assert axes.file_part("../up") == "..-up"
    names = ["local.lr", "data.options.a", "model.options.a"]
    assert axes.short_names(names) == ["lr", *names[1:]]
    assert [axes.file_part(text) for text in ("[2, 3]", "-0.5", "own:rule")] == ["2-3", "-0.5", "own-rule"]


def test_processes_that_share_a_folder_agree_on_it(tmp_path: Path) -> None:
    """Eight begin it at once; one that sweeps over something else is refused."""
    note = {"kind": "grid", "runs": {"lr=0.1": {"local.lr": 0.1}}, "over": {"local.lr": ("0.1",)}}

    def join(_: int) -> None:
        with folders.shared(tmp_path / "s", note):
            pass

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(join, range(8))) == [None] * 8
    assert folders.read_note(tmp_path / "s") == {**note, "over": {"local.lr": ["0.1"]}}
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["experiment.json", "sweep.json"]
    with pytest.raises(InputError, match="holds another sweep"), folders.shared(tmp_path / "s", {**note, "runs": {}}):
        pass


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 20])
def test_parts_have_every_run_once_and_about_as_many(parts: int) -> None:
    runs = [list(range(13))[parse_part(f"{number}/{parts}")] for number in range(1, parts + 1)]
    assert sorted(itertools.chain(*runs)) == list(range(13))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1
