"""The examples run, as a user would run them, at a tiny size."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.pages import ROOT

# Threads that wait for a busy core cost far more than these small problems do.
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
EXAMPLES = ROOT / "examples"
SAYS = {
    "compare_fedavg_fedcluster.py": "| FedCluster |",
    "own_clustering.py": "own_clustering:dealt",
    "heterogeneity_and_bound.py": "conditions met",
}


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / name), "--rounds", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=ONE_THREAD, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout


def test_the_bound_holds_in_the_example(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "heterogeneity_and_bound.py"), "--rounds", "20"]
    done = subprocess.run(
        command, cwd=tmp_path, env=ONE_THREAD, capture_output=True, text=True, timeout=120, check=True
    )
    for line in done.stdout.splitlines():
        words = line.split()
        value = {name: float(words[words.index(name) + 1]) for name in ("H_device", "H_cluster", "measured", "bound")}
        assert value["H_cluster"] <= value["H_device"]
        assert value["measured"] <= value["bound"]
