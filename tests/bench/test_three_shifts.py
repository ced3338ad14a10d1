"""The benchmark of three shifts: its clients have them, and every method runs on them."""

import importlib
from types import ModuleType

import numpy as np
import pytest

from tests.cli.pages import ROOT

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("three_shifts")


def test_clients_differ_in_labels_inputs_and_what_labels_mean(benchmark: ModuleType) -> None:
    problem = benchmark.make_problem(0)
    data, clients = problem.population.data, range(benchmark.CLIENTS)
    shares = [
        np.bincount(data.targets[problem.population.samples(k)], minlength=10) / benchmark.SAMPLES for k in clients
    ]
    assert np.std(shares, axis=0).min() > 0.02
    means = [data.inputs[problem.population.samples(k)].mean() for k in clients]
    assert max(means) > 1.5 * min(means)
    assert not any(problem.labels[0].equal(other) for other in problem.labels[1:])
    assert all(problem.labels[0].unique().equal(other.unique()) for other in problem.labels)


@pytest.mark.parametrize("method", ["fedavg", "ifca", "fedem", "fedsoft", "fedrc"])
def test_every_method_learns_something_of_them(benchmark: ModuleType, method: str) -> None:
    accuracy, grouped = benchmark.run(method, benchmark.make_problem(0), 5, 0)
    assert 0.1 < accuracy < 0.9
    assert -1 <= grouped <= 1
