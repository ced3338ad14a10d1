"""Clients that are clustered anew while they train, on nodes in this process whose times are made up."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import Experiment, InputError, make_runs, run_events
from atoll.aggregation.mean import mean
from atoll.clustering.clustering import Clustering
from atoll.evaluation.personal import OwnTests
from atoll.experiment.conditions import ReportedClients
from atoll.fleet.node.node import Reporting
from atoll.fleet.server.measured_times import MeasuredTimes
from atoll.fleet.server.reclustering import _measured_network
from atoll.network.completion import completion_of, event_seconds
from atoll.runs.result import read_result
from atoll.runs.saved import read_saved
from atoll.runs.verify import verify_run
from atoll.schedules.schedule_files import read_schedule
from tests.fleets import agreement_of, open_sites
from tests.memory_fleet import MemoryFleet
from tests.tiers import thinned

BASE = {
    "rounds": 12,
    "data": {"clients": 6, "samples": 20, "partition": "dirichlet", "alpha": 1.0},
    "model": {"name": "linear"},
    "local": {"steps": 1, "lr": 0.2, "batch_size": 4},
    "clustering": {"clusters": 2},
    "method": {"intra_rounds": 2, "fraction": 1.0},
    "network": {"bandwidth_hz": 1e4},
    "run": {"executor": "serial", "checkpoint_every": 1},
    "fleet": {"wait_seconds": 5.0, "deadline_seconds": 20.0, "recluster_every": 4},
}
HIERARCHICAL = ("method.name=hierarchical", "clustering.method=feduc", "clustering.frequencies=transfer")
SECONDS = dict.fromkeys(range(6), 1.0)
Make = Callable[..., tuple[Experiment, MemoryFleet]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(*changes: str, reporting: Mapping[int, Reporting] | None = None) -> tuple[Experiment, MemoryFleet]:
        experiment = Experiment(make_runs(BASE, changes=changes)[0])
        sites = open_sites(experiment, tmp_path / "shards")
        for client, told in (reporting or {}).items():
            sites[f"node-{client}"] = replace(sites[f"node-{client}"], reporting=told)
        return experiment, MemoryFleet(sites)

    return make


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """How long each client takes to train, whatever it really takes; an upload takes a tenth of it."""
    taken = dict(SECONDS)
    add = MeasuredTimes.add

    def made_up(self: MeasuredTimes, client: int, passed: int, seconds: float, round_trip: float) -> None:
        add(self, client, passed, taken[client], 1.1 * taken[client])

    monkeypatch.setattr(MeasuredTimes, "add", made_up)
    return taken


def carry(experiment: Experiment, folder: Path, **how: Any) -> list[dict[str, Any]]:
    for _ in run_events(experiment, folder, **how):
        pass
    path = folder / "clusterings.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last_models(folder: Path) -> bytes:
    return max((folder / "checkpoint").glob("*.safetensors")).read_bytes()


def assert_followed(folder: Path, lines: Sequence[Mapping[str, Any]], samples: Sequence[int]) -> None:
    """Every client trains in the cluster, and weighs the samples, that its event's line says."""
    for event in read_schedule(folder / "happened.jsonl").events:
        line = [line for line in lines if line["event"] <= event.index][-1]
        assert event.clusters is not None
        assert event.clusters.tolist() == [line["labels"][client] for client in event.cohort]
        assert event.weights.tolist() == [samples[client] for client in event.cohort]


@pytest.mark.more
@pytest.mark.parametrize("pattern", thinned(["censyn", "decsyn"], 1))
def test_who_became_slow_is_clustered_by_what_was_measured(
    make: Make, seconds: dict[int, float], tmp_path: Path, pattern: str
) -> None:
    """All keep the limit at first; client 0 breaks it from the fourth event on, and is left alone."""
    limit = "clustering.time_limit=8.0"
    experiment, fleet = make(*HIERARCHICAL, f"method.pattern={pattern}", limit, "clustering.overshoot=true")
    for progress in run_events(experiment, tmp_path / "live", fleet=fleet):
        if progress.events_done == 3:
            seconds[0] = 18.0
    lines = [json.loads(line) for line in (tmp_path / "live" / "clusterings.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == [0, 2, 4]
    assert [line["round"] for line in lines] == [0, 4, 8]
    assert lines[0]["labels"] == experiment.clustering.labels.tolist()
    weights = 0.8 ** np.arange(8)  # two trainings an event, the last two of them slow
    slow = float(np.average([18] * 2 + [1] * 6, weights=weights))
    assert [line["labels"] for line in lines[1:]] == [[0] * 6, [0, 1, 1, 1, 1, 1]]
    for line, first in zip(lines[1:], (1.0, slow), strict=True):
        compute = [first, 1, 1, 1, 1, 1]
        assert line["kept"] is None
        assert line["compute_seconds"] == pytest.approx(compute)
        assert line["upload_seconds"] == pytest.approx([0.1 * each for each in compute])
        upload = np.repeat(0.1 * np.array(compute)[:, None], 2, axis=1)
        network = replace(experiment.conditions.networks[0], compute_seconds=np.array(compute), upload_seconds=upload)
        by_hand = experiment.given(ReportedClients(experiment.population, None, network))
        assert line["labels"] == by_hand.clustering.labels.tolist()
        others = line["labels"][1]
        assert 0 < completion_of(network, np.array(line["labels"]))[others] <= 8
    assert lines[2]["moved"] == 5
    assert_followed(tmp_path / "live", lines, experiment.population.sizes.tolist())
    replay = make_runs(BASE, changes=(*HIERARCHICAL, f"method.pattern={pattern}", limit, "clustering.overshoot=true"))
    carry(Experiment(replay[0]), tmp_path / "replay", schedule=tmp_path / "live" / "happened.jsonl")
    assert last_models(tmp_path / "replay") == last_models(tmp_path / "live")
    assert not (tmp_path / "replay" / "clusterings.jsonl").exists()


def test_downloads_count_once_in_what_was_measured() -> None:
    """Round trips of 0.5 s besides 1 s of training: uploads one after the other, and no download before them."""
    changes = (*HIERARCHICAL, "method.pattern=censyn", "network.downloads=true")
    planned, measured = Experiment(make_runs(BASE, changes=changes)[0]).conditions.networks[0], MeasuredTimes(6)
    assert planned.download_seconds is not None
    for client in range(6):
        measured.add(client, 4, 1.0, 1.5)
    network = _measured_network(planned, measured)
    work = event_seconds(network, np.array([0, 0, 0, 1, 1, 1]), "decsyn", 1)
    assert work == pytest.approx(1 + 3 * 0.5 + planned.exchange_seconds[0, 1])


@pytest.mark.more
@pytest.mark.parametrize("pattern", ["decsyn", "decasy"])
def test_aggregators_weigh_what_the_clustering_in_force_gives_them(
    make: Make, seconds: dict[int, float], tmp_path: Path, pattern: str
) -> None:
    """In the rows, in the model that is read, and when the events are carried out once more."""
    limit = ("clustering.time_limit=8.0", "clustering.overshoot=true", "run.executor=fleet")
    experiment, fleet = make(*HIERARCHICAL, f"method.pattern={pattern}", *limit)
    for progress in run_events(experiment, tmp_path / "live", fleet=fleet):
        if progress.events_done == 3:
            seconds[0] = 18.0
    lines = [json.loads(line) for line in (tmp_path / "live" / "clusterings.jsonl").read_text().splitlines()]
    weights = [np.bincount(line["labels"], line["samples"], minlength=2).tolist() for line in lines]
    assert weights[-1] not in weights[:-1]
    result = read_result(tmp_path / "live")
    clients = result.clients()
    assert clients["cluster"].tolist() == lines[-1]["labels"] != lines[0]["labels"]
    tests, accuracies = OwnTests(experiment.population, experiment.initial.copy(), False), list[float]()
    for client, cluster in enumerate(lines[-1]["labels"]):
        accuracies += tests.scores(result.state.starts[cluster], [client]).tolist()
    assert clients["accuracy"].tolist() == accuracies
    average = mean(zip(weights[-1], result.state.starts, strict=True))
    score = experiment.execution.make_evaluator().score
    assert score(result.model()) == score(average)
    assert result.summary["final"]["test_loss"] == score(average).test_loss
    assert verify_run(tmp_path / "live", tmp_path / "again").first_difference == ""


def by_offset(hours: Sequence[float]) -> dict[int, Reporting]:
    return {client: Reporting(utc_offset=hour) for client, hour in enumerate(hours)}


TIMEZONE = ("method.name=fedcluster", "clustering.method=timezone", "rounds=6", "fleet.recluster_every=2")
EAST, WEST = 6.0, -6.0  # 0 o'clock there is 18 and 6 o'clock UTC: clusters 1 and 0


def test_clients_that_travel_change_their_time_zone(make: Make, tmp_path: Path) -> None:
    experiment, fleet = make(*TIMEZONE, reporting=by_offset([WEST, WEST, WEST, EAST, EAST, EAST]))
    for progress in run_events(experiment, tmp_path / "live", fleet=fleet):
        if progress.events_done == 3:  # in the second round
            travelled = replace(fleet.sites["node-0"], reporting=Reporting(utc_offset=EAST))
            fleet.sites["node-0"] = travelled
        if progress.events_done == 6:  # all are in the east: a cluster would be empty
            for name in ("node-1", "node-2"):
                fleet.sites[name] = replace(fleet.sites[name], reporting=Reporting(utc_offset=EAST))
    lines = [json.loads(line) for line in (tmp_path / "live" / "clusterings.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == [0, 4, 8]
    assert [line["labels"] for line in lines] == [[0, 0, 0, 1, 1, 1], [1, 0, 0, 1, 1, 1], [1, 0, 0, 1, 1, 1]]
    assert [line["moved"] for line in lines] == [0, 1, 0]
    assert lines[1]["kept"] is None
    assert "cluster 0 without clients" in lines[2]["kept"]
    assert_followed(tmp_path / "live", lines, experiment.population.sizes.tolist())
    carry(experiment, tmp_path / "replay", schedule=tmp_path / "live" / "happened.jsonl")
    assert last_models(tmp_path / "replay") == last_models(tmp_path / "live")


FEW = ("rounds=4", "clustering.slots_per_client=1")


def test_slots_that_nodes_report_are_clusters(make: Make, tmp_path: Path) -> None:
    slots = [(0,), (0,), (0, 1), (1,), (1,), (1,)]
    told = {client: Reporting(slots=each) for client, each in enumerate(slots)}
    experiment, fleet = make("method.name=fedcluster", "clustering.method=availability", *FEW, reporting=told)
    lines = carry(experiment, tmp_path / "live", fleet=fleet)
    assert lines[0]["labels"] == [0, 0, 0, 1, 1, 1]
    assert_followed(tmp_path / "live", lines, experiment.population.sizes.tolist())


def test_reported_samples_weigh(make: Make, tmp_path: Path) -> None:
    """The server's own partition gives each 20 samples; the nodes hold as many as another one gave them."""
    _, fleet = make("method.name=fedcluster", "data.samples=", "clustering.method=dataw", "fleet.recluster_every=")
    sizes = [int(site.population.sizes[client]) for client, site in enumerate(fleet.sites.values())]
    assert len(set(sizes)) > 2
    common = ("method.name=hierarchical", "method.pattern=censyn", "rounds=4", "fleet.recluster_every=")
    changes = (*common, "fleet.samples_limit=off")
    experiment = Experiment(make_runs(BASE, changes=changes)[0])
    same = {name: replace(site, agreement=agreement_of(experiment)) for name, site in fleet.sites.items()}
    lines = carry(experiment, tmp_path / "live", fleet=MemoryFleet(same))
    assert lines[0]["samples"] == sizes
    assert_followed(tmp_path / "live", lines, sizes)
    event = read_schedule(tmp_path / "live" / "happened.jsonl").events[0]
    assert event.server is not None
    labels = np.array(lines[0]["labels"])
    beta = np.bincount(labels, sizes) / sum(sizes)
    assert dict(event.server.published) == pytest.approx(dict(enumerate(beta)))


@pytest.mark.more
@pytest.mark.parametrize("stop", thinned([1, 2, 3, 4, 5], 1))
def test_a_run_goes_on_with_the_clustering_in_force(
    make: Make, seconds: dict[int, float], tmp_path: Path, stop: int
) -> None:
    """Speeds differ, and stay, so that what is measured after the stop is what was measured before it."""
    seconds |= {0: 9.0, 3: 4.0, 4: 6.0}
    changes = (*HIERARCHICAL, "method.pattern=censyn", "clustering.time_limit=30.0", "clustering.overshoot=true")
    experiment, fleet = make(*changes, "fleet.recluster_every=5")
    lines = carry(experiment, tmp_path / "whole", fleet=fleet)
    assert [line["event"] for line in lines] == [0, 3, 5]
    assert lines[0]["labels"] != lines[1]["labels"]
    with closing(run_events(experiment, tmp_path / "live", fleet=fleet)) as steps:
        for progress in steps:
            if progress.events_done >= stop:
                break
    with open(tmp_path / "live" / "clusterings.jsonl", "a") as file:
        file.write('{"event": ')  # a line that a crash tore
    again = carry(experiment, tmp_path / "live", fleet=fleet, resume=True)
    assert [line["labels"] for line in again] == [line["labels"] for line in lines]
    assert last_models(tmp_path / "live") == last_models(tmp_path / "whole")


def test_a_run_goes_on_as_reports_were_when_it_began(make: Make, tmp_path: Path) -> None:
    changes = (*TIMEZONE[:-1], "fleet.recluster_every=4")
    experiment, fleet = make(*changes, reporting=by_offset([WEST, WEST, WEST, EAST, EAST, EAST]))
    with closing(run_events(experiment, tmp_path / "live", fleet=fleet)) as steps:
        for progress in steps:
            if progress.events_done == 3:
                break
    for name in ("node-0", "node-1"):
        fleet.sites[name] = replace(fleet.sites[name], reporting=Reporting(utc_offset=EAST))
    lines = carry(experiment, tmp_path / "live", fleet=fleet, resume=True)
    assert [line["labels"] for line in lines] == [[0, 0, 0, 1, 1, 1], [1, 1, 0, 1, 1, 1]]
    assert_followed(tmp_path / "live", lines, experiment.population.sizes.tolist())
    (tmp_path / "live" / "summary.json").unlink()
    (tmp_path / "live" / "clusterings.jsonl").write_text("nothing\n")
    with pytest.raises(InputError, match=r"^[^-].*clusterings\.jsonl is damaged \(line 1\)$"):
        read_saved(tmp_path / "live").experiment()  # as `atoll export` and Python read it
    with pytest.raises(InputError, match=r"--resume: .*clusterings\.jsonl is damaged \(line 1\); add --overwrite"):
        carry(experiment, tmp_path / "live", fleet=fleet, resume=True)


@pytest.mark.more
@pytest.mark.parametrize("pattern", thinned(["cenasy", "decasy"], 1))
def test_clusters_that_work_at_their_own_pace_are_made_anew(
    make: Make, seconds: dict[int, float], tmp_path: Path, pattern: str
) -> None:
    """Work under way ends with the clients that began it; what happened is replayed to the same bits."""
    changes = (*HIERARCHICAL, f"method.pattern={pattern}", "clustering.time_limit=30.0", "clustering.overshoot=true")
    seconds |= {0: 9.0, 3: 4.0, 4: 6.0}
    experiment, fleet = make(*changes, "rounds=24", "fleet.recluster_every=6")
    lines = carry(experiment, tmp_path / "live", fleet=fleet)
    assert [line["event"] for line in lines] == [0, 3, 6, 9]
    assert lines[0]["labels"] != lines[1]["labels"]
    known = {tuple(np.flatnonzero(np.array(line["labels"]) == j)) for line in lines for j in range(2)}
    events = read_schedule(tmp_path / "live" / "happened.jsonl").events
    assert {tuple(event.cohort.tolist()) for event in events} <= known
    assert tuple(events[-1].cohort.tolist()) in {
        tuple(np.flatnonzero(np.array(lines[-2]["labels"]) == j)) for j in range(2)
    } | {tuple(np.flatnonzero(np.array(lines[-1]["labels"]) == j)) for j in range(2)}
    carry(experiment, tmp_path / "replay", schedule=tmp_path / "live" / "happened.jsonl")
    assert last_models(tmp_path / "replay") == last_models(tmp_path / "live")


def test_class_counts_by_randomised_response_make_the_clustering(make: Make, tmp_path: Path) -> None:
    """With a large epsilon, the clustering that true counts give; with what is reported, not with what is here."""
    told = {client: Reporting(class_counts=True, epsilon=60.0) for client in range(6)}
    changes = ("method.name=fedcluster", "clustering.method=dataw", "rounds=3", "fleet.recluster_every=2")
    experiment, fleet = make(*changes, reporting=told)
    lines = carry(experiment, tmp_path / "live", fleet=fleet)
    assert lines[0]["labels"] == experiment.clustering.labels.tolist()
    assert isinstance(experiment.clustering, Clustering)
    silent = Reporting()
    fleet.sites["node-4"] = replace(fleet.sites["node-4"], reporting=silent)
    with pytest.raises(
        InputError,
        match=r"^fleet\.recluster_every = 2: clustering\.method = 'dataw' goes by class counts, which client 4 "
        r"\(node 'node-4'\) does not report$",
    ):
        carry(experiment, tmp_path / "silent", fleet=fleet)
    assert not (tmp_path / "silent").exists()
    once = Experiment(make_runs(BASE, changes=(*changes, "fleet.recluster_every="))[0])
    warnings = next(run_events(once, tmp_path / "once", fleet=fleet)).warnings
    assert any("client 4 (node 'node-4') does not report; what the experiment file" in each for each in warnings)


FEDUC = ("method.name=hierarchical", "clustering.method=feduc")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("method.name=fedavg",), r"4: method\.name = 'fedavg' has no clustering"),
        (("method.name=ifca",), r"4: method\.name = 'ifca' has no clustering"),
        (("clustering.method=random",), r"4: clustering\.method = 'random' goes by nothing"),
        (("method.name=hierarchical", "clustering.method=comaw"), r"clustering\.method = 'comaw' puts clients"),
        ((*FEDUC, "network.metres_per_round=1.0"), r"network\.metres_per_round: cannot be used with fleet\.recluster"),
        ((*FEDUC, "run.virtual_seconds=9.0"), r"run\.virtual_seconds = 9: cannot be used with fleet\.recluster_every"),
        ((*FEDUC, "run.client_updates=9"), r"run\.client_updates = 9: cannot be used with fleet\.recluster_every"),
    ],
)
def test_where_clusters_cannot_change_that_is_refused(tmp_path: Path, changes: tuple[str, ...], told: str) -> None:
    experiment = Experiment(make_runs(BASE, changes=changes)[0])
    with pytest.raises(InputError, match=told):
        carry(experiment, tmp_path / "live", fleet=MemoryFleet({}))
    assert not (tmp_path / "live").exists()


def test_in_simulation_nothing_is_measured(tmp_path: Path) -> None:
    experiment = Experiment(make_runs(BASE, changes=FEDUC)[0])
    for look in (experiment.check, lambda: carry(experiment, tmp_path / "simulated")):
        with pytest.raises(InputError, match=r"^fleet\.recluster_every = 4: needs run\.executor = 'fleet'"):
            look()
    assert not (tmp_path / "simulated").exists()
