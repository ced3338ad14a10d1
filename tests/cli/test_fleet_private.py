"""Private runs on a fleet of real processes: whatever is killed, nothing that was spent is forgotten."""

import json
from collections import Counter
from pathlib import Path

import pytest

from atoll.experiment.experiment import Experiment
from atoll.fleet.node.epsilon_ledger import read_ledger
from atoll.fleet.node.store import FolderStore
from atoll.settings import experiment_file as config
from tests.cli.fleets import Machines, machines, wait_until, write_digits

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PRIVATE = '\n[privacy]\ntrust = "client"\nclip = 1.0\nnoise = 20.0\nepsilon = 9.0\n'


def spent_by(fleet: Machines, client: int) -> int:
    """Return how often a node has charged its client, by its files."""
    store = fleet.configuration.folder / "nodes" / f"node-{client}" / "state" / "store"
    return read_ledger(FolderStore(store), client).charged


def charged_by(run: Path) -> Counter[int]:
    """Return how often each event was charged at the server."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_bytes().splitlines()]
    return Counter(line["event"] for line in lines[1:])


def test_kills_of_server_and_node_forget_nothing(tmp_path: Path) -> None:
    file = write_digits(tmp_path, rounds=12)
    file.write_text(file.read_text() + PRIVATE)
    (settings,) = config.make_runs(config.read_experiment(str(file)))
    with machines(Experiment(settings), file, 2) as fleet:
        fleet.start_server()
        fleet.start_node(0)
        fleet.start_node(1)
        fleet.wait_for_rows(4)
        fleet.kill("node-0")
        before = spent_by(fleet, 0)
        fleet.start_node(0)
        wait_until(lambda: fleet.said("node-0").count("connected") > 1, 60)
        fleet.wait_for_rows(fleet.rows() + 2)
        assert spent_by(fleet, 0) > before > 0
        at_server = charged_by(fleet.folder / "run")
        fleet.kill("server")
        fleet.start_server("--resume")
        fleet.finish()
        after = charged_by(fleet.folder / "run")
        assert all(after[event] >= times for event, times in at_server.items())
        summary = json.loads((fleet.folder / "run" / "summary.json").read_bytes())["privacy"]
        assert (summary["noise_from"], summary["is_private"]) == ("system", True)
        assert summary["worst_client_releases"] >= max(spent_by(fleet, 0), spent_by(fleet, 1)) > 0
        assert "epsilon so far: " in fleet.said("node-1")
        assert "of at most 9" in fleet.said("node-1")
