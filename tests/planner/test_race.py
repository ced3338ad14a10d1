"""Races: who is out when, that they go on after a stop, and what the table and the sentences say."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from atoll import InputError, RunError, make_runs
from atoll.planner import entrants as entrants_module
from atoll.planner import plan_table as table
from atoll.planner import race as race_module
from atoll.planner.budget import PlanBudget
from atoll.planner.entrants import GIVES_UP, Entrant, cost_of, level_of, rows_of
from atoll.planner.plan_folder import require_folder, write_note
from atoll.planner.plan_page import _plan
from atoll.planner.plan_scores import Hop
from atoll.planner.planning import Field, sort_out
from atoll.planner.pool import ProcessPool
from atoll.planner.race import FINALISTS, Race, _racing, carry_out, lay_out
from atoll.planner.scoring import Scored
from atoll.report.reading.groups import group_runs
from atoll.report.reading.runs import Run, find_runs
from atoll.sweep.axes import parse_axes
from tests.planner.test_schedules import scored, settings_of

TABLE: dict[str, Any] = {
    "rounds": 200,
    "data": {"dataset": "digits", "partition": "one-label", "clients": 10},
    "model": {"name": "linear"},
    "local": {"lr": 0.1, "steps": 1, "batch_size": 16},
    "clustering": {"method": "comaw", "clusters": 4},
    "network": {"seconds_per_sample": [0.01, 0.03], "bandwidth_hz": 3e5},
    "method": {"name": "hierarchical", "intra_rounds": 2},
    "run": {"executor": "serial", "evaluate_samples": 100},
}
OVER = ["clustering.method=comaw,dataw", "method.intra_rounds=2"]


def field_of(budget: PlanBudget) -> Field:
    (settings,) = make_runs(TABLE)
    return sort_out(settings, parse_axes(OVER), budget)


def entrants_of(field: Field, out: Path) -> list[Entrant]:
    return [Entrant(plan, out / str(number)) for number, plan in enumerate(field.plans)]


def rows_below(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of a race, without the time that they took here."""
    files = {str(path.relative_to(out)): path.read_text() for path in sorted(out.rglob("metrics.jsonl"))}
    rows = {name: [json.loads(line) for line in text.splitlines()] for name, text in files.items()}
    return {
        name: [{k: v for k, v in r.items() if k not in ("wall_time", "crc32")} for r in rs] for name, rs in rows.items()
    }


def test_each_rung_has_a_third_of_the_plans_for_three_times_as_long(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    plans = [scored(f"censyn,{n}", settings, merges=90, seconds=900.0, client_updates=1800) for n in range(18)]
    race = lay_out(plans, seeds=2)
    assert [plans for _, plans in race.rungs] == [18, 6, 2]
    assert [until for until, _ in race.rungs] == pytest.approx([20.0, 60.0, 900.0])
    assert race.updates == pytest.approx(2.0 * (18 * 20 + 6 * 40 + 2 * 840 + FINALISTS * 900))
    assert [plans for _, plans in lay_out(plans[:10], seeds=1).rungs] == [10, 4, 2]  # a third, rounded up


def test_a_plan_that_hardly_merges_holds_nobody_up(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    plans: list[Scored] = [scored(f"censyn,{n}", settings, merges=90, seconds=900.0) for n in range(5)]
    race = lay_out([*plans, scored("censyn,slow", settings, merges=1, seconds=900.0)], seeds=1)
    assert race.rungs[0] == (pytest.approx(20.0), 6)


def test_the_first_rung_is_as_long_as_the_slowest_needs_for_whole_merges(tmp_path: Path) -> None:
    """Where all wait for each other nothing is gained before the end: a plan with events of 15 s has two by 30 s."""
    settings = settings_of(tmp_path)
    plans: list[Scored] = [scored(f"cenasy,{n}", settings, merges=90, seconds=900.0) for n in range(5)]
    race = lay_out([*plans, scored("censyn,0", settings, merges=60, seconds=900.0)], seeds=1)
    assert 30.0 <= race.rungs[0][0] < 30.1


def race_in(out: Path, field: Field, budget: PlanBudget, stop_after: float = math.inf) -> list[Entrant]:
    """Carry a race out with two seeds; be interrupted after so many events."""
    asked = 0

    def is_over() -> bool:
        nonlocal asked
        asked += 1
        return asked > stop_after

    return carry_out(lay_out(field.plans, 2), entrants_of(field, out), budget, field.pool, lambda _: None, is_over)


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Field, PlanBudget, list[Entrant]]:
    out, budget = tmp_path_factory.mktemp("race"), PlanBudget(seconds=120.0, target=0.5)
    field = field_of(budget)
    return out, field, budget, race_in(out, field, budget)


@pytest.mark.more
def test_finalists_that_miss_the_target_are_compared_by_all_their_seeds(tmp_path: Path) -> None:
    budget = PlanBudget(seconds=30.0, target=0.99)
    field = field_of(budget)
    ranked = race_in(tmp_path, field, budget)[:FINALISTS]
    means = [sum(level_of(each, seed, 30.0, budget) for seed in range(2)) / 2 for each in ranked]
    assert [each.level for each in ranked] == pytest.approx(means)
    assert means == sorted(means, reverse=True)
    assert table.judged(ranked[0], budget) == f"missed by 2 of 2: {100 * means[0]:.1f} %"


def test_a_finalist_goes_on_where_the_other_is_late_with_another_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first meets the target after 100 s and never, the second after 120 s with both seeds."""
    met = {("0", 0): 100.0, ("0", 1): math.inf, ("1", 0): 120.0, ("1", 1): 120.0}
    trained = dict.fromkeys(met, 0.0)

    def stub(entrant: Entrant, seed: int = 0) -> Run:
        run = entrant.folder.name, seed
        seconds = np.arange(0.0, trained[run] + 1, 10.0)
        rows = {"virtual_time": seconds, "test_accuracy": np.where(seconds >= met[run], 0.9, 0.1)}
        return cast("Run", SimpleNamespace(folder=entrant.folder, rows=rows, bytes_sent=seconds))

    def train(_: object, entrant: Entrant, seed: int, until: float) -> None:
        run = entrant.folder.name, seed
        trained[run] = max(trained[run], min(until, met[run]))

    for module in (entrants_module, race_module):
        monkeypatch.setattr(module, "rows_of", stub)
    monkeypatch.setattr(race_module._Track, "train", train)
    plans = [scored(f"censyn,{n}", settings_of(tmp_path), seconds=900.0) for n in range(2)]
    entrants = [Entrant(plan, tmp_path / str(n)) for n, plan in enumerate(plans)]
    budget = PlanBudget(target=0.5)
    ranked = carry_out(lay_out(plans, 2), entrants, budget, ProcessPool(), lambda _: None, lambda: False)
    assert [(each.folder.name, each.costs, each.is_behind) for each in ranked] == [
        ("1", [120.0, 120.0], False),
        ("0", [100.0, math.inf], False),
    ]


def test_who_is_out_later_is_ahead_of_who_is_out_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten plans, whose first two are best at first, but out at the second rung."""
    trained = dict.fromkeys(map(str, range(10)), 0.0)

    def stub(entrant: Entrant, seed: int = 0) -> Run:
        name = entrant.folder.name
        seconds = np.arange(0.0, trained[name] + 1, 10.0)
        values = np.where(seconds > 30.0, 0.0, 0.9) if name in "01" else np.full(len(seconds), 0.1 + int(name) / 20)
        return cast(
            "Run", SimpleNamespace(folder=entrant.folder, rows={"virtual_time": seconds, "test_accuracy": values})
        )

    def train(_: object, entrant: Entrant, seed: int, until: float) -> None:
        trained[entrant.folder.name] = until

    for module in (entrants_module, race_module):
        monkeypatch.setattr(module, "rows_of", stub)
    monkeypatch.setattr(race_module._Track, "train", train)
    plans = [scored(f"censyn,{n}", settings_of(tmp_path), merges=90, seconds=900.0) for n in range(10)]
    entrants = [Entrant(plan, tmp_path / str(n)) for n, plan in enumerate(plans)]
    order = carry_out(lay_out(plans, 1), entrants, PlanBudget(), ProcessPool(), lambda _: None, lambda: False)
    assert [each.folder.name for each in order] == ["9", "8", "0", "1", "7", "6", "5", "4", "3", "2"]
    assert [each.left_at for each in order] == [None] * 2 + [60.0] * 2 + [20.0] * 6


@pytest.mark.parametrize("budget", [PlanBudget(), PlanBudget(is_regression=True), PlanBudget(target=0.9)])
def test_plans_without_a_value_come_after_those_with_one(budget: PlanBudget, tmp_path: Path) -> None:
    """Such as those whose metric was never recorded; NaN is neither more nor less than a number."""
    plan = scored("censyn,a", settings_of(tmp_path), merges=90, seconds=900.0)
    missed = [math.inf, math.inf]
    values = [([0.5, 0.5], 0.3), (missed, math.nan), ([math.nan, 0.9], math.nan), ([], math.nan)]
    known, *unknown = (Entrant(plan, tmp_path, costs=costs, level=level) for costs, level in values)
    for each in unknown:
        for order in ([known, each], [each, known]):
            assert min(order, key=lambda entrant: cost_of(entrant, budget)) is known
            assert max(order, key=lambda entrant: cost_of(entrant, budget)) is each
    if budget.target is not None:  # of those that missed it, the one with the better level
        near, far = (replace(known, costs=missed, level=level) for level in (0.7, 0.2))
        assert sorted([unknown[0], far, near], key=lambda entrant: cost_of(entrant, budget)) == [near, far, unknown[0]]


def test_stopping_rules_of_the_file_end_no_race(tmp_path: Path) -> None:
    """A rule would end plans at different times, and may not fit the race's few evaluations."""
    settings = make_runs(TABLE, changes=["run.stop_at=train_loss <= 0.1"])[0]
    plan = scored("censyn,a", settings, merges=90, seconds=900.0)
    assert _racing(plan, 0).run.stop_at is None


@pytest.mark.more
def test_a_race_ends_with_the_finalists_first(raced: tuple[Path, Field, PlanBudget, list[Entrant]]) -> None:
    _, field, budget, ranked = raced
    assert len(ranked) == len(field.plans) > FINALISTS
    first, second, *others = ranked
    assert [len(first.costs), len(second.costs)] == [2, 2]
    assert sum(first.costs) <= sum(second.costs)
    assert second.is_behind
    stopped = rows_of(second)
    assert stopped is not None
    assert GIVES_UP * first.costs[0] <= stopped.rows["virtual_time"][-1] < 120.0
    assert all(each.left_at is not None and each.costs == [] for each in others)
    for seed in range(2):
        run = rows_of(first, seed)
        assert run is not None
        met = int((run.rows[budget.column_of()] >= 0.5).argmax())
        assert first.costs[seed] == run.rows["virtual_time"][met]
        assert first.sizes[seed] == run.rows["bytes_up"][met] + run.rows["bytes_down"][met]


@pytest.mark.more
def test_each_seed_of_a_finalist_is_another_run(raced: tuple[Path, Field, PlanBudget, list[Entrant]]) -> None:
    runs = [rows_of(raced[3][0], seed) for seed in range(2)]
    one, other = (run.rows["train_loss"].tolist() for run in runs if run is not None)
    assert not set(one[1:]) & set(other[1:])


@pytest.mark.more
def test_a_race_that_was_stopped_goes_on_to_the_same_end(
    raced: tuple[Path, Field, PlanBudget, list[Entrant]], tmp_path: Path
) -> None:
    out, field, budget, ranked = raced
    for stop_after in (5, 40):
        with pytest.raises(KeyboardInterrupt):
            race_in(tmp_path, field, budget, stop_after)
    again = race_in(tmp_path, field, budget)
    assert [each.name for each in again] == [each.name for each in ranked]
    assert [each.costs for each in again] == [each.costs for each in ranked]
    assert rows_below(tmp_path) == rows_below(out)


def test_a_finished_race_trains_nothing(raced: tuple[Path, Field, PlanBudget, list[Entrant]]) -> None:
    out, field, budget, ranked = raced
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    assert [each.costs for each in race_in(out, field, budget)] == [each.costs for each in ranked]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")} == before


def test_the_table_and_the_sentences(raced: tuple[Path, Field, PlanBudget, list[Entrant]]) -> None:
    _, _, budget, ranked = raced
    made = table.table_of(ranked, budget)
    header, *lines = made.cells
    assert header[:3] == ["", "plan", "to 50.0 %"]
    assert made.texts == 2
    assert lines[0][1] == table.in_words(ranked[0].name)
    assert lines[-1][2].startswith("out at ")
    said = table.why(ranked, budget)
    assert said.startswith(f"{table.in_words(ranked[0].name)} is first: 50.0 % after ")
    assert f"{table.in_words(ranked[1].name)}, the next, was stopped when it could no longer be first." in said
    assert lines[1][2].startswith("behind: ")
    near = replace(ranked[1], is_behind=False, costs=[1.05 * seconds for seconds in ranked[0].costs])
    assert f"{table.in_words(near.name)}, the next, has " in table.why([ranked[0], near], budget)
    missed = replace(near, costs=[math.inf, math.inf])
    assert f"{table.in_words(near.name)}, the next, missed the target." in table.why([ranked[0], missed], budget)
    missed.costs[1] = 80.0
    assert ", the next, missed the target with some seeds." in table.why([ranked[0], missed], budget)
    told = table.as_dicts(ranked, budget)
    assert json.loads(json.dumps(told, allow_nan=False))[0]["place"] == 1
    assert told[0]["seeds"] == ranked[0].costs


@pytest.mark.parametrize(
    ("theirs", "is_sure"), [([12.0, 52.1, 92.05], True), ([12.0, 40.0, 95.0], False), ([10.0, 50.0, 90.0], False)]
)
def test_two_plans_are_compared_seed_by_seed(theirs: list[float], is_sure: bool, tmp_path: Path) -> None:
    """Seeds differ in data, network and model far more than the plans do: their own intervals overlap in all cases."""
    plans = [scored(f"censyn,{n}", settings_of(tmp_path)) for n in range(2)]
    costs = ([10.0, 50.0, 90.0], theirs)
    entrants = [Entrant(plan, tmp_path, costs=each) for plan, each in zip(plans, costs, strict=True)]
    told = table.why(entrants, PlanBudget(target=0.5))
    assert ("Seed by seed, the difference is within chance" in told) is not is_sure
    for each in entrants:
        del each.costs[1:]
    assert "One seed proves nothing: --seeds 3 gives intervals." in table.why(entrants, PlanBudget(target=0.5))


def test_large_numbers_are_written_out(tmp_path: Path) -> None:
    """A day has thousands of merges: 1.2e+04 and 1.2e+04 would be told apart no more."""
    settings = settings_of(tmp_path)
    one, other = (scored(f"censyn,{n}", settings, merges=n, steps=2 * n) for n in (12_440, 11_160))
    hops = (Hop("client to server", 80_390_000_000, 0),)
    plans = [replace(plan, score=replace(plan.score, hops=hops, joules=2.5e7)) for plan in (one, other)]
    assert table.score_table(plans).cells[1][1:3] == ["12,440", "24,880"]
    entrants = [Entrant(plan, tmp_path, costs=[seconds]) for plan, seconds in zip(plans, (60.0, 70.0), strict=True)]
    budget = PlanBudget(target=0.5)
    told = table.why(entrants, budget)
    assert "more merges per cluster (12,440 to 11,160) and more local steps per client (24,880 to 22,320)" in told
    header, line, _ = table.table_of(entrants, budget).cells
    shown = dict(zip(header, line, strict=True))
    assert (shown["MB per hop"], shown["kJ"]) == ("80,390", "25,000")


def test_an_interval_of_scores_may_reach_below_zero(raced: tuple[Path, Field, PlanBudget, list[Entrant]]) -> None:
    """As R2 and the adjusted Rand index; seconds and losses do not."""
    entrant = replace(raced[3][0], level=0.1, costs=[-0.5, 0.1, 0.3])
    assert table.judged(entrant, PlanBudget(metric="client_score")) == "-0.03333 (-1.068 to 1.001)"
    assert table.judged(replace(entrant, costs=[0.5, 0.1, 3.0]), PlanBudget(metric="test_loss")) == "1.2 (0 to 5.104)"
    assert table.judged(replace(entrant, costs=[1.0, 9.0]), PlanBudget(target=0.5)) == "5 s (0 s to 55.8 s)"


def test_the_runs_of_a_race_are_reported_by_plan(raced: tuple[Path, Field, PlanBudget, list[Entrant]]) -> None:
    out, _, _, ranked = raced
    groups = group_runs(find_runs([out]))
    assert {group.label for group in groups} == {each.name for each in ranked}
    assert {group.seeds for group in groups if group.label == ranked[0].name} == {(0, 1)}


def test_methods_with_neither_server_nor_aggregators_stop_at_the_target_and_have_curves(tmp_path: Path) -> None:
    """IFCA's rows have an accuracy of all clients, each with its cluster's model, and no mean over aggregators."""
    own = {"data": {**TABLE["data"], "partition": "iid"}, "clustering": {"clusters": 2}, "method": {"name": "ifca"}}
    (settings,) = make_runs({key: value for key, value in TABLE.items() if key != "network"} | own)
    budget = PlanBudget(seconds=100.0, target=0.5)
    field = sort_out(settings, parse_axes(["local.lr=0.1,0.2"]), budget)
    ranked = carry_out(
        Race(((100.0, 2),), 1, 1.0), entrants_of(field, tmp_path), budget, field.pool, lambda _: None, lambda: False
    )
    run = rows_of(ranked[0])
    assert run is not None
    assert run.rows["test_accuracy"][-1] >= 0.5 > run.rows["test_accuracy"][-2]
    assert run.rows["virtual_time"][-1] < 50.0
    curve = _plan(1, ranked[0], budget, field)["curve"]
    assert len(curve["level"]) == len(curve["time"]) == len(curve["bytes"]) == len(run.rows["event"])


def test_a_plan_whose_run_fails_is_out(tmp_path: Path) -> None:
    """A learning rate of 1e6 diverges."""
    (settings,) = make_runs({**TABLE, "model": {"name": "mlp"}})
    over = ["clustering.method=comaw", "method.intra_rounds=2", "method.pattern=censyn", "local.lr=0.1,1e30"]
    budget = PlanBudget(seconds=40.0)
    field = sort_out(settings, parse_axes(over), budget)
    ranked = carry_out(
        Race(((40.0, 2),), 1, 1.0), entrants_of(field, tmp_path), budget, field.pool, lambda _: None, lambda: False
    )
    assert "not finite" in ranked[-1].problem
    assert ranked[-1].name.endswith("lr=1e30")
    only = [entrant for entrant in entrants_of(field, tmp_path) if entrant.name.endswith("1e30")]
    with pytest.raises(RunError, match="every plan failed, for example censyn"):
        carry_out(Race(((40.0, 1),), 1, 1.0), only, budget, field.pool, lambda _: None, lambda: False)


def test_a_plan_begins_where_another_was_killed_while_it_wrote_what_was_measured(tmp_path: Path) -> None:
    for name in (".lock", ".clients.csv.part", ".links.csv.part", ".plan.json.part"):
        (tmp_path / name).touch()
    require_folder(tmp_path, {}, resume=False)


def test_a_folder_that_holds_another_plan(tmp_path: Path) -> None:
    note = {"target": 0.5, "seeds": 2}
    require_folder(tmp_path / "new", note, resume=False)
    write_note(tmp_path, note)
    with pytest.raises(InputError, match="holds a plan already; add --resume"):
        require_folder(tmp_path, note, resume=False)
    require_folder(tmp_path, {**note, "seeds": 5}, resume=True)
    with pytest.raises(InputError, match="which differs in target"):
        require_folder(tmp_path, {**note, "target": 0.6}, resume=True)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        require_folder(tmp_path, note, resume=True)
    (tmp_path / "plan.json").rename(tmp_path / "other.json")
    with pytest.raises(InputError, match="is not empty and holds no plan"):
        require_folder(tmp_path, note, resume=True)
