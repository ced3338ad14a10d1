"""A million clients fit in a gigabyte and are made within a minute, a run with them in two."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "scale.py"

PROGRAM = """
import json, sys, time
import numpy as np
from atoll import Dataset, generator, make_population, partitions

rng = np.random.default_rng(0)
images = np.zeros((60_000, 1, 28, 28), np.uint8)
data = Dataset("mnist's size", images, rng.integers(0, 10, 60_000), images[:1], np.zeros(1, int), 10, 1 / 255)
began = time.perf_counter()
parts = partitions.PARTITIONS[sys.argv[1]](data.targets, 10**6, 10, generator(0, "partition"), samples=50)
population = make_population(data, parts)
seconds = time.perf_counter() - began
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
kilobytes = int(status["VmHWM"].split()[0])  # getrusage would count the memory of the process that started this one
print(json.dumps([len(population), int(population.sizes.sum()), seconds, kilobytes / 1e6]))
"""


@pytest.mark.more
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its peak memory from Linux's /proc")
def test_a_million_clients_with_fifty_samples_each() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM, "major-class"], capture_output=True, text=True, check=True)
    clients, samples, seconds, gigabytes = json.loads(result.stdout)
    assert (clients, samples) == (10**6, 50 * 10**6)
    assert seconds < 60
    assert gigabytes < 1  # the whole process at its peak, the pool and PyTorch included


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its peak memory from Linux's /proc")
@pytest.mark.parametrize("case", [{"clients": 10**6}, {"clients": 15 * 10**6, "indices": "drawn"}], ids=str)
def test_a_run_with_millions_of_clients_is_set_up_in_seconds_and_two_gigabytes(case: dict[str, object]) -> None:
    command = [sys.executable, str(BENCHMARK), "--alone", json.dumps(case)]
    row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert row["setup_seconds"] < 60
    assert row["gigabytes"] < 2


@pytest.mark.parametrize(("exponent", "grows"), [(0.0, False), (0.01, False), (0.05, True), (1.0, True)])
def test_the_benchmark_tells_growth_from_noise(exponent: float, grows: bool) -> None:
    benchmark = runpy.run_path(str(BENCHMARK))
    clients = np.array([1e3, 1e4, 1e5, 1e6])
    noise = np.random.default_rng(0).uniform(0.99, 1.01, (9, 4)) * np.linspace(1, 5, 9)[:, None]  # a machine that slows
    slope, ratio = benchmark["growth_of"](clients.tolist(), noise * clients**exponent)
    assert slope == pytest.approx(exponent, abs=0.005)
    assert ratio == pytest.approx(1000**exponent, rel=0.02)
    fault = benchmark["fault_of"](slope, ratio)
    assert (fault is not None) == grows
    assert fault is None or "grows with the number of clients: slope" in fault
