"""Secure sums on a fleet of real processes: the bits of simulation, also after a kill, and with a node lost."""

import json
from pathlib import Path

import pytest

from atoll.experiment.experiment import Experiment
from atoll.settings import experiment_file as config
from tests.cli.conftest import Command
from tests.cli.fleets import machines, tensors_of, write_digits

pytest.importorskip("flwr")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECURE = "\n[secure]\nsums = true\nleast_nodes = 2\n"


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """An experiment for six clients in two clusters, three rounds."""
    file = write_digits(tmp_path, rounds=3, clients=6)
    file.write_text(file.read_text() + SECURE)
    return file


@pytest.mark.parametrize("nodes", ["3", "6"])
def test_nodes_end_with_the_bits_of_the_simulation(atoll: Command, six: Path, nodes: str) -> None:
    atoll("fleet", "up", six, "--nodes", nodes, "--out", "fleet-run").succeeded()
    atoll("run", six, "--out", "simulated").succeeded()
    assert tensors_of(six.parent / "fleet-run") == tensors_of(six.parent / "simulated")


def test_a_killed_server_goes_on_and_a_lost_node_is_done_without(atoll: Command, tmp_path: Path) -> None:
    """FedAvg of four nodes, of whom one may be lost; what happened is replayed to the same bits."""
    six = write_digits(tmp_path, rounds=12, clients=4, deadline=15)
    six.write_text(six.read_text().replace("[fleet]", "[fleet]\nstrikes = 1") + SECURE)
    (settings,) = config.make_runs(config.read_experiment(str(six)), None, ["method.name=fedavg"])
    changes = ["--set", "method.name=fedavg"]
    with machines(Experiment(settings), six, 4, *changes) as fleet:
        fleet.start_server()
        for node in range(4):
            fleet.start_node(node)
        fleet.wait_for_rows(3)
        fleet.kill("server")
        fleet.start_server("--resume")
        fleet.wait_for_rows(fleet.rows() + 2)
        fleet.kill("node-2")
        fleet.finish()
        run = fleet.folder / "run"
        assert "secure sum of event" in fleet.said("node-0")
    events = [json.loads(line) for line in (run / "happened.jsonl").read_bytes().splitlines()][1:]
    assert len(events) == 12
    assert any(event.get("answered") for event in events)
    atoll("run", six, "--schedule", run / "happened.jsonl", "--out", "replayed", *changes).succeeded()
    assert tensors_of(run) == tensors_of(six.parent / "replayed")
