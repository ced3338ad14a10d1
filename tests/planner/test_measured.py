"""What a run on a fleet has measured, read back: its own time is predicted, and plans go by its clients."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import Experiment, InputError, Settings, make_runs
from atoll.experiment.network_clients import NetworkClients
from atoll.fleet.server.measured_times import MeasuredTimes
from atoll.planner.measured_runs import apply, predicted_seconds, read_measurements
from atoll.runs.run_folder import RunFolder
from atoll.schedules.events import Schedule
from atoll.schedules.recorded import lines_of
from atoll.settings.experiment_file import resolved
from atoll.support.files import append_line, to_json

COMPUTE, SENDING = (0.5, 1.0, 2.0, 1.5), (0.2, 0.1, 0.3, 0.4)
SERVER_SECONDS = 0.25  # between two events
FEDAVG = {"name": "fedavg", "fraction": 0.5}
HIERARCHY = {"name": "hierarchical", "pattern": "censyn", "intra_rounds": 3}


def settings_of(method: dict[str, Any], **others: dict[str, Any]) -> Settings:
    table: dict[str, Any] = {
        "rounds": 12,
        "data": {"clients": 4, "samples": 10},
        "model": {"name": "linear"},
        "local": {"steps": 1 if "pattern" in method else 5, "batch_size": 10},
        "clustering": {"clusters": 2, "method": "dataw"},
        "method": method,
        **others,
    }
    (settings,) = make_runs(table)
    return settings


def as_on_a_fleet(planned: Schedule) -> Schedule:
    """Return the events of a plan as a fleet has them: side by side, the server at work in between."""
    busy, now, events = np.add(COMPUTE, SENDING), 0.0, []
    for event in planned.events:
        began, now = now, now + event.intra_rounds * float(busy[event.cohort].max())
        events.append(replace(event, began=(began,) * len(event.active), seconds=now))
        now += SERVER_SECONDS
    return replace(planned, events=tuple(events))


def fleet_run(place: Path, method: dict[str, Any], **others: dict[str, Any]) -> Schedule:
    """Write the folder of a run on a fleet; return what happened in it."""
    settings = settings_of(method, **others)
    folder, happened = RunFolder(place), as_on_a_fleet(Experiment(settings).method.schedule)
    place.mkdir()
    folder.create(settings, happened, is_live=True)
    folder.happened.unlink()
    for line in lines_of(happened):
        append_line(folder.happened, line)
    measured = MeasuredTimes(4)
    for client, (computing, sending) in enumerate(zip(COMPUTE, SENDING, strict=True)):
        measured.add(client, 10 * settings.local.steps, computing, computing + sending)
    folder.measured.write_bytes(to_json(measured.as_dict()))
    return happened


@pytest.mark.parametrize("method", [FEDAVG, HIERARCHY], ids=["fedavg", "hierarchical"])
def test_a_run_is_predicted_by_what_it_measured(method: dict[str, Any], tmp_path: Path) -> None:
    happened = fleet_run(tmp_path / "run", method)
    measured = read_measurements(tmp_path / "run")
    took = happened.events[-1].seconds
    assert predicted_seconds(measured, tmp_path / "out") == pytest.approx(took, rel=0.1)
    assert (measured.events, measured.seconds, measured.lost) == (len(happened), took, 0.0)


@pytest.mark.parametrize("method", [FEDAVG, HIERARCHY], ids=["fedavg", "hierarchical"])
@pytest.mark.parametrize(
    "sent", [{"travel": {"codec": "int8"}}, {"secure": {"sums": True, "least_nodes": 2}}], ids=["int8", "sums"]
)
def test_what_was_measured_of_smaller_and_larger_uploads_is_their_time(
    sent: dict[str, Any], method: dict[str, Any], tmp_path: Path
) -> None:
    """Round trips were those of the messages; the clock makes uploads as long as these are beside a model."""
    happened = fleet_run(tmp_path / "run", method, **sent)
    predicted = predicted_seconds(read_measurements(tmp_path / "run"), tmp_path / "out")
    assert predicted == pytest.approx(happened.events[-1].seconds, rel=0.01)


@pytest.mark.parametrize("clustering", ["comaw", "feduc"])
def test_clusters_that_go_by_places_stay_in_plans(clustering: str, tmp_path: Path) -> None:
    """Of a method without aggregators, whose clock goes by the same file of clients."""
    method, wanted = {"name": "fedcluster", "fraction": 1.0}, {"clusters": 2, "method": clustering}
    happened = fleet_run(tmp_path / "run", method, clustering=wanted)
    measured = read_measurements(tmp_path / "run")
    assert predicted_seconds(measured, tmp_path / "out") == pytest.approx(happened.events[-1].seconds, rel=0.1)
    planned = apply(measured, measured.settings, tmp_path / "out")
    one, other = (Experiment(each).conditions.networks[0] for each in (measured.settings, planned))
    np.testing.assert_allclose(other.upload_seconds, one.upload_seconds)
    assert other.compute_seconds.tolist() != one.compute_seconds.tolist()


def test_events_in_which_no_cluster_trains_take_no_training(tmp_path: Path) -> None:
    happened = fleet_run(tmp_path / "run", FEDAVG)
    before = read_measurements(tmp_path / "run")
    last = happened.events[-1]
    nobody: dict[str, Any] = {"active": (), "began": (), "cohort": last.cohort[:0], "weights": last.weights[:0]}
    nobody |= {"clusters": np.array([], np.int64), "staleness": ()}
    idle = replace(happened, events=(*happened.events, replace(last, index=last.index + 1, **nobody)))
    (tmp_path / "run/happened.jsonl").unlink()
    for line in lines_of(idle):
        append_line(tmp_path / "run/happened.jsonl", line)
    after = read_measurements(tmp_path / "run")
    assert after.events == before.events + 1
    np.testing.assert_allclose(after.upload_seconds, before.upload_seconds)


def test_another_plan_of_the_same_clients_is_predicted_too(tmp_path: Path) -> None:
    """Everybody in every round, and twice the steps: events that never were."""
    fleet_run(tmp_path / "run", FEDAVG)
    wanted = settings_of({**FEDAVG, "fraction": 1.0})
    wanted = wanted.model_copy(update={"local": wanted.local.model_copy(update={"steps": 10})})
    settings = apply(read_measurements(tmp_path / "run"), wanted, tmp_path / "out")
    event = max(2 * computing + sending for computing, sending in zip(COMPUTE, SENDING, strict=True))
    planned = Experiment(settings).method.schedule.events[-1].seconds
    assert planned == pytest.approx(12 * (event + SERVER_SECONDS), rel=0.05)


@pytest.mark.parametrize(("faults", "lost"), [({}, 2 / 4), ({"deadline_seconds": 60.0}, 1 / 3)])
def test_what_was_lost_is_lost_in_plans(faults: dict[str, float], lost: float, tmp_path: Path) -> None:
    """But who is late follows in a plan from its own deadline, and is not lost twice."""
    happened = fleet_run(tmp_path / "run", FEDAVG, faults=faults)
    path = RunFolder(tmp_path / "run").happened
    path.unlink()
    losing = replace(happened, events=tuple(replace(event, dropped=1, late=1) for event in happened.events))
    for line in lines_of(losing):
        append_line(path, line)
    measured = read_measurements(tmp_path / "run")
    assert measured.lost == pytest.approx(lost)
    planned = apply(measured, settings_of(FEDAVG, faults=faults), tmp_path / "out")
    assert planned.faults.dropout == pytest.approx(lost, abs=1e-4)


def test_a_client_that_never_answered_is_like_the_others(tmp_path: Path) -> None:
    fleet_run(tmp_path / "run", FEDAVG)
    path = RunFolder(tmp_path / "run").measured
    told = json.loads(path.read_text())
    told["replies"][2] = 0
    for name in ("seconds_per_sample", "compute_seconds", "upload_seconds"):
        told[name][2] = None
    path.write_bytes(to_json(told))
    assert read_measurements(tmp_path / "run").compute_seconds[2] == 1.0


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda place: (place / "measured.json").unlink(), "must be the folder of a run on a fleet"),
        (lambda place: (place / "measured.json").write_text("{}"), "is damaged"),
        (lambda place: (place / "happened.jsonl").write_text("{}\n"), r"^--from .*happened\.jsonl: line 1 is"),
        (
            lambda place: (place / "measured.json").write_bytes(to_json(MeasuredTimes(4).as_dict())),
            "has no client's times",
        ),
    ],
)
def test_what_cannot_be_read(spoil: Any, told: str, tmp_path: Path) -> None:
    fleet_run(tmp_path / "run", FEDAVG)
    spoil(tmp_path / "run")
    with pytest.raises(InputError, match=told):
        read_measurements(tmp_path / "run")


@pytest.mark.parametrize(
    "network", [{"frequencies": [1.0, 2.0]}, {"frequencies": "transfer"}, {"aggregators_file": "aggregators.csv"}]
)
def test_what_was_measured_replaces_positions_and_frequencies(network: dict[str, Any], tmp_path: Path) -> None:
    """Aggregators merge when their clients are done, wherever they stand."""
    (tmp_path / "aggregators.csv").write_text("aggregator,x,y\n0,0,0\n1,100,100\n")
    network = {key: str(tmp_path / each) if key == "aggregators_file" else each for key, each in network.items()}
    fleet_run(tmp_path / "run", FEDAVG)
    measured = read_measurements(tmp_path / "run")
    plain = settings_of({**HIERARCHY, "pattern": "cenasy"})
    (other,) = make_runs({**resolved(plain), "network": network})
    made = [Experiment(apply(measured, each, tmp_path / "plan")).method.schedule for each in (plain, other)]
    assert [event.seconds for event in made[0].events] == [event.seconds for event in made[1].events]


NAMED = {"network": {"file": "links.csv", "clients_file": "sites.csv"}}
AWAY = {"faults": {"availability_file": "away.csv"}}


@pytest.mark.parametrize(
    ("method", "others"), [(FEDAVG, NAMED), (HIERARCHY, NAMED | AWAY)], ids=["fedavg", "hierarchy"]
)
def test_clients_keep_their_names(
    method: dict[str, Any], others: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a network; other files, such as that of when they are available, name them as well."""
    monkeypatch.chdir(tmp_path)
    names = ["ann", "bea", '"the ""old"", Carl"', "dot"]
    Path("sites.csv").write_text("client,seconds_per_sample\n" + "".join(f"{name},0.1\n" for name in names))
    Path("away.csv").write_text("client,seconds,up\n" + "".join(f"{n},0,up\n{n},9999,down\n" for n in names))
    links = "".join(f"{name},{'north' if name < 'c' else 'south'},1\n" for name in names)
    Path("links.csv").write_text(f"from,to,up_seconds\n{links}north,server,1\nsouth,server,1\n")
    happened = fleet_run(tmp_path / "run", method, **others)
    measured = read_measurements(tmp_path / "run")
    assert predicted_seconds(measured, tmp_path / "out") == pytest.approx(happened.events[-1].seconds, rel=0.1)
    planned = apply(measured, measured.settings, tmp_path / "out")
    told = ("ann", "bea", 'the "old", Carl', "dot") if method is HIERARCHY else ("0", "1", "2", "3")
    assert NetworkClients(planned, 4).names == told


@pytest.mark.parametrize("clustering", ["comaw", "feduc"])
def test_clusters_that_go_by_links_have_none_in_plans_without_aggregators(
    clustering: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sites.csv").write_text("client,seconds_per_sample\n" + "".join(f"{client},0.1\n" for client in range(4)))
    links = "".join(f"{client},{'north' if client < 2 else 'south'},1\n" for client in range(4))
    Path("links.csv").write_text(f"from,to,up_seconds\n{links}north,server,1\nsouth,server,1\n")
    wanted = {"clusters": 2, "method": clustering}
    fleet_run(tmp_path / "run", {"name": "fedcluster", "fraction": 1.0}, clustering=wanted, **NAMED)
    measured = read_measurements(tmp_path / "run")
    told = rf"^--from .*run: clustering\.method = '{clustering}' goes by network\.file, whose links what was measured"
    with pytest.raises(InputError, match=told):
        apply(measured, measured.settings, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_clients_keep_their_samples_and_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose measured times stand whatever these are; a column that the file lacks is 0 watts."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{client},{10 + client},0.1,{2 + client},7\n" for client in range(4))
    Path("sites.csv").write_text(f"client,samples,seconds_per_sample,compute_watts,receive_watts\n{rows}")
    links = "".join(f"{client},{'north' if client < 2 else 'south'},1\n" for client in range(4))
    Path("links.csv").write_text(f"from,to,up_seconds\n{links}north,server,1\nsouth,server,1\n")
    fleet_run(tmp_path / "run", HIERARCHY, **NAMED)
    measured = read_measurements(tmp_path / "run")
    planned = Experiment(apply(measured, measured.settings, tmp_path / "out"))
    network = planned.conditions.networks[0]
    assert NetworkClients(planned.settings, 4).samples(np.ones(4, np.int64)).tolist() == [10, 11, 12, 13]
    np.testing.assert_allclose(network.compute_seconds, COMPUTE)
    assert network.power is not None
    np.testing.assert_array_equal(network.power.computing, [2, 3, 4, 5])
    np.testing.assert_array_equal(network.power.sending, np.zeros(4))
    np.testing.assert_array_equal(network.power.receiving, np.full(4, 7))


def test_other_clients(tmp_path: Path) -> None:
    fleet_run(tmp_path / "run", FEDAVG)
    other = settings_of(FEDAVG)
    other = other.model_copy(update={"data": other.data.model_copy(update={"clients": 5})})
    with pytest.raises(InputError, match=r"has 4 clients, but data.clients = 5"):
        apply(read_measurements(tmp_path / "run"), other, tmp_path / "out")
