"""A run on a fleet whose nodes report other clusters than its settings make, read back from its folder."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from atoll import Experiment, find_runs, make_runs, read_result, read_runs, run_events
from atoll.fleet.node.node import Reporting
from atoll.report.page.content import make_content
from tests.fleets import open_sites
from tests.memory_fleet import MemoryFleet

SETTINGS = {
    "rounds": 2,
    "data": {"clients": 4, "samples": 20},
    "model": {"name": "linear"},
    "local": {"steps": 1, "batch_size": 4},
    "clustering": {"method": "timezone", "clusters": 2},
    "method": {"name": "hierarchical", "pattern": "decsyn", "intra_rounds": 1},
    "run": {"probes": ["client_accuracy"], "executor": "serial"},
}


def begin(folder: Path, offsets: Sequence[float], resume: bool = False, **changes: Any) -> Any:
    """Begin a run in ``run`` on nodes that are this many hours from UTC, or go on with it."""
    experiment = Experiment(make_runs(SETTINGS | changes)[0])
    sites: dict[str, Any] = {}
    for client, offset in enumerate(offsets):
        own = open_sites(experiment, folder / f"data-{client}", Reporting(utc_offset=offset))
        sites[f"node-{client}"] = own[f"node-{client}"]
    return run_events(experiment, folder / "run", resume, fleet=MemoryFleet(sites))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("read-back")
    for _ in begin(folder, [0.0, 1.0, 0.0, 1.0]):
        pass
    return folder / "run"


def missing(run: Path) -> str:
    """Return why a page has no clusters; nothing if it has them."""
    (shown,) = make_content(find_runs([run])).data["details"]
    assert any("as planned" in figure["title"] for figure in shown["figures"])
    return str(shown["missing"])


def test_results_of_clients_are_those_of_the_clusters_that_trained(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "clusterings.jsonl").read_text().splitlines()]
    result = read_result(run)
    assert Experiment(result.settings).clustering.labels.tolist() != lines[0]["labels"]
    found = result.clients()
    assert found["cluster"].tolist() == lines[0]["labels"]
    assert found["accuracy"].mean() == pytest.approx(result.history["client_accuracy"][-1])


def test_rows_of_events_are_those_that_happened(run: Path) -> None:
    pytest.importorskip("pandas")
    ends = [json.loads(line)["seconds"] for line in (run / "happened.jsonl").read_text().splitlines()[1:]]
    assert read_runs(run, of="events")["virtual_time"].tolist() == ends


def test_a_page_has_no_clusters_but_those_of_the_run(run: Path, tmp_path: Path) -> None:
    assert missing(run) == "Clusters and class shares: not drawn: the clusters are those of nodes' reports."
    labels = Experiment(make_runs(SETTINGS)[0]).clustering.labels.tolist()
    for _ in begin(tmp_path, labels):
        pass
    assert missing(tmp_path / "run") == ""


def test_before_the_first_event_no_row_of_one(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    with closing(begin(tmp_path, [0.0, 1.0, 0.0, 1.0])) as steps:
        next(steps)
    assert len(read_runs(tmp_path / "run", of="events")) == 0


def test_a_finished_run_is_resumed_though_its_plan_was_another(tmp_path: Path) -> None:
    """The limit is reached after two events of two clients each, and after three of the plan's one and three."""
    changes: dict[str, Any] = {"method": {"name": "fedcluster", "fraction": 1.0}}
    changes |= {"run": {"client_updates": 5, "executor": "serial"}}
    assert len(Experiment(make_runs(SETTINGS | changes)[0]).method.schedule) == 3
    for _ in begin(tmp_path, [0.0, 1.0, 0.0, 1.0], **changes):
        pass
    (progress,) = begin(tmp_path, [0.0, 1.0, 0.0, 1.0], resume=True, **changes)
    assert progress.events_done == progress.events == 2
