"""One server and four nodes as processes: three methods on digits, against the simulation."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from tests.cli.conftest import Command
from tests.cli.fleets import tensors_of, write_digits

pytest.importorskip("flwr")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """An experiment for four clients in two clusters, three rounds."""
    return write_digits(tmp_path, rounds=3, clients=4)


@pytest.mark.parametrize("method", [[], ["method.name=cfl-mgd", "method.clusters=2"]], ids=["fedcluster", "cfl-mgd"])
def test_four_nodes_end_with_the_bits_of_the_simulation(atoll: Command, four: Path, method: list[str]) -> None:
    changes = [word for change in method for word in ("--set", change)]
    atoll("fleet", "up", four, "--nodes", "4", "--out", "fleet-run", *changes).succeeded()
    atoll("run", four, "--out", "simulated", *changes).succeeded()
    assert tensors_of(four.parent / "fleet-run") == tensors_of(four.parent / "simulated")


def test_what_clients_keep_stays_with_their_nodes(atoll: Command, four: Path) -> None:
    """SCAFFOLD's model has the simulation's bits; of the clients' variates the server has names alone."""
    words = ["--set", "method.name=scaffold", "--set", "method.fraction=0.5"]
    atoll("fleet", "up", four, "--nodes", "4", "--out", "fleet-run", *words).succeeded()
    atoll("run", four, "--out", "simulated", *words).succeeded()
    ours, theirs = (load(tensors_of(four.parent / name)) for name in ("fleet-run", "simulated"))
    names = {key for key in ours if key.endswith("@task")}
    assert names
    assert all(torch.equal(ours[key], theirs[key]) for key in ours.keys() - names)


def test_what_happened_with_four_nodes_is_replayed_to_the_same_bits(atoll: Command, four: Path) -> None:
    changes = ["method.name=hierarchical", "method.pattern=cenasy", "method.intra_rounds=2", "rounds=18"]
    words = [word for change in changes for word in ("--set", change)]
    atoll("fleet", "up", four, "--nodes", "4", "--out", "fleet-run", *words).succeeded()
    atoll("run", four, "--schedule", "fleet-run/happened.jsonl", "--out", "replayed", *words).succeeded()
    assert tensors_of(four.parent / "fleet-run") == tensors_of(four.parent / "replayed")
    assert atoll("verify", "fleet-run").succeeded().splitlines()[-1] == "equal"
