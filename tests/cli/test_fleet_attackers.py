"""Five nodes as processes, one of which attacks and lies about samples and loss; the rest must not suffer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import atoll
from atoll import Experiment
from tests.cli.fleets import Machines, machines, write_digits

pytest.importorskip("flwr")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIAR = Path(__file__).with_name("lying_node.py")
NODES, ROUNDS = 5, 10
RULES = [("multi-krum", "method.byzantine=1"), ("geometric-median",)]


def accuracy_of(run: Path) -> float:
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return float(last["test_accuracy"])


def start_liar(fleet: Machines, number: int) -> None:
    """Start a node with the program that lies."""
    place, data = fleet.configuration.folder / "nodes" / f"node-{number}", fleet.folder / "data" / f"client-{number}"
    words = ["fleet", "node", str(fleet.file), *fleet.words, "--config", str(place), "--data", str(data)]
    with open(fleet.folder / f"node-{number}.log", "ab") as log:
        fleet.children[f"node-{number}"] = subprocess.Popen(
            [sys.executable, str(LIAR), *words, "--client", str(number)],
            cwd=fleet.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_one_lying_node_of_five_costs_less_than_three_points(rule: tuple[str, ...], tmp_path: Path) -> None:
    combine, *more = rule
    changes = ["method.name=fedavg", "data.samples=280", "local.lr=0.1", "local.steps=20", f"method.combine={combine}"]
    changes += more
    file = write_digits(tmp_path, rounds=ROUNDS, clients=NODES)
    (settings,) = atoll.make_runs(atoll.read_experiment(file), changes=[*changes, "run.executor=serial"])
    *_, honest = atoll.run(Experiment(settings)).history["test_accuracy"]
    words = [
        word for change in [*changes, "run.executor=fleet", "fleet.wait_seconds=300"] for word in ("--set", change)
    ]
    with machines(Experiment(settings), file, NODES, *words) as fleet:
        fleet.start_server()
        for number in range(NODES - 1):
            fleet.start_node(number)
        start_liar(fleet, NODES - 1)
        fleet.finish(600)
        found = accuracy_of(tmp_path / "run")
    print(f"{combine}: {honest:.4f} attack-free, {found:.4f} with one of {NODES} nodes lying")
    assert found > honest - 0.03
