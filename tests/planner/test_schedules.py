"""What plans are made, what their schedules say of them, and which of them are not worth a race."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from atoll import Experiment, InputError, Settings, make_runs
from atoll.network.network import Network
from atoll.planner.budget import PlanBudget
from atoll.planner.candidates import Candidate, make_candidates, usual_axes, with_changes
from atoll.planner.entrants import Entrant
from atoll.planner.plan_costs import energy_of
from atoll.planner.plan_scores import Hop, PlanScore, score
from atoll.planner.plan_table import note_of, score_table, table_of
from atoll.planner.planning import Field, sort_out
from atoll.planner.pool import ProcessPool
from atoll.planner.scoring import Scored, prune
from atoll.schedules.packed import BLOCK
from atoll.sweep.axes import parse_axes

MODEL_BYTES = 4 * (64 * 10 + 10)


def settings_of(folder: Path, **over: dict[str, Any]) -> Settings:
    """Four clients, two aggregators, all seconds from files: completions of 3 and 4 s, transfers of 1 and 0.5 s."""
    (folder / "clients.csv").write_text(
        "client,seconds_per_sample,samples\n0,0.1,10\n1,0.2,10\n2,0.1,10\n3,0.1,10\n", encoding="utf-8"
    )
    (folder / "links.csv").write_text(
        "from,to,up_seconds\n0,north,1\n1,north,1\n2,south,1\n3,south,3\nnorth,server,1\nsouth,server,0.5\n"
        "north,south,1.5\n",
        encoding="utf-8",
    )
    files = {"clients_file": "clients.csv", "file": "links.csv"}
    table: dict[str, Any] = {
        "rounds": 4,
        "data": {"dataset": "digits", "clients": 4, "samples": 10, "partition": "iid"},
        "model": {"name": "linear"},
        "local": {"steps": 1, "batch_size": 10},
        "clustering": {"method": "comaw", "clusters": 2},
        "network": {key: str(folder / name) for key, name in files.items()},
        "method": {"name": "hierarchical", "pattern": "censyn", "intra_rounds": 2},
        "run": {"executor": "serial"},
    }
    for section, values in over.items():
        table[section] = {**table.get(section, {}), **values}
    (settings,) = make_runs(table)
    return settings


def sorted_out(settings: Settings, over: Sequence[str], **budget: float) -> Field:
    return sort_out(settings, parse_axes(over), PlanBudget(**budget))  # type: ignore[arg-type]


ONE = ("clustering.method=comaw", "method.intra_rounds=2")


def test_a_synchronous_plan_against_its_closed_form(tmp_path: Path) -> None:
    """An event is T' x 4 s and half a second: the server hears of the slowest cluster after 8.5 s."""
    (plan,) = sorted_out(settings_of(tmp_path), [*ONE, "method.pattern=censyn"], seconds=30.0).plans
    assert plan.candidate.settings.run.virtual_seconds == 30.0
    found = plan.score
    assert (found.events, found.seconds, found.merges, found.steps) == (3, 25.5, 3.0, 6.0)
    assert (found.mean_event, found.longest_event, found.first_event) == (8.5, 8.5, 8.5)
    assert found.waiting == pytest.approx(1 - 2 * (2 + 3 + 2 + 4) / (4 * 8.5))
    assert (found.slowest_client, found.slowest_seconds) == ("3", 4.0)
    assert (found.mean_staleness, found.max_staleness) == (0, 0)
    up, transfers = 3 * 8 * MODEL_BYTES, 3 * 2 * MODEL_BYTES
    assert found.hops == (Hop("client to aggregator", up, up), Hop("aggregator to server", transfers, transfers))


@pytest.mark.more
def test_waiting_of_more_events_than_are_held_as_rows() -> None:
    """Two of four clients a round: the slower keeps the other waiting."""
    table: dict[str, Any] = {
        "rounds": 3 * BLOCK,
        "data": {"dataset": "digits", "clients": 4, "partition": "iid"},
        "model": {"name": "linear"},
        "network": {"seconds_per_sample": [0.1, 0.8]},
        "method": {"name": "fedavg", "fraction": 0.5},
    }
    (settings,) = make_runs(table)
    experiment = Experiment(settings)
    clock = experiment.plan.clock
    busy = clock.compute_seconds + clock.upload_seconds
    pairs = np.array([busy[event.cohort] for event in experiment.method.schedule.events])
    assert len({tuple(event.cohort) for event in experiment.method.schedule.events}) == 6  # all pairs, in any order
    assert score(experiment).waiting == pytest.approx(1 - pairs.sum() / (2 * pairs.max(axis=1).sum()))


@pytest.mark.parametrize("name", ["fedavg", "pfedme", "ditto", "moon", "local", "stocfl"])
def test_clients_that_are_alike_wait_for_nobody_however_long_the_method_computes(name: str) -> None:
    network = {"seconds_per_sample": 0.1}
    data = {"dataset": "digits", "clients": 4, "partition": "iid", "samples": 10}
    (settings,) = make_runs({"rounds": 2, "data": data, "network": network, "method": {"name": name}})
    found = score(Experiment(settings))
    assert found.waiting == pytest.approx(0)
    assert found.slowest_seconds == pytest.approx(found.longest_event)


def test_an_asynchronous_plan_against_its_closed_form(tmp_path: Path) -> None:
    """Merges of cluster 0 every 7 s, of cluster 1 every 8.5 s: 0 1 0 1 0 1 0, each but the first with one between."""
    (plan,) = sorted_out(settings_of(tmp_path), [*ONE, "method.pattern=cenasy"], seconds=30.0).plans
    found = plan.score
    assert (found.events, found.seconds, found.merges) == (7, 28.0, 3.5)
    assert found.mean_event == pytest.approx((4 * 7 + 3 * 8.5) / 7)
    assert (found.mean_staleness, found.max_staleness) == (pytest.approx(6 / 7), 1)
    assert found.client_updates == 7 * 2 * 2


def test_aggregators_without_clients_do_not_count(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, clustering={"clusters": 3})
    with (tmp_path / "links.csv").open("a", encoding="utf-8") as file:
        file.write("0,west,9\nwest,server,1\n")
    found = score(Experiment(settings))
    assert (found.clusters, found.merges, found.events) == (2, 2.0, 2)


def test_an_event_is_as_long_as_its_longest_work() -> None:
    """In a buffer there are results of clients that began at different times."""
    table: dict[str, Any] = {
        "rounds": 6,
        "data": {"dataset": "digits", "clients": 6, "samples": 10, "partition": "iid"},
        "model": {"name": "linear"},
        "method": {"name": "fedbuff", "concurrency": 3, "buffer": 2},
    }
    experiment = Experiment(make_runs(table)[0])
    works = [[event.seconds - began for began in event.began] for event in experiment.method.schedule.events]
    assert any(len(set(each)) > 1 for each in works)
    assert score(experiment).mean_event == pytest.approx(sum(map(max, works)) / len(works))


def test_the_first_event_ends_when_its_time_of_day_has_come() -> None:
    table: dict[str, Any] = {
        "rounds": 2,
        "data": {"dataset": "digits", "clients": 6, "samples": 10, "partition": "iid"},
        "model": {"name": "linear"},
        "network": {"seconds_per_sample": 0.1},
        "method": {"name": "fedcluster", "order": "fixed"},
        "clustering": {"method": "timezone", "clusters": 2},
    }
    experiment = Experiment(make_runs(table)[0])
    assert score(experiment).first_event == experiment.method.schedule.events[0].seconds > 6 * 3600


def test_large_clusters_count_more_in_the_distance_of_their_data(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, data={"partition": "dirichlet", "alpha": 0.5, "samples": None})
    (tmp_path / "clients.csv").write_text("client,seconds_per_sample\n0,1\n1,1\n2,1\n3,1\n", encoding="utf-8")
    counts = (experiment := Experiment(settings)).population.class_counts()
    clusters = np.array([counts[experiment.clustering.members(j)].sum(axis=0) for j in (0, 1)])
    apart = np.abs(clusters / clusters.sum(axis=1, keepdims=True) - counts.sum(axis=0) / counts.sum()).sum(axis=1)
    assert score(experiment).emd == pytest.approx(apart @ clusters.sum(axis=1) / counts.sum())


def test_the_local_steps_are_those_of_the_clients_that_train() -> None:
    """Asynchronous, with epochs: who has few samples takes few steps, and is back more often."""
    table: dict[str, Any] = {
        "rounds": 20,
        "data": {"dataset": "digits", "clients": 4, "partition": "dirichlet", "alpha": 0.5},
        "model": {"name": "linear"},
        "local": {"epochs": 1, "batch_size": 10},
        "network": {"seconds_per_sample": 0.1},
        "method": {"name": "fedasync", "concurrency": 4},
    }
    (settings,) = make_runs(table)
    experiment = Experiment(settings)
    trained = np.concatenate([event.cohort for event in experiment.method.schedule.events])
    each = np.ceil(experiment.population.sizes / 10)
    assert len(set(np.bincount(trained))) > 1
    assert score(experiment).steps == pytest.approx(each[trained].sum() / 4)


def test_what_neighbours_send_each_other_is_counted_once(tmp_path: Path) -> None:
    (plan,) = sorted_out(settings_of(tmp_path), [*ONE, "method.pattern=decsyn"], seconds=30.0).plans
    assert plan.score.mean_event == 2 * 4 + 1.5
    assert plan.score.hops[1] == Hop("between aggregators", 2 * 3 * MODEL_BYTES, 0)


def test_what_a_plan_costs(tmp_path: Path) -> None:
    """100 a gigabyte from client 3 up and 1 from the rest, 10 from south to the server: three events of T' = 2."""
    settings = settings_of(tmp_path)
    (tmp_path / "links.csv").write_text(
        "from,to,up_seconds,up_price\n0,north,1,1\n1,north,1,1\n2,south,1,1\n3,south,3,100\n"
        "north,server,1,\nsouth,server,0.5,10\n",
        encoding="utf-8",
    )
    (plan,) = sorted_out(settings, [*ONE, "method.pattern=censyn"], seconds=30.0).plans
    assert plan.score.price == pytest.approx(3 * (2 * (3 * 1 + 100) + 10) * MODEL_BYTES / 1e9)
    assert score_table([plan]).cells[0][-1] == "price"
    (plan,) = sorted_out(settings_of(tmp_path), [*ONE, "method.pattern=censyn"], seconds=30.0).plans
    assert plan.score.price is None


@pytest.mark.parametrize("faults", [{"dropout": 0.5}, {"deadline_seconds": 3.5}], ids=["dropped", "late"])
def test_whoever_is_lost_costs_what_it_has_done(tmp_path: Path, faults: dict[str, float]) -> None:
    """All receive for 0.25 s at 5 W; those that are late, client 3 with its 4 s, compute for 1 s at 2 W as well."""
    settings = settings_of(tmp_path, faults=faults)
    watts = "compute_watts,send_watts,receive_watts"
    rows = "".join(f"{k},0.1,10,2,3,5\n" for k in range(4))
    (tmp_path / "clients.csv").write_text(f"client,seconds_per_sample,samples,{watts}\n{rows}", encoding="utf-8")
    links = "".join(f"{k},{'north' if k < 2 else 'south'},{1 + 2 * (k > 2)},1,0.25,10\n" for k in range(4))
    ways = "up_seconds,up_price,down_seconds,down_price"
    lines = f"from,to,{ways}\n{links}north,server,1,0,1,0\nsouth,server,1,0,1,0\n"
    (tmp_path / "links.csv").write_text(lines, encoding="utf-8")
    found, events = score(experiment := Experiment(settings)), experiment.method.schedule.events
    assert found.price == pytest.approx((found.hops[0].up + 10 * found.hops[0].down) / 1e9)
    answers = [2 + 3 * (3 if client > 2 else 1) for event in events for client in event.cohort]
    late = sum(event.late for event in events)
    assert late == (2 if "deadline_seconds" in faults else 0)
    assert found.joules == pytest.approx(2 * (sum(answers) + 2 * late + 5 * 0.25 * 4 * len(events)))
    spending = energy_of(experiment)
    assert spending is not None
    assert spending.by(experiment, np.array([0.0, math.inf])) == pytest.approx([0.0, found.joules])


def test_one_network_with_prices_beside_one_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = settings_of(tmp_path)
    rows = (tmp_path / "links.csv").read_text().splitlines()
    priced = [f"{row},{price}" for row, price in zip(rows, ["up_price", *"1111111"], strict=True)]
    (tmp_path / "priced.csv").write_text("\n".join(priced), encoding="utf-8")
    axes = [*ONE, "method.pattern=censyn", "network.file=links.csv,priced.csv"]
    plans = sorted_out(settings, axes, seconds=30.0).plans
    entrants = [Entrant(plan, tmp_path, costs=[1.0]) for plan in plans]
    for table in (score_table(plans), table_of(entrants, PlanBudget())):
        assert [line[-1] for line in table.cells] == ["price", "–", "7.8e-05"]


def test_bytes_end_a_plan_too(tmp_path: Path) -> None:
    """An event is 10 models up and 10 down: 45 models allow two."""
    settings = settings_of(tmp_path)
    for models in (45, 40):
        (plan,) = sorted_out(settings, [*ONE, "method.pattern=censyn"], size=models * MODEL_BYTES).plans
        assert (plan.score.events, plan.score.sent) == (2, 40 * MODEL_BYTES)
    assert plan.candidate.settings.run.virtual_seconds == 17.0


def test_events_that_end_together_are_all_within_the_bytes_or_none(tmp_path: Path) -> None:
    """Two clusters of equal times send alternately, 5 models up and 5 down each: 25 models allow one pair."""
    settings = settings_of(tmp_path)
    times = "client,seconds_per_sample,samples\n" + "".join(f"{k},0.1,10\n" for k in range(4))
    (tmp_path / "clients.csv").write_text(times)
    links = [*(f"{k},{'north' if k < 2 else 'south'},1" for k in range(4)), "north,server,1", "south,server,1"]
    (tmp_path / "links.csv").write_text("\n".join(["from,to,up_seconds", *links, ""]))
    (plan,) = sorted_out(settings, [*ONE, "method.pattern=cenasy"], size=35 * MODEL_BYTES).plans
    assert (plan.score.events, plan.score.sent) == (2, 20 * MODEL_BYTES)


@pytest.mark.parametrize("pattern", ["censyn", "decsyn"])
def test_what_clients_drop_has_been_sent_to_them(tmp_path: Path, pattern: str) -> None:
    settings = settings_of(tmp_path, method={"pattern": pattern}, faults={"dropout": 0.5})
    experiment = Experiment(settings)
    hops, events = score(experiment).hops, experiment.method.schedule.events
    assert sum(event.dropped for event in events) > 0
    assert hops[0].down == 4 * 2 * MODEL_BYTES * len(events)
    up, down = experiment.traffic.bytes_of(events)
    between = up - hops[0].up
    assert hops[1] == (
        Hop("aggregator to server", between, between) if pattern == "censyn" else Hop("between aggregators", between, 0)
    )
    assert down == hops[0].down + between


def test_what_is_chosen_from_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    named = {axis.name: axis.texts for axis in usual_axes(settings, [])}
    assert named["method.pattern"] == ("censyn", "cenasy", "decsyn", "decasy")
    assert named["clustering.method"] == ("comaw", "dataw", "feduc", "progress")
    assert named["method.intra_rounds"] == ("1", "2", "4")
    large = settings.model_copy(update={"data": settings.data.model_copy(update={"clients": 2_000})})
    assert {axis.name: axis.texts for axis in usual_axes(large, [])}["clustering.method"] == ("comaw", "dataw", "feduc")
    only = {axis.name: axis.texts for axis in usual_axes(settings_of(tmp_path, method={"name": "hierfavg"}), [])}
    assert only == {**named, "method.pattern": ("censyn",)}
    axes = usual_axes(settings, parse_axes(["method.intra_rounds=3", "local.lr=0.1,0.2"]))
    assert [(axis.name, len(axis.texts)) for axis in axes] == [
        *(("method.pattern", 4), ("clustering.method", 4), ("method.intra_rounds", 1), ("local.lr", 2))
    ]


def test_the_pattern_of_a_clusterings_bound_is_not_the_methods(tmp_path: Path) -> None:
    axes = parse_axes(["clustering.method=feduc,comaw"])
    settings = settings_of(tmp_path, method={"name": "fedcluster"}, clustering={"method": "feduc"})
    assert [axis.name for axis in usual_axes(settings, axes)] == ["clustering.method"]


def test_a_short_name_stands_for_a_clustering_made_for_the_time_that_there_is(tmp_path: Path) -> None:
    axes = parse_axes(["clustering.method=comaw,time,progress"])
    made, dropped = make_candidates(settings_of(tmp_path), axes, seconds=40.0)
    assert [candidate.name for candidate in made] == ["comaw", "time", "progress"]
    assert dropped == []
    clustering = made[1].settings.clustering
    assert (clustering.method, clustering.get("objective"), clustering.get("seconds")) == ("feduc", "time", 40.0)
    with warnings.catch_warnings(action="error"):  # such as of a setting that has no effect
        for candidate in made:
            assert Experiment(candidate.settings).method.schedule.clusters == 2


def test_what_is_no_experiment_is_dropped_and_told(tmp_path: Path) -> None:
    over = [*ONE, "method.pattern=censyn", "faults.deadline_seconds=1,3,100"]
    field = sorted_out(settings_of(tmp_path), over, seconds=30.0)
    why = {each.name.rpartition("=")[2]: each.why for each in field.dropped}
    assert "no client of any cohort is done by then" in why["1"]
    settings = settings_of(tmp_path)
    _, dropped = make_candidates(settings, parse_axes(["local.lr=-1,0.1"]), seconds=40.0)
    assert ["local.lr = -1" in each.why for each in dropped] == [True]


@pytest.mark.parametrize("values", ["x=-1,1", "x='a+b','a-b'", f"x='{60 * 'a'}b','{60 * 'a'}c'"])
def test_plans_that_would_share_a_folder_are_refused(tmp_path: Path, values: str) -> None:
    """A race resumes what its folders hold, so one plan would take another's results."""
    axes = parse_axes([f"model.{values}"])
    with pytest.raises(InputError, match="have the same folder name 'x-"):
        make_candidates(settings_of(tmp_path, model={"name": "tests.planner.test_schedules:given"}), axes, seconds=40.0)


def given(shape: tuple[int, ...], classes: int, x: object = None) -> nn.Module:
    """A model with an option of its own."""
    return nn.Linear(shape[0], classes)


def test_bytes_cannot_end_what_sends_nothing() -> None:
    (settings,) = make_runs({"method": {"name": "local"}, "data": {"clients": 4, "samples": 10}, "rounds": 3})
    with pytest.raises(InputError, match="--bytes 1e\\+06: nothing is ever sent, so bytes do not end a run; add --sec"):
        sorted_out(settings, ["local.lr=0.1,0.2"], size=1e6)


def test_steps_are_of_all_clients_not_of_each_size_once() -> None:
    own = {"local": {"epochs": 1.0, "batch_size": 1}, "clustering": {"clusters": 2}, "method": {"fraction": 1.0}}
    (settings,) = make_runs({"data": {"clients": 7, "partition": "iid"}, "rounds": 3, **own})
    experiment = Experiment(settings)
    sizes = experiment.population.sizes
    assert len(set(sizes.tolist())) == 2
    assert score(experiment).steps == pytest.approx(3 * sizes.mean())  # a step for each sample, in every round


def test_equal_plans_are_raced_once(tmp_path: Path) -> None:
    """Without a limit that binds, a deadline of 100 s and one of 200 s leave the same clients and the same events."""
    over = ["method.pattern=censyn", "method.intra_rounds=2", "clustering.method=comaw", "clustering.time_limit=50,60"]
    field = sorted_out(settings_of(tmp_path), over, seconds=30.0)
    assert [plan.name for plan in field.plans] == ["censyn,comaw,intra_rounds=2,time_limit=50"]
    assert "the same as censyn,comaw" in field.dropped[0].why


def test_deadlines_that_nobody_misses_are_raced_once(tmp_path: Path) -> None:
    """After 50 s all are done, as after 60 s; after 3 s one client is late."""
    over = [*ONE, "method.pattern=censyn", "faults.deadline_seconds=3,50,60"]
    field = sorted_out(settings_of(tmp_path), over, seconds=30.0)
    start = "censyn,comaw,intra_rounds=2,deadline_seconds="
    assert [plan.name for plan in field.plans] == [f"{start}3", f"{start}50"]
    assert [(each.name, each.why) for each in field.dropped] == [(f"{start}60", f"the same as {start}50")]


def test_rounds_follow_from_the_budget(tmp_path: Path) -> None:
    """The file's 4 rounds are 2 merges; 300 s are 35, and the budget, not the rounds, ends the run."""
    (plan,) = sorted_out(settings_of(tmp_path), [*ONE, "method.pattern=censyn"], seconds=300.0).plans
    assert plan.score.events == 35
    assert plan.candidate.settings.rounds > 2 * 35
    assert plan.candidate.settings.rounds % 2 == 0


def test_plans_share_clients_and_network(tmp_path: Path) -> None:
    """A network of 100,000 clients and 1,000 aggregators takes 800 MB."""
    settings, pool = settings_of(tmp_path), ProcessPool()
    first = pool.make(settings)
    score(first)
    pool.keep(first)
    other = settings.model_copy(update={"rounds": 8})
    second = pool.make(other)
    assert second.clients.dealt is first.clients.dealt
    assert second.conditions.networks is first.conditions.networks
    assert second.clustering is first.clustering
    elsewhere = pool.make(settings_of(tmp_path, network={"seconds_per_sample": 0.5}))
    assert elsewhere.conditions.networks is not first.conditions.networks
    assert elsewhere.clients.dealt is first.clients.dealt
    assert pool.make(settings.model_copy(update={"seed": 1})).clients.dealt is not first.clients.dealt


def test_seconds_of_another_pattern_are_still_asked_for(tmp_path: Path) -> None:
    """A network that is shared must not hide that the central patterns lack a server."""
    settings = settings_of(tmp_path)
    links = tmp_path / "links.csv"
    links.write_text("\n".join(line for line in links.read_text().splitlines() if "server" not in line) + "\n")
    field = sorted_out(settings, [*ONE, "method.pattern=decsyn,censyn"], seconds=30.0)
    assert ["leads to 'server'" in each.why for each in field.dropped] == [True]


def some_score(**other: float) -> PlanScore:
    fields: dict[str, Any] = dict.fromkeys(PlanScore.__dataclass_fields__, 1.0) | {"hops": ()}
    return replace(PlanScore(**fields), **other)  # type: ignore[arg-type]


def scored(name: str, settings: Settings, **other: float) -> Scored:
    pattern, clustering = name.split(",")
    values = {"method.pattern": pattern, "clustering.method": clustering}
    return Scored(Candidate(name, values, settings), some_score(**other))


def test_a_plan_that_another_one_of_its_pattern_outdoes_is_not_raced(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    plans = [
        scored("censyn,a", settings, merges=10, emd=1.0),
        scored("censyn,b", settings, merges=8, emd=1.0),
        scored("censyn,c", settings, merges=8, emd=0.5),  # fewer merges, but better mixed
        scored("cenasy,b", settings, merges=8, emd=1.0),  # another pattern
        scored("censyn,d", settings, merges=9.9, emd=1.0, predicted=1.03),  # 1 % fewer are as many
    ]
    kept, dropped = prune(plans)
    assert [plan.name for plan in kept] == ["censyn,a", "censyn,c", "cenasy,b", "censyn,d"]
    assert [(each.name, each.why) for each in dropped] == [
        ("censyn,b", "censyn,a has more merges, and nothing clearly worse")
    ]


def test_of_plans_that_merge_as_often_the_staler_is_not_raced(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    plans = [scored("cenasy,a", settings, mean_staleness=1.0), scored("cenasy,b", settings, mean_staleness=3.0)]
    assert [plan.name for plan in prune(plans)[0]] == ["cenasy,a"]


def test_of_plans_that_are_alike_the_one_much_later_at_the_target_is_not_raced(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    kept, _ = prune([scored("censyn,a", settings), scored("censyn,b", settings, predicted=1.06)])
    assert [plan.name for plan in kept] == ["censyn,a"]


def test_of_two_plans_that_nothing_tells_apart_the_earlier_is_raced(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    plans = [
        scored("censyn,a", settings, merges=48, emd=0.994, predicted=12.31),
        scored("censyn,b", settings, merges=48, emd=0.993, predicted=12.30),
        scored("censyn,c", settings, merges=48, emd=0.99, predicted=12.8),  # 4 % later, which a prediction may miss
        scored("cenasy,a", settings, merges=48, emd=0.994, predicted=12.31),  # another pattern
    ]
    kept, dropped = prune(plans)
    assert [plan.name for plan in kept] == ["censyn,b", "censyn,c", "cenasy,a"]
    assert [(each.name, each.why) for each in dropped] == [
        ("censyn,a", "has a schedule equal to that of censyn,b within 2%")
    ]


def test_who_compares_patterns_is_told_that_only_censyn_shares_links(tmp_path: Path) -> None:
    patterns = [f"method.pattern={pattern}" for pattern in ("censyn", "censyn,cenasy")]
    fields = [sorted_out(settings_of(tmp_path), [*ONE, each], seconds=30.0).plans for each in patterns]
    assert ["Aggregators share links only in censyn" in note_of(each) for each in fields] == [False, True]
    assert "censyn" not in note_of([scored("fedavg,", with_changes(settings_of(tmp_path), ["method.name=fedavg"]))])
    unraced = score_table(fields[0])
    assert unraced.note.startswith("Waiting: share of the time")
    assert "In brackets" not in unraced.note
    assert "Slowest client" not in unraced.note
    raced = table_of([Entrant(plan, tmp_path) for plan in fields[0]], PlanBudget(seconds=30.0))
    assert raced.note.startswith("In brackets: 95 % interval over seeds. Slowest client: ")


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        ({"seconds": 3.0}, "--seconds 3: no plan's first event fits; for example"),
        ({"size": 100.0}, "--bytes 100: no plan's first event fits; for example"),
    ],
)
def test_a_budget_shorter_than_one_event(budget: dict[str, float], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        sorted_out(settings_of(tmp_path), [*ONE, "method.pattern=censyn,cenasy"], **budget)


def test_seconds_of_the_settings_shorter_than_one_event(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, run={"virtual_seconds": 3.0})
    with pytest.raises(InputError, match="--seconds 3: no plan's first event fits"):
        sorted_out(settings, [*ONE, "method.pattern=censyn"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"target": 80.0}, "--target 80: must be greater than 0 and at most 1"),
        ({"target": -1.0, "is_regression": True}, "--target -1: must be greater than 0"),
    ],
)
def test_what_is_no_budget(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        PlanBudget(**given)


def test_nothing_to_choose_from() -> None:
    with pytest.raises(InputError, match=r"'fedavg': has no pattern to choose; .*, such as --over local.steps=10,40$"):
        usual_axes(Settings(method={"name": "fedavg"}), [])  # type: ignore[arg-type]


def test_a_codec_makes_the_clients_uploads_smaller(tmp_path: Path) -> None:
    """Only these: what comes down, and goes on from aggregators, is whole models."""
    plain = settings_of(tmp_path)
    coded = settings_of(tmp_path, travel={"codec": "int8"})
    (one,), (other,) = (
        sorted_out(settings, [*ONE, "method.pattern=censyn"], seconds=30.0).plans for settings in (plain, coded)
    )
    assert other.score.events > one.score.events  # since they take a shorter time, too
    (up, down), (coded_up, coded_down) = (
        [[getattr(hop, way) / plan.score.events for hop in plan.score.hops] for way in ("up", "down")]
        for plan in (one, other)
    )
    assert coded_up[0] < up[0] / 2
    assert (coded_up[1], coded_down) == (up[1], down)
    pool = ProcessPool()
    made = pool.make(plain)
    score(made)
    pool.keep(made)
    assert pool.make(plain).conditions is made.conditions
    assert pool.make(coded).conditions is not made.conditions, "uploads take another time"


def test_plans_with_other_messages_get_clusterings_of_their_own() -> None:
    """FedUC's clusters go by upload seconds, and so by a codec's bytes."""
    table = {
        "rounds": 400,
        "data": {"dataset": "digits", "clients": 16, "samples": 30, "partition": "dirichlet", "alpha": 0.3},
        "model": {"name": "linear"},
        "local": {"steps": 1, "lr": 0.1, "batch_size": 5},
        "clustering": {"method": "feduc", "clusters": 4, "time_limit": 8.0, "overshoot": True},
        "network": {"bandwidth_hz": 1e3, "seconds_per_sample": [0.001, 0.02]},
        "method": {"name": "hierarchical", "pattern": "cenasy", "intra_rounds": 2},
    }
    plain, coded = (make_runs(table, changes=changes)[0] for changes in ([], ["travel.codec=int8"]))
    pool = ProcessPool()
    pool.keep(pool.make(plain))
    labels = [Experiment(each).clustering.labels.tolist() for each in (plain, coded)]
    assert labels[0] != labels[1]
    assert pool.make(coded).clustering.labels.tolist() == labels[1]


def by_pace(network: Network) -> np.ndarray:
    """Deal clients to aggregators in turn, the slowest first."""
    order = network.frequencies.argsort(kind="stable")  # type: ignore[union-attr]
    return np.resize(order, network.clients)


@pytest.mark.parametrize("moving", [{}, {"metres_per_round": 0.1}], ids=["still", "moving"])
def test_a_clustering_by_frequencies_is_made_for_each_pattern(moving: dict[str, float]) -> None:
    """Frequencies that follow from transfers depend on the pattern, and so does a user's rule that goes by them."""
    table = {
        "data": {"dataset": "digits", "clients": 12, "samples": 10},
        "clustering": {"method": "tests.planner.test_schedules:by_pace", "clusters": 6},
        "network": {"frequencies": "transfer", **moving},
        "method": {"name": "hierarchical", "pattern": "cenasy"},
    }
    one, other = (make_runs(table, changes=[f"method.pattern={name}"])[0] for name in ("cenasy", "decasy"))
    pool = ProcessPool()
    pool.keep(pool.make(one))
    labels = [Experiment(each).clustering.labels.tolist() for each in (one, other)]
    assert labels[0] != labels[1]
    assert pool.make(other).clustering.labels.tolist() == labels[1]
