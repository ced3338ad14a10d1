"""Events of which clients are missing, against the same worked out by hand; and live runs on nodes in this process."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from threading import Event as Flag
from threading import Lock
from typing import Any

import numpy as np
import pytest

from atoll import (
    Event,
    Experiment,
    InputError,
    LocalRule,
    Method,
    Mix,
    RunError,
    Schedule,
    Serial,
    Trainer,
    init,
    make_runs,
    read_model,
    run_events,
    train,
)
from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.engine import flights
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.engine.flights import Landed
from atoll.engine.live_schedule import LiveRun, follow
from atoll.fleet.agreed.transport import Failure
from atoll.local.rule import sgd
from atoll.runs.saved import read_saved
from atoll.runs.verify import verify_run
from atoll.schedules.events import FROM_SERVER
from atoll.schedules.schedule_files import read_schedule
from atoll.support.arrays import Floats, Ids
from atoll.support.seeds import generator
from tests.fleets import open_sites, sending
from tests.losing import Losing
from tests.memory_fleet import MemoryFleet
from tests.problems import as_vector, linear_module, quadratics
from tests.tiers import thinned

POPULATION = quadratics(clients=4)
CLUSTERS = {0: [0, 2], 1: [1, 3]}
RULE = LocalRule(sgd, lr=0.05, steps=3, batch_size=2, lr_decay=0.5)
SEED = 11
COHORT = np.array([0, 2, 1, 3])


def make_event(**changes: Any) -> Event:
    """Both clusters train twice; the server takes 1/4 and 3/4."""
    event = Event(
        index=0,
        round=0,
        seconds=1.0,
        active=(0, 1),
        began=(0.0, 0.0),
        cohort=COHORT,
        clusters=np.array([0, 0, 1, 1]),
        weights=POPULATION.sizes[COHORT].astype(float),
        intra_rounds=2,
        server=Mix(published=((0, 0.25), (1, 0.75))),
        starts=((0, FROM_SERVER), (1, FROM_SERVER)),
    )
    return replace(event, **changes)


def train_by_hand(w: Floats, number: int, lr: float, repeat: int, client: int) -> Floats:
    own = POPULATION.samples(client)
    for rows in generator(SEED, "batches", number, repeat, client).integers(len(own), size=(3, 2)):
        x, y = POPULATION.data.inputs[own[rows]], POPULATION.data.targets[own[rows]]
        w = w - lr * x.T @ (x @ w - y) / 2
    return w


def server_by_hand(w0: Floats, answered: list[set[int]], number: int = 0, lr: float = 0.05) -> Floats:
    published = []
    for members in CLUSTERS.values():
        w = w0
        for repeat in (0, 1):
            there = [k for k in members if k in answered[repeat]]
            sizes = [POPULATION.sizes[k] for k in there]
            trained = [train_by_hand(w, number, lr, repeat, k) for k in there]
            w = sum(n * v for n, v in zip(sizes, trained, strict=True)) / sum(sizes) if there else w
        published.append(w)
    return 0.25 * published[0] + 0.75 * published[1]


def executor() -> Serial:
    return Serial(Trainer(linear_module(), POPULATION, RULE, SEED))


@pytest.mark.parametrize(
    "answered",
    [[{0, 1, 2, 3}, {0, 3}], [{1}, {0, 1, 2, 3}], [{0}, {2, 1}], [{1, 3}, {1, 3}], [set(), set()]],
    ids=["some missed the second", "one cluster missed the first", "back again", "a cluster is away", "nobody"],
)
def test_who_answered_is_averaged_and_the_rest_is_not(answered: list[set[int]]) -> None:
    """In a live run that finds it out, and in a simulation that is told."""
    start = read_model(linear_module())
    expected = server_by_hand(as_vector(start), answered)
    mask = np.array([[k in there for k in COHORT] for there in answered])
    told = Method(Schedule((make_event(answered=mask),), 2, 1), RULE)
    planned = Method(Schedule((make_event(models_down=8, models_up=8),), 2, 1), RULE)
    losing = Losing(executor(), lambda cohort: np.setdiff1d(cohort.clients, [*answered[cohort.repeat]]))
    (replayed,) = train(told, executor(), init(told, start))
    (lived,) = follow(LiveRun(planned, losing.clock), losing, init(planned, start))
    for step in (replayed, lived):
        assert step.state.server is not None
        np.testing.assert_allclose(as_vector(step.state.server), expected, rtol=1e-12)
    assert lived.event.answered is not None
    assert lived.event.answered.tolist() == mask.tolist()
    assert lived.event.client_updates == lived.event.models_up == mask.sum()
    assert (lived.event.late, lived.event.models_down) == ((~mask).sum(), 8)


def test_who_is_missing_besides_those_known_to_be_leaves_the_plan_as_it_was() -> None:
    known = np.array([[True, True, True, False], [True] * 4])
    method = Method(Schedule((make_event(answered=known.copy()),), 2, 1), RULE)
    losing = Losing(executor(), lambda cohort: np.setdiff1d(cohort.clients, [0, 1] if cohort.repeat else [0, 2]))
    (step,) = train(method, losing, init(method, read_model(linear_module())))
    assert step.event.answered is not None
    assert step.event.answered.tolist() == [[True, True, False, False], [True, False, True, False]]
    assert np.array_equal(method.schedule.events[0].answered, known)  # type: ignore[arg-type]


class Carrying(Serial):
    """Trains all intra-cluster rounds of a cohort that it is asked for, one after the other."""

    def carries_through(self, combine: Combine) -> bool:
        return True

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        for repeat in range(max(cohort.repeats for cohort in cohorts)):
            now = [replace(cohort, repeat=cohort.repeat + repeat, repeats=1) for cohort in cohorts]
            updates = super().train(now, combine, screening)
            cohorts = [replace(each, start=update.model) for each, update in zip(cohorts, updates, strict=True)]
        return updates


@pytest.mark.parametrize("missing", [False, True])
def test_rounds_are_carried_through_unless_their_clients_differ(missing: bool) -> None:
    answered = [{0, 1, 2, 3}, {0, 3}] if missing else [{0, 1, 2, 3}] * 2
    mask = np.array([[k in there for k in COHORT] for there in answered]) if missing else None
    method, start = Method(Schedule((make_event(answered=mask),), 2, 1), RULE), read_model(linear_module())
    carrying = Carrying(Trainer(linear_module(), POPULATION, RULE, SEED))
    (step,) = train(method, carrying, init(method, start))
    assert step.state.server is not None
    np.testing.assert_allclose(as_vector(step.state.server), server_by_hand(as_vector(start), answered), rtol=1e-12)


@pytest.mark.parametrize(("wait_seconds", "events"), [(2.0, 4), (6.0, 5)])
def test_a_run_waits_so_long_from_the_last_event_that_somebody_answered(wait_seconds: float, events: int) -> None:
    """Four events of two seconds each; then nobody answers for two seconds, and nobody is there at first."""
    plan = tuple(make_event(index=i, round=i, seconds=i + 1.0) for i in range(5))
    method, away, there = Method(Schedule(plan, 2, 5), RULE), iter([True] * 4), iter([False, False])

    def lose(cohort: Cohort) -> Ids:
        return cohort.clients if cohort.event == 4 and next(away, False) else cohort.clients[:0]

    losing = Losing(executor(), lose)
    live = LiveRun(method, losing.clock, lambda: next(there, True), wait_seconds, pause_seconds=0.0)
    done = 0
    with pytest.raises(RunError, match="no client has answered for 2 s") if events < 5 else nullcontext():
        for _ in follow(live, losing, init(method, read_model(linear_module()))):
            done += 1
    assert done == events


def test_clients_draw_and_train_as_the_work_was_begun() -> None:
    start = read_model(linear_module())
    method = Method(Schedule((make_event(drawn_as=(7, 3)),), 2, 9), RULE)
    (step,) = train(method, executor(), init(method, start))
    expected = server_by_hand(as_vector(start), [{0, 1, 2, 3}] * 2, number=7, lr=0.05 * 0.5**3)
    assert step.state.server is not None
    np.testing.assert_allclose(as_vector(step.state.server), expected, rtol=1e-12)


BASE = {
    "rounds": 12,
    "data": {"clients": 4, "samples": 20},
    "model": {"name": "linear"},
    "local": {"steps": 1, "lr": 0.2, "batch_size": 4},
    "clustering": {"clusters": 2},
    "method": {"intra_rounds": 2, "fraction": 1.0},
    "network": {"bandwidth_hz": 1e4},
    "run": {"executor": "serial", "checkpoint_every": 2},
    "fleet": {"wait_seconds": 5.0, "deadline_seconds": 20.0},
}
HIERARCHICAL = "method.name=hierarchical"
METHODS = {
    "fedcluster": ("method.name=fedcluster", "rounds=3"),
    "censyn": (HIERARCHICAL, "method.pattern=censyn"),
    "cenasy": (HIERARCHICAL, "method.pattern=cenasy", "rounds=24"),
    "decsyn": (HIERARCHICAL, "method.pattern=decsyn"),
    "decasy": (HIERARCHICAL, "method.pattern=decasy", "rounds=24"),
    "cfl-mgd": ("method.name=cfl-mgd", "method.clusters=2", "rounds=3"),
}
Make = Callable[..., tuple[Experiment, MemoryFleet]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(method: str, *changes: str) -> tuple[Experiment, MemoryFleet]:
        experiment = Experiment(make_runs(BASE, changes=(*METHODS[method], *changes))[0])
        return experiment, MemoryFleet(open_sites(experiment, tmp_path / "shards"))

    return make


def failing(share: float, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return sending(lambda content: Failure("failed") if rng.random() < share else content)


def carry(experiment: Experiment, folder: Path, **how: Any) -> list[dict[str, Any]]:
    for _ in run_events(experiment, folder, **how):
        pass
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def last_models(folder: Path) -> bytes:
    return max((folder / "checkpoint").glob("*.safetensors")).read_bytes()


def shared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without wall-clock time, and without faults, which a simulation without any does not count."""
    gone = ("wall_time", "crc32", "absent", "dropped", "late", "norm_limit")
    return [{k: v for k, v in row.items() if k not in gone and not k.startswith("refused_")} for row in rows]


@pytest.mark.parametrize("method", thinned(METHODS, 1))
def test_a_run_on_nodes_that_fail_is_replayed_to_the_same_bits(make: Make, tmp_path: Path, method: str) -> None:
    experiment, fleet = make(method)
    fleet.faults = {"node-0": failing(0.5), "node-3": failing(0.3)}
    rows = carry(experiment, tmp_path / "live", fleet=fleet)
    happened = tmp_path / "live" / "happened.jsonl"
    again = carry(experiment, tmp_path / "replay", schedule=happened)
    assert shared(again) == shared(rows)
    assert last_models(tmp_path / "replay") == last_models(tmp_path / "live")
    lines = [json.loads(line) for line in happened.read_text().splitlines()[1:]]
    failures = sum(line["refused"].get("failed", 0) for line in lines)
    assert failures == rows[-1]["refused_failed"] > 0
    settings = (tmp_path / "live" / "config.toml").read_text()
    assert 'executor = "fleet"' in settings
    carry(experiment, tmp_path / "twice", schedule=tmp_path / "replay" / "schedule.npz")
    assert last_models(tmp_path / "twice") == last_models(tmp_path / "live")


def test_an_asynchronous_run_that_goes_on_is_verified_up_to_its_checkpoint(make: Make, tmp_path: Path) -> None:
    """Its checkpoint may be between two events that train together in simulation."""
    experiment, fleet = make("cenasy", "run.checkpoint_every=1", "run.evaluate_every=1", "rounds=8")
    copies = []
    with closing(run_events(experiment, tmp_path / "live", fleet=fleet)) as steps:
        for progress in steps:
            if progress.events_done > 1:
                copies.append(copytree(tmp_path / "live", tmp_path / str(progress.events_done)))
                for file in sorted((copies[-1] / "checkpoint").iterdir())[2:]:  # the last one: not written yet
                    file.unlink()
    assert len(copies) > 2
    for copy in copies:
        assert verify_run(copy, tmp_path / f"{copy.name}-again").first_difference == ""


@pytest.mark.parametrize("pattern", ["decsyn", "decasy"])
def test_a_model_and_a_replay_weigh_aggregators_as_the_rows_of_a_server_that_caps_samples(
    tmp_path: Path, pattern: str
) -> None:
    (settings,) = make_runs(
        {
            "rounds": 2,
            "data": {"clients": 6, "partition": "quantity", "sigma": 1.5},
            "model": {"name": "linear"},
            "method": {"name": "hierarchical", "pattern": pattern, "intra_rounds": 1},
            "clustering": {"clusters": 3},
            "local": {"steps": 2, "lr": 0.1},
            "run": {"executor": "fleet"},
            "fleet": {"samples_limit": 1.0},
            "faults": {"usual_norms": "off"},
        }
    )
    experiment = Experiment(settings)
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "sites"))
    last = carry(experiment, tmp_path / "live", fleet=fleet)[-1]
    saved = read_saved(tmp_path / "live")
    assert saved.experiment().conditions.reported.sizes.tolist() != experiment.population.sizes.tolist()
    assert experiment.execution.make_evaluator().score(saved.model()).train_loss == last["train_loss"]
    assert verify_run(tmp_path / "live", tmp_path / "again").first_difference == ""


@pytest.mark.parametrize("method", thinned(["fedcluster", "censyn", "decsyn", "cfl-mgd"], 2))
def test_on_nodes_that_all_answer_a_plan_has_the_bits_of_simulation(make: Make, tmp_path: Path, method: str) -> None:
    experiment, fleet = make(method)
    rows = carry(experiment, tmp_path / "live", fleet=fleet)
    expected = carry(experiment, tmp_path / "simulated")
    times = ("virtual_time",)
    assert [{k: v for k, v in row.items() if k not in times} for row in shared(rows)] == [
        {k: v for k, v in row.items() if k not in times} for row in shared(expected)
    ]
    assert last_models(tmp_path / "live") == last_models(tmp_path / "simulated")


@pytest.mark.parametrize("method", thinned(METHODS, 1))
@pytest.mark.parametrize("stop", thinned([1, 3], 1))
def test_a_run_on_nodes_is_stopped_and_goes_on(make: Make, tmp_path: Path, method: str, stop: int) -> None:
    experiment, fleet = make(method)
    with closing(run_events(experiment, tmp_path / "live", fleet=fleet)) as steps:
        for progress in steps:
            if progress.events_done >= stop and progress.is_settled:
                break
    happened = tmp_path / "live" / "happened.jsonl"
    with open(happened, "a") as file:
        file.write('{"event": ')  # a line that a crash tore
    if progress.events_done == progress.events:
        (tmp_path / "live" / "summary.json").unlink(missing_ok=True)
    rows = carry(experiment, tmp_path / "live", fleet=fleet, resume=True)
    schedule = read_schedule(happened)
    assert len(schedule) == len(experiment.method.schedule)
    again = carry(experiment, tmp_path / "replay", schedule=happened)
    assert shared(again) == shared(rows)
    assert last_models(tmp_path / "replay") == last_models(tmp_path / "live")
    if experiment.method.arrivals is None:
        carry(experiment, tmp_path / "simulated")
        assert last_models(tmp_path / "live") == last_models(tmp_path / "simulated")


@pytest.mark.more
def test_a_run_goes_on_though_clusters_arrived_in_another_order_than_planned(make: Make, tmp_path: Path) -> None:
    """The plan has clusters take turns; here cluster 0 is so slow that it has not arrived when the run is stopped."""
    experiment, fleet = make("cenasy")

    def slowly(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        time.sleep(0.3)
        return honest()

    fleet.faults = {f"node-{client}": slowly for client in experiment.clustering.members(0).tolist()}
    with closing(run_events(experiment, tmp_path / "live", fleet=fleet)) as steps:
        assert [next(steps).events_done for _ in range(3)] == [0, 1, 2]
    fleet.faults = {}
    rows = carry(experiment, tmp_path / "live", fleet=fleet, resume=True)
    happened = tmp_path / "live" / "happened.jsonl"
    assert [event.active for event in read_schedule(happened).events[:2]] == [(1,), (1,)]
    assert shared(carry(experiment, tmp_path / "replay", schedule=happened)) == shared(rows)
    assert last_models(tmp_path / "replay") == last_models(tmp_path / "live")


def test_who_is_held_up_between_landing_and_telling_ends_with_the_event_before(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the other cluster's thread may land later, and tell of it first."""
    experiment, fleet = make("cenasy")
    first, is_passed = Lock(), Flag()

    def landing(*done: Any) -> Landed:
        if first.acquire(blocking=False):
            assert is_passed.wait(30)
        return Landed(*done)

    monkeypatch.setattr(flights, "Landed", landing)
    for progress in run_events(experiment, tmp_path / "live", fleet=fleet):
        if progress.events_done == 1:
            is_passed.set()
    ends = [event.seconds for event in read_schedule(tmp_path / "live" / "happened.jsonl").events]
    assert any(one == other for one, other in pairwise(ends))
    carry(experiment, tmp_path / "replay", schedule=tmp_path / "live" / "happened.jsonl")
    assert last_models(tmp_path / "replay") == last_models(tmp_path / "live")


@pytest.mark.parametrize("method", thinned(["fedcluster", "censyn", "cenasy"], 1))
def test_while_nobody_is_there_nothing_happens(make: Make, tmp_path: Path, method: str) -> None:
    """All nodes are cut off before the third event, and back a little later."""
    experiment, fleet = make(method)
    back = [float("inf")]
    seen = fleet.nodes

    def nodes() -> Any:
        if time.monotonic() > back[0]:
            fleet.gone = set()
        return seen()

    fleet.nodes = nodes  # type: ignore[method-assign]
    for progress in run_events(experiment, tmp_path / "live", fleet=fleet):
        if progress.events_done == 2:
            back[0] = time.monotonic() + 1.0
            fleet.gone = set(fleet.sites)
            if method == "cenasy":  # whose clusters try again by themselves
                time.sleep(0.3)
                fleet.gone = set()
    schedule = read_schedule(tmp_path / "live" / "happened.jsonl")
    assert len(schedule) == len(experiment.method.schedule)
    assert all(event.answered is None or event.answered.any() for event in schedule.events)
    carry(experiment, tmp_path / "replay", schedule=tmp_path / "live" / "happened.jsonl")
    assert last_models(tmp_path / "replay") == last_models(tmp_path / "live")


@pytest.mark.parametrize("method", thinned(["fedcluster", "cenasy"], 1))
def test_a_run_ends_if_everybody_stays_away(make: Make, tmp_path: Path, method: str) -> None:
    experiment, fleet = make(method, "fleet.wait_seconds=1.0")
    began = time.monotonic()
    steps = run_events(experiment, tmp_path / "live", fleet=fleet)
    assert [next(steps).events_done for _ in range(3)] == [0, 1, 2]
    fleet.gone = set(fleet.sites)
    with pytest.raises(RunError, match=r"^no client has answered for \d+ s, longer than fleet.wait_seconds = 1;"):
        list(steps)
    assert time.monotonic() - began < 20
    fleet.gone = set()
    carry(experiment, tmp_path / "live", fleet=fleet, resume=True)
    assert len(read_schedule(tmp_path / "live" / "happened.jsonl")) == len(experiment.method.schedule)


def test_a_cluster_that_stays_away_does_not_hold_up_the_others(make: Make, tmp_path: Path) -> None:
    experiment, fleet = make("cenasy")
    fleet.gone = {f"node-{client}" for client in experiment.clustering.members(0)}
    fleet_experiment = Experiment(make_runs(BASE, changes=(*METHODS["cenasy"], "fleet.nodes=2"))[0])
    carry(fleet_experiment, tmp_path / "live", fleet=fleet)
    schedule = read_schedule(tmp_path / "live" / "happened.jsonl")
    assert {event.active for event in schedule.events} == {(1,)}


def test_kinds_of_runs_do_not_mix(make: Make, tmp_path: Path) -> None:
    experiment, fleet = make("fedcluster")
    carry(experiment, tmp_path / "live", fleet=fleet)
    carry(experiment, tmp_path / "plain")
    happened = tmp_path / "live" / "happened.jsonl"
    carry(experiment, tmp_path / "replay", schedule=happened)
    for how, folder, told in (
        ({}, "live", "was run on a fleet, and can only continue on one"),
        ({"fleet": fleet}, "plain", "was run in simulation, and cannot continue on a fleet"),
        ({}, "replay", "was run with a --schedule; continue in the same way"),
        ({"schedule": happened}, "plain", "was run without --schedule; continue in the same way"),
        ({"schedule": tmp_path / "plain" / "schedule.npz"}, "replay", "was run with another --schedule"),
    ):
        with pytest.raises(InputError, match=f"--resume: .*{folder} {told}"):
            carry(experiment, tmp_path / folder, resume=True, **how)
    with pytest.raises(InputError, match=r"--schedule: recorded events are replayed in simulation"):
        carry(experiment, tmp_path / "both", fleet=fleet, schedule=happened)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("faults.dropout=0.1", r"faults\.dropout = 0\.1: is for simulation"),
        ("faults.deadline_seconds=9.0", r"faults\.deadline_seconds = 9: is for simulation; .* fleet\.deadline_seconds"),
        (
            "method.name=ifca method.restarts=2",
            r"method\.restarts = 2: is for simulation; with run.executor = 'fleet' set 1",
        ),
        ("method.name=centralized", r"method\.name = 'centralized': cannot be used with run\.executor = 'fleet'"),
    ],
)
def test_settings_for_simulation_only(tmp_path: Path, change: str, told: str) -> None:
    experiment = Experiment(make_runs(BASE, changes=("method.name=fedcluster", "rounds=3", *change.split()))[0])
    with pytest.raises(InputError, match=told):
        carry(experiment, tmp_path / "live", fleet=MemoryFleet({}))
    assert not (tmp_path / "live").exists()
